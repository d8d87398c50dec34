"""Comparison of checkpoints and trees: pairs of leaves, digests, changes and statistics."""
