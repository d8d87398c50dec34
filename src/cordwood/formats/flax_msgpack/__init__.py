"""Flax's msgpack format: read the index, plan a save, restore."""
