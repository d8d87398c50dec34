"""The files that describe to Orbax a tree whose arrays are ranges of other files.

They hold no array: a database (OCDBT) says which range of which file is which chunk. All versions
of Orbax since 0.6 read this layout.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cordwood.formats.format_losses import unstorable_error
from cordwood.formats.ocdbt.encode_database import FileRange, encode_database
from cordwood.formats.ocdbt.manifest import MANIFEST_NAME
from cordwood.formats.orbax.encode_tree import (
    encode_tree,
    leaf_names,
    number_files,
    unsupported,
)
from cordwood.formats.orbax.prng_keys import KEYS_FOLDER
from cordwood.formats.orbax.shardings import SHARDINGS_NAME
from cordwood.formats.orbax.string_leaves import STRINGS_NAME
from cordwood.formats.orbax.tree_metadata import TREE_NAME
from cordwood.formats.step_record import ORBAX_NODES_NAME
from cordwood.formats.zarr.array_metadata import MAX_DIMS
from cordwood.formats.zarr.metadata_v2 import METADATA_NAME, encode_metadata
from cordwood.index import ARRAY_KINDS, Box, Index, Inline, Leaf, LeafSpec, Pieces, Structure
from cordwood.sharding.boxes import whole_box
from cordwood.threads.garbage_collector import gc_paused

# All files that may describe a tree.
NAMES = (
    *(TREE_NAME, MANIFEST_NAME, ORBAX_NODES_NAME, STRINGS_NAME, SHARDINGS_NAME),
    f"{KEYS_FOLDER}/process_0",
)
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_CHUNKS = 1 << 16  # of one array, if its parts have to be cut: each is a key of the database


class _ChunkLayout(NamedTuple):
    """The division of an array into chunks; leaves that are alike have it in common."""

    zarray: bytes
    names: Sequence[Sequence[str]]  # of the chunks in each piece, in the order of their elements


def encode_tree_in_place(index: Index) -> dict[str, bytes]:
    """Return the files that describe a tree, by their paths; the same index gives the same bytes.

    The names of the index's sources are taken as paths relative to the directory of these files.

    Raises:
        UnsupportedLeafError: Orbax cannot read a leaf from where it is; names its key path.
    """
    with gc_paused():
        specs = [_spec(leaf) for leaf in index.leaves]
        encoded = encode_tree(index.structure, specs, use_ocdbt=True)
        sources = [source.name for source in index.sources]
        values: dict[str, bytes | FileRange] = {}
        layouts: dict[tuple[object, ...], _ChunkLayout] = {}
        _require_text(encoded.names, specs)
        for name, spec, leaf in zip(encoded.names, specs, index.leaves, strict=True):
            prefix, storage = f"{name}/" if name else "", leaf.storage
            if isinstance(storage, Inline):
                if leaf.kind != "str":
                    values.update(number_files(name, spec))
                continue
            if not isinstance(storage, Pieces) or storage.encoding != "raw":
                raise unsupported(leaf.key_path, "it is stored encoded")
            places = tuple([piece.where for piece in storage.pieces])
            alike = leaf.kind, leaf.shape, leaf.dtype, places
            layout = layouts.get(alike)
            if layout is None:
                layout = layouts[alike] = _chunk_layout(spec, places)
            values[prefix + METADATA_NAME] = layout.zarray
            for piece, names in zip(storage.pieces, layout.names, strict=True):
                _, source, offset, length = piece
                size = length // len(names) if names else 0
                for number, chunk_name in enumerate(names):
                    values[prefix + chunk_name] = FileRange(
                        sources[source], offset + number * size, size
                    )
        database = encode_database(values, node_file=ORBAX_NODES_NAME)
    return {**encoded.files, ORBAX_NODES_NAME: database.nodes, MANIFEST_NAME: database.manifest}


def require_describable(
    structure: Structure,
    specs: Sequence[LeafSpec],
    stored: Iterable[tuple[LeafSpec, Sequence[Box]]],
) -> None:
    """Raise UnsupportedLeafError unless a tree can be described where it will be stored.

    Args:
        structure: the structure.
        specs: its leaves.
        stored: leaves whose elements will be in files, with the boxes that their parts are: one of
            each kind, shape and division into parts.
    """
    with gc_paused():
        _require_text(leaf_names(structure, specs), specs)
    for spec, boxes in stored:
        _require_array(spec)
        chunk_shape(spec, boxes)


def chunk_shape(spec: LeafSpec, boxes: Sequence[Box]) -> tuple[int, ...]:
    """Return the shape of equal chunks, each a contiguous range of one of the boxes.

    The boxes are disjoint and fill an array. Where they differ in size along an axis, they are cut
    along it: the chunks are then of one row along all axes before it.

    Raises UnsupportedLeafError if there are no such chunks, or more than MAX_CHUNKS.

    >>> spec = LeafSpec(("w",), "numpy", (6, 4), "float32")
    >>> chunk_shape(spec, [Box((0, 0), (4, 4)), Box((4, 0), (6, 4))])
    (2, 4)
    """
    extents: list[int] = []
    uneven_axes = 0
    for axis, size in enumerate(spec.shape):
        edges = {box.start[axis] for box in boxes} | {box.stop[axis] for box in boxes} | {size}
        sizes = {box.stop[axis] - box.start[axis] for box in boxes}
        if len(sizes) > 1:
            uneven_axes += 1
            extents[:axis] = [1] * axis
        extents.append(max(1, math.gcd(*edges)))
    counts = [-(-size // extent) for size, extent in zip(spec.shape, extents, strict=True)]
    if uneven_axes > 1 or math.prod(counts) > max(MAX_CHUNKS, len(boxes)):
        raise unsupported(spec.key_path, "it is stored in parts of different sizes")
    return tuple(extents)


def _spec(leaf: Leaf) -> LeafSpec:
    path, kind, shape, dtype, storage, weak_type, prng_impl = leaf
    value = storage.value if isinstance(storage, Inline) else None
    return LeafSpec(path, kind, shape, dtype, weak_type, prng_impl, value)


def _chunk_layout(spec: LeafSpec, places: Sequence[object]) -> _ChunkLayout:
    """Return the layout of the chunks of a leaf, given where its pieces are in it."""
    _require_array(spec)
    boxes = [place for place in places if isinstance(place, Box)]
    if len(places) == 1:
        boxes = [whole_box(spec.shape)]
    if len(boxes) != len(places):
        raise unsupported(spec.key_path, "it is stored in several ranges")
    chunk = chunk_shape(spec, boxes)
    zarray = encode_metadata(spec.shape, chunk, spec.dtype, None, marked=False)
    return _ChunkLayout(zarray, [_chunk_names(box, chunk) for box in boxes])


def _require_array(spec: LeafSpec) -> None:
    """Raise UnsupportedLeafError for a text in a file of its own, and for too many axes."""
    if spec.kind not in ARRAY_KINDS:
        raise unsupported(spec.key_path, f"a {spec.kind} of this size is stored as an array")
    if len(spec.shape) >= MAX_DIMS:
        raise unstorable_error(spec, MAX_DIMS, "Orbax takes")


def _require_text(names: Sequence[str], specs: Sequence[LeafSpec]) -> None:
    """Raise UnsupportedLeafError for a name that is no key of a database."""
    if any(map(_SURROGATE.search, names)):
        spec = next(
            spec for name, spec in zip(names, specs, strict=True) if _SURROGATE.search(name)
        )
        raise unsupported(spec.key_path, "its name for Orbax holds a lone surrogate")


def _chunk_names(box: Box, chunk: Sequence[int]) -> list[str]:
    """Return the names of the chunks of a box, in the order of their elements."""
    names = [""]
    for start, stop, extent in zip(box.start, box.stop, chunk, strict=True):
        numbers = range(start // extent, stop // extent)
        names = [f"{name}.{number}" for name in names for number in numbers]
    return [name[1:] or "0" for name in names]
