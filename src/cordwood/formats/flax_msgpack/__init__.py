"""Flax's msgpack format: reading the index, planning a save, restoring values."""
