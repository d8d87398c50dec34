"""Flax's msgpack format: scan, lay out, restore."""
