"""Load plans: which bytes of which source go where. Pure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LoadPlan", "Move", "Placement"]


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
