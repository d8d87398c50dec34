"""The command line program `cordwood`: its commands by topic; `main.COMMANDS` has the table.

`import cordwood` imports nothing of this package. A command imports what it needs when it runs.
"""
