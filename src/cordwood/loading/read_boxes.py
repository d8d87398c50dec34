"""Reading of boxes of leaves as arrays, for all forms of storage and any number of pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.index import Box, Encoded, Leaf, Pieces, Span
from cordwood.io.source_digests import block_bytes
from cordwood.loading.decode_elements import decode_elements
from cordwood.loading.read_context import ReadContext
from cordwood.plan.load_boxes import BoxRequest, plan_boxes
from cordwood.plan.scatter import Codec
from cordwood.sharding.boxes import shape_of, slices, whole_box
from cordwood.storage.open_files import ReadableFile

Array: TypeAlias = np.ndarray[Any, Any]


def read_boxes(reading: ReadContext, wants: Sequence[BoxRequest]) -> list[list[Array]]:
    """Return the arrays of the requested boxes: for each request a list, one array per box.

    Eager arrays own their memory or share an allocation with others, and are writable. Mapped
    arrays are read-only views into the file's mapping; a leaf that is not one raw range is read
    even then. A leaf with packed elements is read whole.
    """
    sources, files, digests, mmap, verify = reading
    results: list[list[Array]] = [[] for _ in wants]
    read: list[int] = []
    for i, want in enumerate(wants):
        leaf = want.leaf
        if mmap and _is_one_raw_range(leaf):
            results[i] = _mapped(leaf, want.boxes, files)
        else:
            read.append(i)
    if not read:
        return results
    # The reader is imported here so that opening an index imports no thread pools.
    from cordwood.io.crc32 import check_loaded
    from cordwood.io.execute_load import execute_load

    planned = [_as_bytes(wants[i]) for i in read]
    codecs = {
        leaf.storage.codec: _parse_codec(leaf.storage.codec)
        for leaf, _ in planned
        if isinstance(leaf.storage, Encoded)
    }
    plan = plan_boxes(planned, block_bytes=block_bytes(sources, verify=verify), codecs=codecs)
    buffers = execute_load(plan, files, digests=digests, verify=verify)
    if verify:
        check_loaded(plan, buffers, sources, files)
    placements = iter(plan.placements)
    shapes_of: dict[tuple[Box, ...], list[tuple[int, ...]]] = {}
    for i, (leaf, boxes) in zip(read, planned, strict=True):
        shapes = shapes_of.get(boxes)
        if shapes is None:
            shapes = shapes_of[boxes] = [shape_of(box) for box in boxes]
        dtype = dtypes.to_numpy(leaf.dtype)
        arrays = [
            np.ndarray(shape, dtype, buffers[buffer], position) if size else np.empty(shape, dtype)
            for shape, (buffer, position, size) in zip(
                shapes, islice(placements, len(shapes)), strict=True
            )
        ]
        if isinstance(leaf.storage, Pieces) and leaf.storage.encoding == "swapped":
            arrays = [array.byteswap(inplace=True) for array in arrays]
        results[i] = arrays if leaf is wants[i].leaf else _unpacked(arrays[0], wants[i])
    return results


def _is_one_raw_range(leaf: Leaf) -> bool:
    storage = leaf.storage
    if not isinstance(storage, Pieces) or storage.encoding != "raw" or len(storage.pieces) != 1:
        return False
    where = storage.pieces[0].where
    return isinstance(where, Span) or where == whole_box(leaf.shape)


def _mapped(leaf: Leaf, boxes: Sequence[Box], files: Sequence[ReadableFile]) -> list[Array]:
    assert isinstance(leaf.storage, Pieces)
    (piece,) = leaf.storage.pieces
    data = np.frombuffer(files[piece.source].map(), np.uint8)
    raw = data[piece.offset : piece.offset + piece.length]
    array = decode_elements(raw, "raw", leaf.shape, leaf.dtype)
    return [_part(array, box) for box in boxes]


def _part(array: Array, box: Box) -> Array:
    key: Any = (*slices(box), ...)  # an array even where there are no axes
    part: Array = array[key]
    return part


def _as_bytes(want: BoxRequest) -> BoxRequest:
    """Return the request; for packed elements, a request for all stored bytes as uint8."""
    leaf = want.leaf
    if not isinstance(leaf.storage, Pieces) or leaf.storage.encoding in ("raw", "swapped"):
        return want
    size = sum(piece.length for piece in leaf.storage.pieces)
    pieces = []
    end = 0
    for piece in leaf.storage.pieces:
        pieces.append(piece._replace(where=Span(end, end + piece.length)))
        end += piece.length
    packed = leaf._replace(shape=(size,), dtype="uint8", storage=Pieces(tuple(pieces)))
    return BoxRequest(packed, (whole_box((size,)),))


def _unpacked(raw: Array, want: BoxRequest) -> list[Array]:
    leaf = want.leaf
    assert isinstance(leaf.storage, Pieces)
    array = decode_elements(raw, leaf.storage.encoding, leaf.shape, leaf.dtype)
    if list(want.boxes) == [whole_box(leaf.shape)]:
        return [array]
    return [_part(array, box).copy() for box in want.boxes]


def _parse_codec(text: str) -> Codec:
    members = json.loads(text)  # written by a format's `read_index`
    skip_bytes, crc32 = members.get("skip_bytes", 0), members.get("crc32")
    return Codec(members["compressor"], members["order"], members["swapped"], skip_bytes, crc32)
