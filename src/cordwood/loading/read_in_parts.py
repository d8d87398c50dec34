"""Reading of a leaf part by part, so that a large one is never in memory as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from cordwood import dtypes
from cordwood.errors import FormatError
from cordwood.index import Box, Encoded, Inline, Leaf, Piece, Pieces, Span
from cordwood.io.chunk_stream import ChunkStream
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.io.progress import METER
from cordwood.io.read_units import read_moves
from cordwood.io.source_digests import block_bytes
from cordwood.keypath import path_label
from cordwood.loading.leaf_reader import LeafReader, decode_elements, is_packed
from cordwood.plan.check_pieces import check_pieces
from cordwood.plan.load_plan import Move
from cordwood.plan.split_arrays import element_range, split_array
from cordwood.sharding.boxes import absolute, element_count, intersect, relative, shape_of, slices

_STREAMED_CHUNK_BYTES = 16 << 20  # a larger chunk is not decoded as a whole
_READ_BYTES = 4 << 20
_GROUP_BITS = 24  # packed elements of 4 or 6 bits are whole after this many


def read_in_parts(
    reader: LeafReader,
    leaf: Leaf,
    boxes: Sequence[Box],
    *,
    part_elements: int,
    streamed_chunk_bytes: int = _STREAMED_CHUNK_BYTES,
) -> Iterator[tuple[Box, np.ndarray]]:
    """Yield the elements of boxes of an array, in parts of at most `part_elements`.

    A chunk of more than `streamed_chunk_bytes` is decoded as a stream, if its codec allows that.

    Args:
        reader: the open checkpoint.
        leaf: the leaf, with its pieces.
        boxes: boxes of about the size that may be in memory. Those of a leaf of large chunks have
            whole chunks.
        part_elements: the limit.
        streamed_chunk_bytes: the largest chunk that is decoded as a whole.

    Raises:
        CorruptionError: stored bytes do not match their digest, or cannot be decoded.
        FormatError: the pieces do not make up the boxes.
    """
    storage = leaf.storage
    if isinstance(storage, Inline):
        array = np.asarray(storage.value)
        for box in boxes:
            yield from cut_array(box, array[slices(box)], part_elements)
    elif is_packed(leaf):
        yield from _unpacked(reader, leaf, boxes, part_elements)
    elif isinstance(storage, Encoded) and _chunk_bytes(leaf, storage) > streamed_chunk_bytes:
        check_pieces(leaf)
        missing = sum(map(element_count, boxes))
        for piece in storage.pieces:
            assert isinstance(piece.where, Box)
            if any(intersect(piece.where, box) for box in boxes):
                for box, array in _streamed(reader, leaf, storage, piece, part_elements):
                    missing -= array.size
                    yield box, array
        if missing:
            raise FormatError(
                f"{path_label(leaf.key_path)}: expected chunks that make up the array, found "
                f"{abs(missing)} elements {'in none' if missing > 0 else 'twice'}"
            )
    else:
        for box in boxes:
            yield from cut_array(box, reader.read([leaf], {0: [box]})[0], part_elements)


def _chunk_bytes(leaf: Leaf, storage: Encoded) -> int:
    return math.prod(storage.chunk_shape) * dtypes.itemsize(leaf.dtype)


def cut_array(box: Box, array: np.ndarray, part_elements: int) -> Iterator[tuple[Box, np.ndarray]]:
    """Yield the elements of a box as views of at most `part_elements`."""
    if array.size <= part_elements:
        yield box, array
        return
    for part in split_array(shape_of(box), item_bytes=1, limit_bytes=part_elements):
        yield absolute(part, box), array[slices(part)]


def _unpacked(
    reader: LeafReader, leaf: Leaf, boxes: Sequence[Box], part_elements: int
) -> Iterator[tuple[Box, np.ndarray]]:
    """Yield elements that are packed into a few bits each, by reading the bytes around them."""
    assert isinstance(leaf.storage, Pieces)
    encoding = leaf.storage.encoding
    width = int(encoding.removeprefix("packed"))
    per_group, group_bytes = _GROUP_BITS // width, _GROUP_BITS // 8
    pieces: list[Piece] = []
    size_bytes = 0
    for piece in leaf.storage.pieces:
        where = Span(size_bytes, size_bytes + piece.length)
        pieces.append(piece._replace(where=where))
        size_bytes = where.stop
    stored = leaf._replace(shape=(size_bytes,), dtype="uint8", storage=Pieces(tuple(pieces)))
    for whole in boxes:
        for part in split_array(shape_of(whole), item_bytes=1, limit_bytes=part_elements):
            box = absolute(part, whole)
            start, stop = element_range(box, leaf.shape)
            first, last = start // per_group, -(-stop // per_group)
            byte_box = Box((first * group_bytes,), (min(last * group_bytes, size_bytes),))
            (raw,) = reader.read([stored], {0: [byte_box]})
            count = min(last * per_group, math.prod(leaf.shape)) - first * per_group
            elements = decode_elements(raw, encoding, (count,), leaf.dtype)
            begin = start - first * per_group
            yield box, elements[begin : begin + stop - start].reshape(shape_of(box))


def _streamed(
    reader: LeafReader, leaf: Leaf, storage: Encoded, piece: Piece, part_elements: int
) -> Iterator[tuple[Box, np.ndarray]]:
    """Yield the elements of one chunk, which is decoded as a stream."""
    assert isinstance(piece.where, Box)
    dtype, item = dtypes.to_numpy(leaf.dtype), dtypes.itemsize(leaf.dtype)
    name = reader.files[piece.source].name
    stream = ChunkStream(
        _stored_bytes(reader, piece),
        piece.length,
        storage.codec,
        _chunk_bytes(leaf, storage),
        where=f"{name}: the chunk at byte {piece.offset}",
    )
    is_fortran = storage.codec.order == "F"
    shape = storage.chunk_shape[::-1] if is_fortran else storage.chunk_shape
    meter = METER.get()
    for part in split_array(shape, item_bytes=1, limit_bytes=part_elements):
        array = stream.read(element_count(part) * item).view(dtype).reshape(shape_of(part))
        if storage.codec.swapped:
            array = array.byteswap(inplace=True)
        if is_fortran:
            part, array = Box(part.start[::-1], part.stop[::-1]), array.T
        if meter is not None:
            meter.advance(array.nbytes)
        box = intersect(absolute(part, piece.where), piece.where)  # chunks at an edge are padded
        if box is not None:
            yield box, array[slices(relative(relative(box, piece.where), part))]
    stream.finish()


def _stored_bytes(reader: LeafReader, piece: Piece) -> Iterator[memoryview]:
    """Yield the stored bytes of a piece, a few MiB at a time; their digests are checked."""
    scratch = ScratchBuffer()
    digests = reader.digests[piece.source]
    end = piece.offset + piece.length
    at = piece.offset
    first = 0 if digests is None else digests.start
    block = block_bytes(reader.index.sources, verify=True)[piece.source] or _READ_BYTES
    step = max(block, _READ_BYTES // block * block)  # whole blocks, so that none is read twice
    while at < end:
        stop = min(end, at + step - (at - first) % block) if at >= first else min(end, first)
        data = memoryview(bytearray(stop - at))
        move = Move(piece.source, at, stop - at, 0, 0)
        read_moves([move], data, reader.files, digests=reader.digests, scratch=scratch)
        yield data.toreadonly()
        at = stop
