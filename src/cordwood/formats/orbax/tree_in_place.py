"""The files that describe to Orbax a tree whose arrays are ranges of other files.

They hold no array: a database (OCDBT) says which range of which file is which chunk. All versions
of Orbax since 0.6 read this layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cordwood.formats.format_losses import unstorable_error
from cordwood.formats.ocdbt.encode_database import FileRange, encode_database
from cordwood.formats.ocdbt.manifest import MANIFEST_NAME
from cordwood.formats.orbax.encode_tree import encode_tree, number_files, unsupported
from cordwood.formats.orbax.prng_keys import KEYS_FOLDER
from cordwood.formats.orbax.shardings import SHARDINGS_NAME
from cordwood.formats.orbax.string_leaves import STRINGS_NAME
from cordwood.formats.orbax.tree_metadata import TREE_NAME
from cordwood.formats.step_record import ORBAX_NODES_NAME
from cordwood.formats.zarr.array_metadata import MAX_DIMS
from cordwood.formats.zarr.metadata_v2 import METADATA_NAME, encode_metadata
from cordwood.index import ARRAY_KINDS, Box, Index, Inline, Leaf, LeafSpec, Pieces, Structure
from cordwood.sharding.boxes import whole_box

# All files that may describe a tree.
NAMES = (
    *(TREE_NAME, MANIFEST_NAME, ORBAX_NODES_NAME, STRINGS_NAME, SHARDINGS_NAME),
    f"{KEYS_FOLDER}/process_0",
)
MAX_CHUNKS = 1 << 16  # of one array, if its parts have to be cut: each is a key of the database


def encode_tree_in_place(index: Index) -> dict[str, bytes]:
    """Return the files that describe a tree, by their paths; the same index gives the same bytes.

    The names of the index's sources are taken as paths relative to the directory of these files.

    Raises:
        UnsupportedLeafError: Orbax cannot read a leaf from where it is; names its key path.
    """
    specs = [_spec(leaf) for leaf in index.leaves]
    encoded = encode_tree(index.structure, specs, use_ocdbt=True)
    sources = [source.name for source in index.sources]
    values: dict[str, bytes | FileRange] = {}
    zarrays: dict[tuple[object, ...], bytes] = {}
    chunk_shapes: dict[tuple[object, ...], tuple[int, ...]] = {}
    for name, spec, leaf in zip(encoded.names, specs, index.leaves, strict=True):
        _require_text(name, spec)
        prefix = f"{name}/" if name else ""
        if isinstance(leaf.storage, Inline):
            if leaf.kind != "str":
                values.update(number_files(name, spec))
            continue
        boxes = _boxes(leaf, leaf.storage)
        chunk = chunk_shapes.get((leaf.shape, boxes))
        if chunk is None:
            chunk = chunk_shapes[leaf.shape, boxes] = chunk_shape(spec, boxes)
        alike = leaf.shape, chunk, leaf.dtype
        if alike not in zarrays:
            zarrays[alike] = encode_metadata(*alike, None, marked=False)
        values[prefix + METADATA_NAME] = zarrays[alike]
        for piece, box in zip(leaf.storage.pieces, boxes, strict=True):
            names = _chunk_names(box, chunk)
            size = piece.length // len(names) if names else 0
            file = sources[piece.source]
            for number, chunk_name in enumerate(names):
                offset = piece.offset + number * size
                values[prefix + chunk_name] = FileRange(file, offset, size)
    database = encode_database(values, node_file=ORBAX_NODES_NAME)
    return {**encoded.files, ORBAX_NODES_NAME: database.nodes, MANIFEST_NAME: database.manifest}


def require_describable(
    structure: Structure, specs: Sequence[LeafSpec], boxes: Mapping[int, Sequence[Box]]
) -> None:
    """Raise UnsupportedLeafError unless a tree can be described where it will be stored.

    Args:
        structure: the structure.
        specs: its leaves.
        boxes: the parts of each leaf whose elements will be in files, by leaf.
    """
    encoded = encode_tree(structure, specs, use_ocdbt=True)
    seen: set[tuple[object, ...]] = set()
    for leaf, (name, spec) in enumerate(zip(encoded.names, specs, strict=True)):
        _require_text(name, spec)
        if leaf not in boxes:
            continue
        _require_array(spec)
        alike = spec.shape, *boxes[leaf]
        if alike not in seen:
            seen.add(alike)
            chunk_shape(spec, boxes[leaf])


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
    value = leaf.storage.value if isinstance(leaf.storage, Inline) else None
    spec = LeafSpec(leaf.key_path, leaf.kind, leaf.shape, leaf.dtype, value=value)
    return spec._replace(prng_impl=leaf.prng_impl)


def _boxes(leaf: Leaf, storage: object) -> tuple[Box, ...]:
    """Return the boxes of the pieces of a leaf."""
    _require_array(_spec(leaf))
    if not isinstance(storage, Pieces) or storage.encoding != "raw":
        raise unsupported(leaf.key_path, "it is stored encoded")
    if len(storage.pieces) == 1:
        return (whole_box(leaf.shape),)
    boxes = tuple([piece.where for piece in storage.pieces if isinstance(piece.where, Box)])
    if len(boxes) != len(storage.pieces):
        raise unsupported(leaf.key_path, "it is stored in several ranges")
    return boxes


def _require_array(spec: LeafSpec) -> None:
    """Raise UnsupportedLeafError for a text in a file of its own, and for too many axes."""
    if spec.kind not in ARRAY_KINDS:
        raise unsupported(spec.key_path, f"a {spec.kind} of this size is stored as an array")
    if len(spec.shape) >= MAX_DIMS:
        raise unstorable_error(spec, MAX_DIMS, "Orbax takes")


def _require_text(name: str, spec: LeafSpec) -> None:
    """Raise UnsupportedLeafError for a name that is no key of a database."""
    try:
        name.encode()
    except UnicodeEncodeError as e:
        raise unsupported(spec.key_path, "its name for Orbax holds a lone surrogate") from e


def _chunk_names(box: Box, chunk: Sequence[int]) -> list[str]:
    """Return the names of the chunks of a box, in the order of their elements."""
    names = [""]
    for start, stop, extent in zip(box.start, box.stop, chunk, strict=True):
        numbers = range(start // extent, stop // extent)
        names = [f"{name}.{number}" for name in names for number in numbers]
    return [name[1:] or "0" for name in names]
