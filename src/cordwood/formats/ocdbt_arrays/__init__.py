"""OCDBT databases of zarr arrays, read only: Levanter's checkpoints, and jax's own serialization.

<step>/manifest.ocdbt, d/...                       Levanter: arrays by their key paths
<tree>/pytreedef.json, array_store/manifest.ocdbt  jax.experimental.array_serialization
"""
