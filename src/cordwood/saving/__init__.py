"""Saves beside others: in the background, after a commit, and in signal handlers."""
