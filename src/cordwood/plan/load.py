"""Load plans: which bytes of which source go where. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordwood.index import Leaf, Pieces

__all__ = ["ALIGNMENT", "LoadPlan", "Move", "Placement", "Want", "plan_load"]

ALIGNMENT = 64  # what jax.device_put asks of memory that it is to alias
OWN_BYTES = 4 << 20  # a leaf of this size has an allocation of its own: dropping it frees it
SLAB_BYTES = 16 << 20  # smaller ones share allocations of at most this
GAP_BYTES = 4096  # a gap between two leaves that is cheaper to read than to skip


class Move(NamedTuple):
    """Bytes [offset, offset + length) of a source go to a buffer, from `position` on."""

    source: int
    offset: int
    length: int
    buffer: int
    position: int


class Placement(NamedTuple):
    """Where a wanted leaf lies once the moves are done."""

    buffer: int
    position: int  # a multiple of ALIGNMENT
    length: int


class LoadPlan(NamedTuple):
    """Buffers to allocate, moves to make (sorted by source and offset), and what results."""

    buffers: tuple[int, ...]  # sizes in bytes
    moves: tuple[Move, ...]
    placements: tuple[Placement, ...]  # one for each wanted leaf, in the order asked


class Want(NamedTuple):
    """Bytes [start, stop) of a leaf as it is stored, in C order."""

    leaf: Leaf
    start: int
    stop: int


class _Range(NamedTuple):
    source: int
    offset: int
    length: int


def plan_load(wants: Sequence[Want]) -> LoadPlan:
    """Plan the reading of leaves into memory.

    Leaves of OWN_BYTES or more get a buffer each; smaller ones share slabs, in the order in
    which they lie in the file, so that neighbours come in by one move.
    """
    ranges = [_stored_ranges(want) for want in wants]
    order = sorted(range(len(wants)), key=lambda i: ranges[i][0] if ranges[i] else (0, 0, 0))
    buffers: list[int] = []
    moves: list[Move] = []
    placements = [Placement(0, 0, 0)] * len(wants)
    slab = _Slab(buffers, moves)
    for i in order:
        want = wants[i]
        length = want.stop - want.start
        if length >= OWN_BYTES:
            buffers.append(length)
            position = 0
            for part in ranges[i]:
                moves.append(Move(*part, len(buffers) - 1, position))
                position += part.length
            placements[i] = Placement(len(buffers) - 1, 0, length)
        else:
            placements[i] = slab.add(ranges[i], length)
    moves.sort()
    return LoadPlan(tuple(buffers), tuple(moves), tuple(placements))


class _Slab:
    """The shared buffer that is being filled with small leaves."""

    def __init__(self, buffers: list[int], moves: list[Move]) -> None:
        self.buffers = buffers
        self.moves = moves
        self.buffer = -1
        self.end = 0
        self.last = -1  # the move that ends at `end`, or -1

    def add(self, ranges: Sequence[_Range], length: int) -> Placement:
        position = -(-self.end // ALIGNMENT) * ALIGNMENT
        grown = self._joined(ranges, length)
        if grown is not None:
            position = grown
        elif self.buffer < 0 or position + length > SLAB_BYTES:
            self.buffers.append(0)
            self.buffer, self.end, self.last, position = len(self.buffers) - 1, 0, -1, 0
        if grown is None:
            end = position
            for part in ranges:
                self.moves.append(Move(*part, self.buffer, end))
                end += part.length
            self.last = len(self.moves) - 1 if ranges else -1
        self.end = position + length
        self.buffers[self.buffer] = self.end
        return Placement(self.buffer, position, length)

    def _joined(self, ranges: Sequence[_Range], length: int) -> int | None:
        """Where a leaf goes that the last move can bring along; None if it cannot."""
        if self.last < 0 or len(ranges) != 1:
            return None
        move = self.moves[self.last]
        source, offset, _ = ranges[0]
        gap = offset - (move.offset + move.length)
        position = move.position + offset - move.offset
        if (
            source != move.source
            or not 0 <= gap <= GAP_BYTES
            or position % ALIGNMENT
            or position + length > SLAB_BYTES
        ):
            return None
        self.moves[self.last] = move._replace(length=offset + length - move.offset)
        return position


def _stored_ranges(want: Want) -> list[_Range]:
    """Where the wanted bytes lie, in the order of the leaf's elements."""
    storage = want.leaf.storage
    if not isinstance(storage, Pieces):
        raise TypeError(f"{want.leaf.key_path} is stored inline: there is nothing to read")
    ranges = []
    begin = 0
    for piece in storage.pieces:
        end = begin + piece.length
        start, stop = max(begin, want.start), min(end, want.stop)
        if start < stop:
            ranges.append(_Range(piece.source, piece.offset + start - begin, stop - start))
        begin = end
    return ranges
