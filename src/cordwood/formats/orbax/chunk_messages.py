"""The messages about chunks that are missing or damaged, in checkpoints of Orbax."""

from __future__ import annotations

from cordwood.formats.orbax.tree_metadata import STORES_ZEROS, TREE_NAME
from cordwood.formats.zarr.array_reader import Messages

MESSAGES = Messages(
    missing="{key} is missing: the checkpoint is incomplete; copy it again, or load another one",
    partly_missing=(
        "{key} is missing, but other chunks of the array exist: the checkpoint is incomplete; copy "
        "it again, or load another one. Older versions of Orbax do not store zeros and do not "
        "record it: if such a version wrote this checkpoint, set "
        f'"{STORES_ZEROS}": false in {TREE_NAME}'
    ),
    wrong_size=(
        "{key}: expected {expected} bytes, found {actual}: it is damaged, or belongs to another "
        "array; copy it again"
    ),
    extra=(
        "{key} is not a chunk of an array of shape {shape} in chunks of {chunks}: it or the "
        "metadata of the array belongs to another checkpoint; copy it again"
    ),
)
