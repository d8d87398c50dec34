"""Load plans: which bytes of which source go where. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordwood.index import Leaf, Piece, Pieces

__all__ = ["ALIGNMENT", "LoadPlan", "Move", "Placement", "plan_load"]

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


class _Moving:
    """A move that may yet grow."""

    __slots__ = ("buffer", "length", "offset", "position", "source")

    def __init__(self, piece: Piece, buffer: int, position: int) -> None:
        self.source = piece.source
        self.offset = piece.offset
        self.length = piece.length
        self.buffer = buffer
        self.position = position


def plan_load(leaves: Sequence[Leaf]) -> LoadPlan:
    """Plan the reading of leaves that are stored as pieces.

    Leaves of OWN_BYTES or more get a buffer each; smaller ones share slabs, in the order in
    which they lie in the file, so that neighbours come in by one move.
    """
    pieces = [_pieces(leaf) for leaf in leaves]
    order = sorted(
        [
            (parts[0].source, parts[0].offset, i) if parts else (0, 0, i)
            for i, parts in enumerate(pieces)
        ]
    )
    buffers: list[int] = []
    moving: list[_Moving] = []
    placements = [Placement(0, 0, 0)] * len(leaves)
    slab = -1  # the buffer that small leaves share now
    end = 0  # how much of it is taken
    last: _Moving | None = None  # the move that ends there
    for source, offset, i in order:
        parts = pieces[i]
        length = parts[0].length if len(parts) == 1 else sum(part.length for part in parts)
        if length >= OWN_BYTES:
            buffers.append(length)
            moving += _moves(parts, len(buffers) - 1, 0)
            placements[i] = Placement(len(buffers) - 1, 0, length)
            continue
        if last is not None and len(parts) == 1:
            position = last.position + offset - last.offset
            gap = offset - last.offset - last.length
            if (
                source == last.source
                and 0 <= gap <= GAP_BYTES
                and not position % ALIGNMENT
                and position + length <= SLAB_BYTES
            ):
                end = position + length
                last.length = end - last.position
                buffers[slab] = end
                placements[i] = Placement(slab, position, length)
                continue
        position = -(-end // ALIGNMENT) * ALIGNMENT
        if slab < 0 or position + length > SLAB_BYTES:
            buffers.append(0)
            slab, position = len(buffers) - 1, 0
        moves = _moves(parts, slab, position)
        moving += moves
        last = moves[-1] if moves else None
        end = buffers[slab] = position + length
        placements[i] = Placement(slab, position, length)
    moving.sort(key=lambda move: (move.source, move.offset))
    plain = [Move(m.source, m.offset, m.length, m.buffer, m.position) for m in moving]
    return LoadPlan(tuple(buffers), tuple(plain), tuple(placements))


def _pieces(leaf: Leaf) -> tuple[Piece, ...]:
    if not isinstance(leaf.storage, Pieces):
        raise TypeError(f"{leaf.key_path} is stored inline: there is nothing to read")
    return leaf.storage.pieces


def _moves(parts: Sequence[Piece], buffer: int, position: int) -> list[_Moving]:
    moves = []
    for part in parts:
        if part.length:
            moves.append(_Moving(part, buffer, position))
            position += part.length
    return moves
