"""Checks of the stored pieces of a leaf before they are read. Pure."""

from __future__ import annotations

import math

from cordwood import dtypes
from cordwood.errors import FormatError, LimitError
from cordwood.index import Box, Encoded, Inline, Leaf, Piece, Pieces, Span
from cordwood.keypath import path_label
from cordwood.sharding.boxes import element_count, shape_of

MAX_CHUNK_RATIO = 1 << 16  # decoded size over stored size: more than any codec reaches


def check_pieces(leaf: Leaf) -> None:
    """Raise unless each piece lies within the leaf and has the length that its elements need.

    Raises:
        FormatError: a piece does not; the message names the leaf.
        LimitError: a chunk is too small to hold its elements, whatever the codec.
    """
    storage, name = leaf.storage, path_label(leaf.key_path)
    assert not isinstance(storage, Inline)
    item = dtypes.itemsize(leaf.dtype)
    if isinstance(storage, Pieces) and storage.encoding not in ("raw", "swapped"):
        raise TypeError(f"{name} is {storage.encoding}: it can only be read whole")
    spans = bool(storage.pieces) and isinstance(storage.pieces[0].where, Span)
    for piece in storage.pieces:
        where = piece.where
        if isinstance(where, Span):
            count, fits = where.stop - where.start, spans and isinstance(storage, Pieces)
        else:
            ends = zip(where.start, where.stop, leaf.shape, strict=False)
            fits = len(where.start) == len(where.stop) == len(leaf.shape) and not spans
            fits = fits and all(0 <= a <= b <= size for a, b, size in ends)
            count = element_count(where)
        if not fits:
            raise FormatError(f"{name}: {where} is no part of shape {list(leaf.shape)}")
        if isinstance(storage, Encoded):
            _check_chunk(leaf, piece, where, storage.chunk_shape, name=name)
        elif piece.length != count * item:
            raise FormatError(
                f"{name}: expected {count * item} bytes for {count} elements of "
                f"{leaf.dtype}, found {piece.length}"
            )


def _check_chunk(
    leaf: Leaf, piece: Piece, where: Span | Box, chunk_shape: tuple[int, ...], *, name: str
) -> None:
    assert isinstance(where, Box)
    if len(chunk_shape) != len(leaf.shape) or any(
        part > size for part, size in zip(shape_of(where), chunk_shape, strict=False)
    ):
        raise FormatError(
            f"{name}: {where} is no chunk of shape {list(chunk_shape)} of an array of "
            f"shape {list(leaf.shape)}"
        )
    size = math.prod(chunk_shape) * dtypes.itemsize(leaf.dtype)
    if size > piece.length * MAX_CHUNK_RATIO:
        raise LimitError(
            f"{name}: a chunk of {piece.length} bytes cannot hold {size} "
            f"(MAX_CHUNK_RATIO is {MAX_CHUNK_RATIO})"
        )
