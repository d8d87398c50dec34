"""The byte ranges of the elements of a .npy array, raw or deflated."""

from __future__ import annotations

import math

from cordwood.formats.numpy_files.npy_header import NpyHeader
from cordwood.index import Box, Codec, Encoded, Piece, Pieces, Span
from cordwood.sharding.boxes import whole_box

_CHUNK_BYTES = 4 << 20  # of an array in Fortran order, which is transposed in parts
_MAX_CHUNKS = 4096


def raw_storage(header: NpyHeader, offset: int) -> Pieces | Encoded:
    """Return the storage of uncompressed elements that begin at `offset` of source 0.

    In C order they are one range of bytes. In Fortran order they are several ranges, each with some
    indices of the last axis and all indices of the other axes.
    """
    shape, length = header.shape, header.stop - header.start
    if not length:
        return Pieces(())
    if not header.fortran:
        span = Span(0, math.prod(shape))
        return Pieces((Piece(span, 0, offset, length),), "swapped" if header.swapped else "raw")
    rows = shape[-1]
    count = _chunk_count(rows, length)
    step, step_bytes = rows // count, length // count
    pieces = []
    for i in range(count):
        box = Box((*(0,) * (len(shape) - 1), i * step), (*shape[:-1], (i + 1) * step))
        pieces.append(Piece(box, 0, offset + i * step_bytes, step_bytes))
    return Encoded(tuple(pieces), (*shape[:-1], step), Codec(None, "F", header.swapped))


def _chunk_count(rows: int, length: int) -> int:
    """Return the number of equal parts of the last axis, of about _CHUNK_BYTES if possible."""
    least = -(-length // _CHUNK_BYTES)
    for count in range(least, min(rows, least + _MAX_CHUNKS) + 1):
        if rows % count == 0:
            return count
    return 1


def deflated_storage(
    header: NpyHeader, offset: int, length: int, *, crc32: int
) -> Pieces | Encoded:
    """Return the storage of an array in a deflate stream of source 0, header included."""
    if header.stop == header.start:
        return Pieces(())
    piece = Piece(whole_box(header.shape), 0, offset, length)
    codec = Codec("deflate", "F" if header.fortran else "C", header.swapped, header.start, crc32)
    return Encoded((piece,), header.shape, codec)
