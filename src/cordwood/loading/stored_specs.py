"""The types and values of the leaves of an open checkpoint, and their tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cordwood.errors import UnsupportedFormatError
from cordwood.index import ARRAY_KINDS, Box, Inline, Leaf, LeafSpec
from cordwood.keypath import path_label
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.stored_leaf import StoredLeaf

if TYPE_CHECKING:
    from cordwood.io.execute_load import LoadMemory


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
                f"{reader.path}: {path_label(path)} is {kind}: expected only values that can "
                "be read"
            )
        if isinstance(storage, Inline):
            value = storage.value
        else:
            value = StoredLeaf(leaf, reader).load(to="numpy")
        specs.append(LeafSpec(path, kind, (), "", value=value))
    return specs


def read_boxes(
    reader: LeafReader,
    leaves: Sequence[Leaf],
    boxes: Mapping[int, Sequence[Box]],
    *,
    memory: LoadMemory | None = None,
) -> list[np.ndarray]:
    """Return boxes of array leaves, each contiguous; what is read is checked.

    Args:
        reader: the open checkpoint.
        leaves: its leaves.
        boxes: the boxes to read of leaves, by number, ascending.
        memory: the memory that is read into; None: new memory.
    """
    stored = [number for number in boxes if not isinstance(leaves[number].storage, Inline)]
    boxes_of = {position: boxes[number] for position, number in enumerate(stored)}
    located = reader.with_pieces([leaves[number] for number in stored], boxes_of)
    arrays = iter(reader.read(located, boxes_of, memory=memory) if stored else ())
    result: list[np.ndarray] = []
    for number, some in boxes.items():
        storage = leaves[number].storage
        if isinstance(storage, Inline):
            result += [np.array(storage.value) for _ in some]
        else:
            result += [next(arrays) for _ in some]
    return result
