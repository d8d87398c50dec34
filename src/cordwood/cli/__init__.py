"""The command line program `cordwood`: one module for each of its commands.

`import cordwood` imports nothing of this package. A command imports what it needs when it runs.
"""
