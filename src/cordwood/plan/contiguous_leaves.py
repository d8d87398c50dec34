"""Leaves whose bytes are stored unchanged, in few contiguous ranges of their files. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from cordwood import dtypes
from cordwood.index import Leaf, Piece, Pieces, Span
from cordwood.plan.load_plan import Move
from cordwood.plan.split_arrays import element_range
from cordwood.sharding.boxes import is_contiguous, shape_of


class Extent(NamedTuple):
    """Bytes start to stop (half-open) of a leaf, in C order, and their place in a source."""

    start: int
    stop: int
    source: int
    offset: int  # in bytes, from the start of the source


def contiguous_extents(leaf: Leaf) -> list[Extent] | None:
    """Return the stored ranges of an array leaf, in the order of its bytes.

    Return None if its bytes have to be decoded, or if a piece holds elements that are not
    contiguous in the leaf: such a leaf is read by boxes.
    """
    storage = leaf.storage
    if not isinstance(storage, Pieces) or storage.encoding != "raw":
        return None
    item = dtypes.itemsize(leaf.dtype)
    extents = []
    for piece in storage.pieces:
        elements = _elements(piece, leaf.shape)
        if elements is None:
            return None
        start, stop = elements
        if (stop - start) * item != piece.length:
            return None
        if start == stop:  # a chunk without elements, as Flax has them
            continue
        extents.append(Extent(start * item, stop * item, piece.source, piece.offset))
    extents.sort()
    end = 0
    for extent in extents:
        if extent.start != end:
            return None
        end = extent.stop
    return extents if end == math.prod(leaf.shape) * item else None


def plan_extent_moves(extents: Sequence[Extent], start: int, stop: int) -> list[Move]:
    """Return the moves that fill one buffer with bytes start to stop of a leaf, by source."""
    moves = []
    first = bisect_right(extents, start, key=lambda extent: extent.stop)
    for extent in extents[first:]:
        a, b = max(start, extent.start), min(stop, extent.stop)
        if a >= b:
            break
        moves.append(Move(extent.source, extent.offset + a - extent.start, b - a, 0, a - start))
    return sorted(moves)


def _elements(piece: Piece, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the elements of a leaf that a piece holds; None if they are not contiguous."""
    where = piece.where
    if isinstance(where, Span):
        return where
    if len(where.start) != len(shape) or not is_contiguous(shape_of(where), shape):
        return None
    ends = zip(where.start, where.stop, shape, strict=True)
    return element_range(where, shape) if all(0 <= a <= b <= n for a, b, n in ends) else None
