"""Host memory: buffers, what is kept for the next load, and what a save in the background uses."""
