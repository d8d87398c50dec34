"""The types and values of the leaves of an open checkpoint, and their tiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cordwood.errors import UnsupportedFormatError
from cordwood.index import ARRAY_KINDS, Box, Inline, Leaf, LeafSpec
from cordwood.keypath import path_label
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.stored_leaf import StoredLeaf


def stored_specs(reader: LeafReader, leaves: Sequence[Leaf]) -> list[LeafSpec]:
    """Return the types of leaves, and the values of those that are no arrays.

    Raises UnsupportedFormatError for a leaf that cannot be read.
    """
    specs = []
    for leaf in leaves:
        path, kind, shape, dtype, storage, weak_type, prng_impl = leaf
        if kind in ARRAY_KINDS:
            specs.append(LeafSpec(path, kind, shape, dtype, weak_type, prng_impl))
            continue
        if kind in ("opaque", "unreadable"):
            raise UnsupportedFormatError(
                f"{reader.path}: {path_label(path)} is {kind}: a delta holds only values that can "
                "be read"
            )
        if isinstance(storage, Inline):
            value = storage.value
        else:
            value = StoredLeaf(leaf, reader).load(to="numpy")
        specs.append(LeafSpec(path, kind, (), "", value=value))
    return specs


def read_boxes(reader: LeafReader, leaf: Leaf, boxes: Sequence[Box]) -> list[np.ndarray]:
    """Return boxes of an array leaf, each contiguous and with memory of its own; checked."""
    if isinstance(leaf.storage, Inline):
        return [np.array(leaf.storage.value) for _ in boxes]
    boxes_of = {0: list(boxes)}
    return reader.read(reader.with_pieces([leaf], boxes_of), boxes_of)
