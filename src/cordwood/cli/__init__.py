"""The command `cordwood`: a face of the library, one module for each of its commands.

Nothing here is imported by `import cordwood`, and a command imports what it needs when it runs.
"""
