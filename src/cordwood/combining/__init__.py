"""The inside of combine: linear combinations of checkpoints, computed when they are read."""
