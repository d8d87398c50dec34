"""A single array named `checkpoint`, as Orbax's `ArraySave` and `ArrayCheckpointHandler` write it.

<item>/_METADATA, checkpoint/.zarray     Orbax since 0.12: as a tree of one leaf
<item>/checkpoint/.zarray                before that
"""

from __future__ import annotations

from cordwood.formats.orbax.checkpoint_metadata import CHECKPOINT_NAME, read_checkpoint_metadata
from cordwood.formats.orbax.tree_metadata import LeafMetadata, TreeMetadata
from cordwood.index import LEAF
from cordwood.storage.readable_directory import ReadableDirectory

ARRAY_NAME = "checkpoint"
_HANDLER = "ArrayCheckpointHandler"
_BESIDE = frozenset(
    {"_sharding", "array_metadatas", CHECKPOINT_NAME, "commit_success.txt", ARRAY_NAME}
)


def is_array_at(directory: ReadableDirectory, folder: str = "") -> bool:
    """Return whether a directory is such an array without `_METADATA`, and nothing else."""
    place = f"{folder}/{ARRAY_NAME}" if folder else ARRAY_NAME
    if not any(directory.has(f"{place}/{name}") for name in (".zarray", "zarr.json")):
        return False
    return set(directory.sizes(folder or ".")) <= _BESIDE


def array_tree(directory: ReadableDirectory) -> TreeMetadata:
    """Return the tree where there is no `_METADATA`; only jax arrays have a sharding."""
    value_type = "jax.Array" if directory.has("_sharding") else "np.ndarray"
    return TreeMetadata((LEAF,), (LeafMetadata((), ARRAY_NAME, value_type),), False, None, None)


def is_single(tree: TreeMetadata) -> bool:
    """Return whether a tree is a dict of one leaf with the name of such an array."""
    return len(tree.structure) == 2 and [leaf.key_path for leaf in tree.leaves] == [(ARRAY_NAME,)]


def as_array(tree: TreeMetadata) -> TreeMetadata:
    """Return the leaf of such a tree as the whole tree."""
    (leaf,) = tree.leaves
    return tree._replace(structure=(LEAF,), leaves=(leaf._replace(key_path=()),))


def is_saved_as_array(checkpoint: ReadableDirectory, item: str) -> bool:
    """Return whether an item was written as an array; "" for the checkpoint itself."""
    about = read_checkpoint_metadata(checkpoint)
    handler = about.item_handlers.get(item, about.tree_handler)
    return type(handler) is str and handler.endswith(_HANDLER)
