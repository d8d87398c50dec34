"""Deltas: the differences between two versions of a tree, and the checkpoints that hold them."""
