"""The zarr layout: eFormer's directories, one zarr version 2 array for each leaf.

docs/format.md is the specification of what cordwood adds.
"""
