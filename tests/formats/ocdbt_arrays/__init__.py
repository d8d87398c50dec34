"""Tests of OCDBT databases of zarr arrays."""
