"""Cordwood's own encoding of a tree and of digests: JSON texts and tensor names."""
