"""Load plans for leaves that are read as they are stored: neighbours become one move. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter, le

from cordwood.index import Inline, Leaf, Piece
from cordwood.plan.load_plan import ALIGNMENT, LoadPlan, Move, Placement

OWN_BUFFER_BYTES = 4 << 20  # a leaf of at least this size has its own buffer: dropping it frees it
SLAB_BYTES = 16 << 20  # smaller leaves share buffers of at most this size
GAP_BYTES = 4096  # a gap of at most this size between two leaves is cheaper to read than to skip


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
            moves += _moves_of_pieces(parts, len(buffers) - 1, 0)
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
        moves += _moves_of_pieces(parts, slab, position)
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


def _moves_of_pieces(parts: Sequence[Piece], buffer: int, position: int) -> list[Move]:
    moves = []
    for part in parts:
        if part.length:
            moves.append(Move(part.source, part.offset, part.length, buffer, position))
            position += part.length
    return moves


def first_byte(leaf: Leaf) -> tuple[int, int]:
    """Return where a leaf begins: its source and offset."""
    if isinstance(leaf.storage, Inline) or not leaf.storage.pieces:
        return 0, 0
    return leaf.storage.pieces[0][1:3]
