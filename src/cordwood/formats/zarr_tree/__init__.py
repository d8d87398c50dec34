"""Zarr trees, read only: directories of zarr arrays without an index."""
