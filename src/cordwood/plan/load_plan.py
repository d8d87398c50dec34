"""Load plans: the byte ranges to read from sources, and where their bytes go. Pure.

A move copies bytes to a buffer. A scatter makes strided copies of boxes of a stored array, out of
the bytes that were read. An extent is a contiguous range that holds bytes of a leaf unchanged.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter, le
from typing import NamedTuple, TypeAlias

from cordwood import dtypes
from cordwood.index import Box, Codec, Leaf, Piece, Pieces, Span
from cordwood.plan.byte_ranges import byte_strides, flat_boxes
from cordwood.plan.split_arrays import element_range
from cordwood.sharding.boxes import intersect, is_contiguous, shape_of


class BoxDestination(NamedTuple):
    """A box of a stored array, and the place in a buffer to copy it to."""

    box: Box
    buffer: int
    position: int  # in bytes, of the box's first element
    steps: tuple[int, ...]  # the strides in the buffer, in bytes


class Scatter(NamedTuple):
    """A stored array, in C order, and the boxes of it to copy to buffers."""

    shape: tuple[int, ...]
    item_bytes: int
    parts: tuple[BoxDestination, ...]


class EncodedChunk(NamedTuple):
    """A range of a source to decode; the result is the whole array of `scatter`."""

    source: int
    offset: int
    length: int
    codec: Codec
    dtype: str
    scatter: Scatter


class StridedCopy(NamedTuple):
    """One strided copy of items of `item_bytes` each."""

    item_bytes: int
    shape: tuple[int, ...]
    position: int  # of the first item, in the bytes that were read
    steps: tuple[int, ...]
    buffer: int
    target_position: int
    target_steps: tuple[int, ...]


def strided_copies(scatter: Scatter, start: int, stop: int) -> Iterator[StridedCopy]:
    """Yield the copies to make from bytes start to stop of a stored array.

    The range may begin or end within an element. No copy has more axes than the array (numpy has
    at most 64): an axis for the bytes of an element is added only where axes of a single index
    are left out.
    """
    item = scatter.item_bytes
    steps = (*byte_strides(scatter.shape, item), 1)
    for cell in flat_boxes((*scatter.shape, item), start, stop):
        whole_items = cell.start[-1] == 0 and cell.stop[-1] == item
        elements = Box(cell.start[:-1], cell.stop[:-1])
        for part in scatter.parts:
            common = intersect(elements, part.box)
            if common is None:
                continue
            position = sum(map(int.__mul__, common.start, steps)) - start
            target = part.position
            for at, begin, step in zip(common.start, part.box.start, part.steps, strict=True):
                target += (at - begin) * step
            if whole_items:
                shape, source_steps, target_steps = shape_of(common), steps[:-1], part.steps
            else:
                cut = cell.start[-1]
                position, target = position + cut, target + cut
                extents = [*shape_of(common), cell.stop[-1] - cut]
                kept = [axis for axis, extent in enumerate(extents) if extent > 1]
                shape = tuple([extents[axis] for axis in kept])
                source_steps = tuple([steps[axis] for axis in kept])
                target_steps = tuple([(*part.steps, 1)[axis] for axis in kept])
            size = item if whole_items else 1
            yield StridedCopy(
                size, shape, position, source_steps, part.buffer, target, target_steps
            )


ALIGNMENT = 64  # jax.device_put aliases only memory that is aligned so
OWN_BUFFER_BYTES = 4 << 20  # a leaf of at least this size has its own buffer: dropping it frees it
SLAB_BYTES = 16 << 20  # smaller leaves share buffers of at most this size
GAP_BYTES = 4096  # a gap of at most this size between two leaves is cheaper to read than to skip


class Move(NamedTuple):
    """A copy of bytes [offset, offset + length) of a source to a buffer, from `position` on.

    A buffer below 0 stands for a scatter (see `scatter_buffer`): the bytes are those of its
    stored array, from `position` on.
    """

    source: int
    offset: int
    length: int
    buffer: int
    position: int


def scatter_buffer(number: int) -> int:
    """Return the negative buffer number that stands for scatter `number`; its own inverse."""
    return ~number


# The place of a requested leaf or box once the moves are done: buffer, position (a multiple of
# ALIGNMENT), length. A bare tuple, which takes a fifth of the time of a named one.
Placement: TypeAlias = tuple[int, int, int]


class LoadPlan(NamedTuple):
    """Buffers to allocate, moves to make (sorted by source and offset), and where leaves lie."""

    buffers: tuple[int, ...]  # sizes in bytes
    moves: tuple[Move, ...]
    placements: tuple[Placement, ...]  # one for each requested leaf or box, in their order
    scatters: tuple[Scatter, ...] = ()  # the targets of moves with a buffer below 0
    chunks: tuple[EncodedChunk, ...] = ()


def plan_pieces(pieces: Sequence[Sequence[Piece]]) -> LoadPlan:
    """Plan the reading of items that are each stored as one or more pieces.

    An item of OWN_BUFFER_BYTES or more gets its own buffer. Smaller ones share buffers (slabs),
    in the order of their bytes in the files, so that neighbours are read by one move.
    """
    buffers: list[int] = []
    moves: list[Move] = []
    placements: list[Placement] = [(0, 0, 0)] * len(pieces)
    slab = -1  # the buffer that small items share now
    end = 0  # the used size of it
    # The last move, which may still grow: its source, its start and stop in the source, and the
    # number to add to an offset for the position in the slab.
    source, start, stop, shift = -1, 0, 0, 0
    for i in _file_order(pieces):
        parts = pieces[i]
        if len(parts) == 1:
            _, part_source, offset, length = parts[0]
            position = offset + shift
            if (
                part_source == source
                and 0 <= offset - stop <= GAP_BYTES
                and not position % ALIGNMENT
                and length < OWN_BUFFER_BYTES
                and position + length <= SLAB_BYTES
            ):
                stop = offset + length
                end = position + length
                placements[i] = (slab, position, length)
                continue
        else:
            length = sum([part.length for part in parts])
        if length >= OWN_BUFFER_BYTES:
            buffers.append(length)
            moves += _moves(parts, len(buffers) - 1, 0)
            placements[i] = (len(buffers) - 1, 0, length)
            continue
        if source >= 0:
            moves.append(Move(source, start, stop - start, slab, start + shift))
            source = -1
        position = -(-end // ALIGNMENT) * ALIGNMENT
        if slab < 0 or position + length > SLAB_BYTES:
            if slab >= 0:
                buffers[slab] = end
            buffers.append(0)
            slab, position = len(buffers) - 1, 0
        moves += _moves(parts, slab, position)
        if length:
            source, start, size, _, last_position = moves.pop()
            stop, shift = start + size, last_position - start
        end = position + length
        placements[i] = (slab, position, length)
    if source >= 0:
        moves.append(Move(source, start, stop - start, slab, start + shift))
    if slab >= 0:
        buffers[slab] = end
    moves.sort(key=itemgetter(0, 1))
    return LoadPlan(tuple(buffers), tuple(moves), tuple(placements))


def _file_order(pieces: Sequence[Sequence[Piece]]) -> Sequence[int]:
    """Return the positions of all items, sorted by source and offset of their first pieces."""
    starts = [parts[0][1:3] if parts else (0, 0) for parts in pieces]
    if all(map(le, starts, starts[1:])):
        return range(len(pieces))
    return sorted(range(len(pieces)), key=starts.__getitem__)


def _moves(parts: Sequence[Piece], buffer: int, position: int) -> list[Move]:
    moves = []
    for part in parts:
        if part.length:
            moves.append(Move(part.source, part.offset, part.length, buffer, position))
            position += part.length
    return moves


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
