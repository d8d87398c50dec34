"""Load plans: which bytes of which source go where. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter, le
from typing import NamedTuple, TypeAlias

from cordwood.index import Leaf, Piece, Pieces
from cordwood.plan.scatter import EncodedChunk, Scatter

ALIGNMENT = 64  # what jax.device_put asks of memory that it is to alias
OWN_BUFFER_BYTES = 4 << 20  # a leaf of this size has an allocation of its own: dropping it frees it
SLAB_BYTES = 16 << 20  # smaller ones share allocations of at most this
GAP_BYTES = 4096  # a gap between two leaves that is cheaper to read than to skip


class Move(NamedTuple):
    """Bytes [offset, offset + length) of a source go to a buffer, from `position` on.

    A buffer below 0 is none: the bytes are those of spread `~buffer`, from `position` on.
    """

    source: int
    offset: int
    length: int
    buffer: int
    position: int


# Where a wanted leaf, or box of one, lies once the moves are done: buffer, position (a multiple
# of ALIGNMENT), length. A bare tuple, which takes a fifth of the time of a named one.
Placement: TypeAlias = tuple[int, int, int]


class LoadPlan(NamedTuple):
    """Buffers to allocate, moves to make (sorted by source and offset), and what results."""

    buffers: tuple[int, ...]  # sizes in bytes
    moves: tuple[Move, ...]
    placements: tuple[Placement, ...]  # one for each wanted leaf or box, in the order asked
    scatters: tuple[Scatter, ...] = ()  # what moves to no buffer stand for
    chunks: tuple[EncodedChunk, ...] = ()


def plan_load(leaves: Sequence[Leaf]) -> LoadPlan:
    """Plan the reading of whole leaves that are stored as pieces; as `plan_pieces`."""
    return plan_pieces(_pieces(leaves))


def plan_pieces(pieces: Sequence[Sequence[Piece]]) -> LoadPlan:
    """Plan the reading of what is stored in so many pieces, one after another.

    What takes OWN_BYTES or more gets a buffer of its own; the rest shares slabs, in the order in
    which it lies in the files, so that neighbours come in by one move.
    """
    buffers: list[int] = []
    moves: list[Move] = []
    placements: list[Placement] = [(0, 0, 0)] * len(pieces)
    slab = -1  # the buffer that small leaves share now
    end = 0  # how much of it is taken
    # The move that ends there and may yet grow: its source, where it starts and stops, and what
    # to add to an offset for the position in the slab.
    source, start, stop, shift = -1, 0, 0, 0
    for i in _file_order(pieces):
        parts = pieces[i]
        if len(parts) == 1:
            _, its_source, offset, length = parts[0]
            position = offset + shift
            if (
                its_source == source
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
            source, start, size, _, place = moves.pop()
            stop, shift = start + size, place - start
        end = position + length
        placements[i] = (slab, position, length)
    if source >= 0:
        moves.append(Move(source, start, stop - start, slab, start + shift))
    if slab >= 0:
        buffers[slab] = end
    moves.sort(key=itemgetter(0, 1))
    return LoadPlan(tuple(buffers), tuple(moves), tuple(placements))


def _pieces(leaves: Sequence[Leaf]) -> list[tuple[Piece, ...]]:
    storages = list(map(itemgetter(4), leaves))
    if set(map(type, storages)) - {Pieces}:
        other = next(leaf for leaf in leaves if type(leaf.storage) is not Pieces)
        raise TypeError(f"{other.key_path} is not stored as raw pieces: there is nothing to move")
    return list(map(itemgetter(0), storages))


def _file_order(pieces: Sequence[Sequence[Piece]]) -> Sequence[int]:
    """The positions of all, sorted by where their first pieces lie."""
    places = [parts[0][1:3] if parts else (0, 0) for parts in pieces]
    if all(map(le, places, places[1:])):
        return range(len(pieces))
    return sorted(range(len(pieces)), key=places.__getitem__)


def _moves(parts: Sequence[Piece], buffer: int, position: int) -> list[Move]:
    moves = []
    for part in parts:
        if part.length:
            moves.append(Move(part.source, part.offset, part.length, buffer, position))
            position += part.length
    return moves
