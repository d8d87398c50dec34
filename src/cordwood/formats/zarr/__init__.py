"""The zarr formats: eFormer's directories, one zarr version 2 array for each leaf; trees of arrays.

docs/format.md is the specification of what cordwood adds.
"""
