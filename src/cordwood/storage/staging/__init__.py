"""Staging directories: a new directory beside the one that it replaces, and their exchange."""
