"""The contenders that store trees in directories, by their names in the tables."""

from __future__ import annotations

__all__ = [
    "ASYNC",
    "BARE_READ",
    "BARE_WRITE",
    "EFORMER",
    "ORBAX",
    "ORBAX_ASYNC",
    "ORBAX_RAW",
    "ORBAX_RAW_FILES",
    "PACKS",
    "ZARR",
]

PACKS = "cordwood packs"
ZARR = "cordwood zarr, raw chunks"
ASYNC = "cordwood.save_async"
ORBAX = "orbax StandardCheckpointer"
ORBAX_RAW = "orbax without compression (OCDBT)"
ORBAX_RAW_FILES = "orbax without compression (zarr files)"
ORBAX_ASYNC = "orbax StandardCheckpointer, call"
EFORMER = "eformer tree_serialize / tree_deserialize"
BARE_WRITE = "bare fallocate + O_DIRECT + fsync"
BARE_READ = "bare threaded preadv into np.empty"
