"""Orbax checkpoints: zarr arrays in files or in an OCDBT database (docs/format.md)."""
