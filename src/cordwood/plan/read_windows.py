"""The windows in which an arranged leaf is read from start to end. Pure.

A window of a transposed or stacked leaf may need a little from all over the sources, so that each
window reads much more than it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cordwood import dtypes
from cordwood.index import Arranged, Box, Inline, Leaf
from cordwood.plan.arrangements import arranged_sources, dtype_as_stored, is_read_in_place
from cordwood.plan.load_boxes import plan_boxes
from cordwood.plan.split_arrays import WINDOW_BYTES, split_array

# Sizes of windows in bytes, and limits for the bytes read for each byte of one: little more than it
# has, or a few times as much. Reading more often is slower than writing a temporary file.
_LIMITS = ((WINDOW_BYTES, 1.25), (96 << 20, 4.1))


def choose_window_bytes(
    leaf: Leaf,
    *,
    rows: int,
    block_bytes: Sequence[int],
    limits: Sequence[tuple[int, float]] = _LIMITS,
) -> int | None:
    """Return the size of the windows in which an arranged leaf is read; None if it is to be copied.

    Args:
        leaf: the leaf, with its pieces.
        rows: windows begin at multiples of this along the first axis.
        block_bytes: for each source, the size of the blocks that are verified as wholes, or 0.
        limits: sizes of windows to try, and the most that is read for each byte of one.
    """
    assert isinstance(leaf.storage, Arranged)
    item, stored_item = dtypes.itemsize(leaf.dtype), dtypes.itemsize(dtype_as_stored(leaf))
    for size_bytes, most in limits:
        windows = list(split_array(leaf.shape, item_bytes=item, limit_bytes=size_bytes, rows=rows))
        some = {windows[0], windows[len(windows) // 2], windows[-1]}
        reads = [bytes_to_read(leaf, box, block_bytes=block_bytes) for box in some]
        total = sum(reads) / len(reads) * len(windows)
        if total <= most * math.prod(leaf.shape) * stored_item:
            return size_bytes
    return limits[-1][0] if leaf.storage.copies else None  # which are compared window by window


def bytes_to_read(leaf: Leaf, box: Box, *, block_bytes: Sequence[int]) -> int:
    """Return how many bytes of files are read for a box of an arranged leaf.

    Args:
        leaf: the leaf, with its pieces.
        box: the box.
        block_bytes: for each source, the size of the blocks that are verified as wholes, or 0.
    """
    assert isinstance(leaf.storage, Arranged)
    plan = plan_boxes([leaf], {0: [box]}, block_bytes=block_bytes)
    total = sum([chunk.length for chunk in plan.chunks])
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
