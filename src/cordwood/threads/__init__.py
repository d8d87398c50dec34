"""Threads, and what runs in them: workers, pools, stop checks, latches, and the log."""
