"""The windows in which an arranged leaf is read from start to end. Pure.

A window of a transposed or stacked leaf may need a little from all over the sources, so that each
window reads much more than it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from cordwood import dtypes
from cordwood.index import Arranged, Box, Encoded, Inline, Leaf
from cordwood.plan.arrangements import (
    arranged_sources,
    dtype_as_stored,
    is_read_in_place,
    split_axes,
)
from cordwood.plan.load_boxes import plan_boxes
from cordwood.plan.split_arrays import WINDOW_BYTES, split_array

# Sizes of windows in bytes, and limits for the bytes read for each byte of one: little more than it
# has, or a few times as much. Reading more often is slower than writing a temporary file.
_LIMITS = ((WINDOW_BYTES, 1.25), (96 << 20, 4.1))
_MOST_OF_SLOW = 1.25  # chunks are not decoded, and objects not fetched, several times


class ReadWindows(NamedTuple):
    """The size of windows in bytes, which begin at multiples of a number of rows."""

    size_bytes: int
    rows: int


def choose_windows(
    leaf: Leaf,
    *,
    block_bytes: Sequence[int],
    is_distant: bool = False,
    limits: Sequence[tuple[int, float]] = _LIMITS,
) -> ReadWindows | None:
    """Return the windows in which an arranged leaf is read; None if it is to be copied.

    Args:
        leaf: the leaf, with its pieces.
        block_bytes: for each source, the size of the blocks that are verified as wholes, or 0.
        is_distant: True if its sources are read from a store.
        limits: sizes of windows to try, and the most that is read for each byte of one.
    """
    storage = leaf.storage
    assert isinstance(storage, Arranged)
    item, stored_item = dtypes.itemsize(leaf.dtype), dtypes.itemsize(dtype_as_stored(leaf))
    is_slow = is_distant or any(isinstance(part.leaf.storage, Encoded) for part in storage.parts)
    chunk_rows = _chunk_rows(leaf)
    for size_bytes, most in limits:
        most = min(most, _MOST_OF_SLOW) if is_slow else most
        rows = chunk_rows if chunk_rows * math.prod(leaf.shape[1:]) * item <= size_bytes else 1
        windows = list(split_array(leaf.shape, item_bytes=item, limit_bytes=size_bytes, rows=rows))
        some = {windows[0], windows[len(windows) // 2], windows[-1]}
        reads = [bytes_to_read(leaf, box, block_bytes=block_bytes) for box in some]
        total = sum(reads) / len(reads) * len(windows)
        if total <= most * math.prod(leaf.shape) * stored_item:
            return ReadWindows(size_bytes, rows)
    # Copies are compared window by window.
    return ReadWindows(limits[-1][0], 1) if storage.copies else None


def _chunk_rows(leaf: Leaf) -> int:
    """Return how many indices of the first axis of an arranged leaf a chunk of its sources has."""
    storage = leaf.storage
    assert isinstance(storage, Arranged)
    rows = 1
    for part in storage.parts:
        source = part.leaf.storage
        if isinstance(source, Encoded) and source.chunk_shape and 0 in part.axes:
            axis = part.axes.index(0)
            groups = split_axes(part.leaf.shape, part.shape)
            stored = next((n for n, group in enumerate(groups) if axis in group), 0)
            rows = max(rows, min(source.chunk_shape[stored], leaf.shape[0]))
    return rows


def bytes_to_read(leaf: Leaf, box: Box, *, block_bytes: Sequence[int]) -> int:
    """Return how many bytes are read from files or decoded for a box of an arranged leaf.

    Args:
        leaf: the leaf, with its pieces.
        box: the box.
        block_bytes: for each source, the size of the blocks that are verified as wholes, or 0.
    """
    assert isinstance(leaf.storage, Arranged)
    plan = plan_boxes([leaf], {0: [box]}, block_bytes=block_bytes)
    decoded = [chunk.scatter for chunk in plan.chunks]
    total = sum([math.prod(each.shape) * each.item_bytes for each in decoded])
    for source in arranged_sources(leaf):  # those that are read whole, for any box
        if not is_read_in_place(source) and not isinstance(source.storage, Inline):
            total += sum([piece.length for piece in source.storage.pieces])
    last_source, end = -1, 0
    for source_number, offset, length, _, _ in plan.moves:
        block = block_bytes[source_number] or 1
        if source_number != last_source:
            last_source, end = source_number, 0
        start, stop = offset // block * block, -(-(offset + length) // block) * block
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total
