"""The public functions (save, load, open, verify, detect, convert, diff, gc) and their results."""
