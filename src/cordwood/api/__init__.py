"""The public functions: save, save_async, load, open, verify, detect, convert, copy, diff, gc."""
