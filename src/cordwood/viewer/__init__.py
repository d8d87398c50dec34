"""The viewer: the resources that `cordwood view` shows, its page, its server, and its export.

docs/design/0009-viewer.md describes how the parts fit together.
"""
