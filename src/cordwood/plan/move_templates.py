"""Templates of load plans, one for all leaves of equal layout and equal requests. Pure.

A template treats each piece of a leaf as a source of its own, and each requested box as a buffer of
its own. So it also fits every other leaf whose pieces have the same boxes and lengths, wherever
these lie. A large model has thousands of leaves, but only a few different layouts.

If the intersection of a stored and a requested box is contiguous in both, its bytes are read
straight into place. Otherwise a range of the source is read once, and each requested box takes
its part of it by a strided copy (a scatter). The cost decides how much is read at once: bytes, in
whole blocks where blocks are verified, plus a price for each range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from cordwood import dtypes
from cordwood.errors import FormatError
from cordwood.index import Arranged, Box, Encoded, Inline, Leaf, Piece, Span
from cordwood.keypath import path_label
from cordwood.plan.load_plan import (
    BoxDestination,
    ContiguousRuns,
    EncodedChunk,
    Scatter,
    byte_ranges,
    byte_strides,
    contiguous_runs,
    is_tiling,
)
from cordwood.sharding.boxes import element_count, intersect, shape_of

RUN_BYTES = 64 << 10  # a shorter run is read together with its neighbours, and then copied

RANGE_PRICE_BYTES = 256 << 10  # the cost of one more range: bytes read in the same time


# Templates


class PieceToBox(NamedTuple):
    """A move out of a piece into a box, both by number.

    The offset counts from the start of the piece, the position from the start of the box.
    """

    piece: int
    offset: int
    length: int
    box: int
    position: int


class PieceRange(NamedTuple):
    """A range of a piece, which is read for a scatter: its array has those bytes at `position`."""

    piece: int
    offset: int
    length: int
    position: int


class BoxScatter(NamedTuple):
    """A scatter whose buffers are boxes, by number, and the ranges to read for it."""

    scatter: Scatter
    ranges: list[PieceRange]


class Template(NamedTuple):
    """A LoadPlan whose sources are pieces, by number, and whose buffers are boxes, by number."""

    moves: list[PieceToBox]
    scatters: list[BoxScatter]
    chunks: list[EncodedChunk]

    def append(self, other: Template, *, first_piece: int, position: int) -> None:
        """Add a template of other pieces, whose destinations are moved to a position."""
        for piece, offset, length, box, at in other.moves:
            self.moves.append(PieceToBox(piece + first_piece, offset, length, box, at + position))
        for scatter, ranges in other.scatters:
            moved = [each._replace(piece=each.piece + first_piece) for each in ranges]
            self.scatters.append(BoxScatter(_moved(scatter, position), moved))
        for chunk in other.chunks:
            scatter = _moved(chunk.scatter, position)
            self.chunks.append(chunk._replace(source=chunk.source + first_piece, scatter=scatter))


def _moved(scatter: Scatter, position: int) -> Scatter:
    parts = [each._replace(position=each.position + position) for each in scatter.parts]
    return scatter._replace(parts=tuple(parts))


class _Stored(NamedTuple):
    """A piece as a range of the bytes of an array in C order."""

    piece: int
    shape: tuple[int, ...]
    start: int  # in bytes of the array: the piece holds bytes start to stop
    stop: int


def whole_destinations(boxes: Sequence[Box], item_bytes: int) -> list[BoxDestination]:
    """Return the destinations of boxes that each fill a buffer in C order."""
    return [
        BoxDestination(box, number, 0, byte_strides(shape_of(box), item_bytes))
        for number, box in enumerate(boxes)
        if element_count(box)
    ]


def make_template(
    leaf: Leaf, parts: Sequence[BoxDestination], block_bytes: Sequence[int]
) -> Template:
    """Return the template for boxes of one leaf.

    Args:
        leaf: a leaf that `check_pieces` accepts.
        parts: the requested boxes of it, and their places in buffers.
        block_bytes: for each piece, the size of the blocks in which its source is verified.

    Raises:
        FormatError: the pieces do not cover the boxes exactly once; the message names the leaf.
    """
    storage = leaf.storage
    assert not isinstance(storage, Inline | Arranged)
    item = dtypes.itemsize(leaf.dtype)
    template = Template([], [], [])
    if not parts:
        return template
    read = partial(_read, template, item, block_bytes, are_disjoint=_are_disjoint(parts))
    if storage.pieces and isinstance(storage.pieces[0].where, Span):
        read(_spans(leaf, storage.pieces, item), parts)
        return template
    covered: list[list[Box]] = [[] for _ in parts]
    for number, piece in enumerate(storage.pieces):
        assert isinstance(piece.where, Box)
        common = list(_intersections(piece.where, parts, covered))
        if not common:
            continue
        if isinstance(storage, Encoded):
            scatter = Scatter(storage.chunk_shape, item, tuple(common))
            template.chunks.append(
                EncodedChunk(number, 0, piece.length, storage.codec, leaf.dtype, scatter)
            )
        else:
            read([_Stored(number, shape_of(piece.where), 0, piece.length)], common)
    for part, pieces in zip(parts, covered, strict=True):
        if not is_tiling(pieces, part.box):
            raise FormatError(
                f"{path_label(leaf.key_path)}: expected pieces that make up "
                f"{list(zip(part.box.start, part.box.stop, strict=True))}, found "
                f"{sum(map(element_count, pieces))} of {element_count(part.box)} elements "
                "in them, or some twice"
            )
    return template


def _read(
    template: Template,
    item: int,
    block_bytes: Sequence[int],
    stored: Sequence[_Stored],
    parts: Sequence[BoxDestination],
    *,
    are_disjoint: bool,
) -> None:
    """Add the reading of parts of an array that is stored as the ranges `stored`.

    With `are_disjoint`, no two boxes share bytes: shared ones are read once and copied.
    """
    shape = stored[0].shape
    steps = byte_strides(shape, item)
    runs = [
        contiguous_runs(
            shape_of(part.box), steps, part.steps, item_bytes=item, least_bytes=RUN_BYTES
        )
        for part in (parts if are_disjoint else ())
    ]
    direct = [each for each in runs if each is not None]
    if len(direct) == len(parts):
        for part, each in zip(parts, direct, strict=True):
            for piece in stored:
                template.moves.extend(_moves(piece, part, each, steps))
        return
    pieces: list[PieceRange] = []
    template.scatters.append(BoxScatter(Scatter(shape, item, tuple(parts)), pieces))
    boxes = [part.box for part in parts]
    ranges: dict[int, list[tuple[int, int]]] = {}
    for piece in stored:
        block = block_bytes[piece.piece]
        if block not in ranges:
            gap = block + RANGE_PRICE_BYTES
            ranges[block] = byte_ranges(shape, boxes, item_bytes=item, gap_bytes=gap)
        for a, b in ranges[block]:
            a, b = max(a, piece.start), min(b, piece.stop)
            if a < b:
                pieces.append(PieceRange(piece.piece, a - piece.start, b - a, a))


def _spans(leaf: Leaf, pieces: Sequence[Piece], item: int) -> list[_Stored]:
    stored = []
    end, name = 0, path_label(leaf.key_path)
    for number, piece in enumerate(pieces):
        assert isinstance(piece.where, Span)
        start, stop = piece.where
        if start != end:
            raise FormatError(f"{name}: expected element {end} next, found {start}")
        end = stop
        stored.append(_Stored(number, leaf.shape, start * item, stop * item))
    if end != math.prod(leaf.shape):
        raise FormatError(
            f"{name}: expected {math.prod(leaf.shape)} elements in its pieces, found {end}"
        )
    return stored


def _moves(
    piece: _Stored, part: BoxDestination, runs: ContiguousRuns, steps: tuple[int, ...]
) -> Iterator[PieceToBox]:
    """Yield a move for each run of a part, or for as much of it as the piece holds."""
    first = sum(map(int.__mul__, part.box.start, steps))
    for start, position in runs.starts:
        start += first
        a, b = max(start, piece.start), min(start + runs.length, piece.stop)
        if a < b:
            at = part.position + position + a - start
            yield PieceToBox(piece.piece, a - piece.start, b - a, part.buffer, at)


def _intersections(
    where: Box, parts: Sequence[BoxDestination], covered: Sequence[list[Box]]
) -> Iterator[BoxDestination]:
    """Yield the intersection of a stored box with each part, by indices of the stored box.

    Each intersection is added to the list of its part in `covered`, by indices of the leaf.
    """
    for part, boxes in zip(parts, covered, strict=True):
        common = intersect(where, part.box)
        if common is None:
            continue
        boxes.append(common)
        here = Box(
            tuple(map(int.__sub__, common.start, where.start)),
            tuple(map(int.__sub__, common.stop, where.start)),
        )
        yield BoxDestination(here, part.buffer, part.position_of(common.start), part.steps)


def _are_disjoint(parts: Sequence[BoxDestination]) -> bool:
    """Return True if no two parts share an element."""
    return not any(
        intersect(part.box, other.box) for i, part in enumerate(parts) for other in parts[:i]
    )
