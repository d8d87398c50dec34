"""Checkpoints whose elements are made when they are read, tile by tile."""
