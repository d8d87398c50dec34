"""Temporary files and directories for work that needs a disk."""
