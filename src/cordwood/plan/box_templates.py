"""Templates: plans for reading boxes of one leaf, which fit all leaves of equal layout. Pure.

A template treats each piece of a leaf as a source of its own, and each requested box as a buffer
of its own. So it also fits every other leaf whose pieces have the same boxes and lengths,
wherever these lie. A large model has thousands of leaves, but only a few different layouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cordwood import dtypes
from cordwood.errors import FormatError, LimitError
from cordwood.index import Box, Encoded, Inline, Leaf, Piece, Pieces, Span
from cordwood.plan.byte_ranges import (
    ContiguousRuns,
    byte_ranges,
    byte_strides,
    contiguous_runs,
    is_tiling,
)
from cordwood.plan.load_plan import (
    BoxDestination,
    EncodedChunk,
    Move,
    Scatter,
    scatter_buffer,
)
from cordwood.sharding.boxes import element_count, intersect, shape_of

RUN_BYTES = 64 << 10  # a shorter run is read together with its neighbours, and then copied
MAX_CHUNK_RATIO = 1 << 16  # decoded size over stored size: more than any codec reaches


class Template(NamedTuple):
    """A LoadPlan whose sources are pieces, by number, and whose buffers are boxes, by number.

    Offsets count from the start of the piece, positions from the start of the box.
    """

    moves: tuple[Move, ...]
    scatters: tuple[Scatter, ...]
    chunks: tuple[EncodedChunk, ...]


class _Stored(NamedTuple):
    """A piece as a range of the bytes of an array in C order."""

    piece: int
    shape: tuple[int, ...]
    start: int  # in bytes of the array: the piece holds bytes start to stop
    stop: int


def make_template(
    leaf: Leaf,
    boxes: Sequence[Box],
    *,
    name: str,
    block_bytes: Sequence[int],
    price_bytes: int,
) -> Template:
    """Return the template for boxes of one leaf.

    Args:
        leaf: a leaf that `check_pieces` accepts.
        boxes: the requested boxes of it.
        name: the name of the leaf for errors.
        block_bytes: for each piece, the size of the blocks in which its source is verified.
        price_bytes: the cost of one more range: the bytes that could be read in the same time.

    Raises:
        FormatError: the pieces do not cover the boxes exactly once.
    """
    storage = leaf.storage
    assert not isinstance(storage, Inline)
    item = dtypes.itemsize(leaf.dtype)
    parts = [
        BoxDestination(box, number, 0, byte_strides(shape_of(box), item))
        for number, box in enumerate(boxes)
        if element_count(box)
    ]
    work = _TemplateBuilder(item, block_bytes, price_bytes, disjoint=_are_disjoint(parts))
    if not parts:
        return work.template()
    if storage.pieces and isinstance(storage.pieces[0].where, Span):
        work.read(_spans(leaf, storage.pieces, item, name=name), parts)
        return work.template()
    covered: list[list[Box]] = [[] for _ in parts]
    for number, piece in enumerate(storage.pieces):
        assert isinstance(piece.where, Box)
        common = list(_intersections(piece.where, parts, covered))
        if not common:
            continue
        if isinstance(storage, Encoded):
            scatter = Scatter(storage.chunk_shape, item, tuple(common))
            work.chunks.append(
                EncodedChunk(number, 0, piece.length, storage.codec, leaf.dtype, scatter)
            )
        else:
            work.read([_Stored(number, shape_of(piece.where), 0, piece.length)], common)
    for part, pieces in zip(parts, covered, strict=True):
        if not is_tiling(pieces, part.box):
            raise FormatError(
                f"{name}: expected pieces that make up "
                f"{list(zip(part.box.start, part.box.stop, strict=True))}, found "
                f"{sum(map(element_count, pieces))} of {element_count(part.box)} elements "
                "in them, or some twice"
            )
    return work.template()


class _TemplateBuilder:
    """A template under construction."""

    def __init__(
        self, item: int, block_bytes: Sequence[int], price_bytes: int, *, disjoint: bool
    ) -> None:
        self.item = item
        self.block_bytes = block_bytes
        self.price_bytes = price_bytes
        self.disjoint = disjoint  # no two boxes share bytes: shared ones are read once and copied
        self.moves: list[Move] = []
        self.scatters: list[Scatter] = []
        self.chunks: list[EncodedChunk] = []

    def template(self) -> Template:
        return Template(tuple(self.moves), tuple(self.scatters), tuple(self.chunks))

    def read(self, stored: Sequence[_Stored], parts: Sequence[BoxDestination]) -> None:
        """Add the reading of parts of an array that is stored as the ranges `stored`."""
        item, shape = self.item, stored[0].shape
        runs = [_runs(part, shape, item) for part in parts] if self.disjoint else [None]
        direct = [each for each in runs if each is not None]
        if len(direct) == len(runs):
            for part, each in zip(parts, direct, strict=True):
                for piece in stored:
                    self.moves += _moves(piece, part, each, item)
            return
        scatter = scatter_buffer(len(self.scatters))
        self.scatters.append(Scatter(shape, item, tuple(parts)))
        boxes = [part.box for part in parts]
        ranges: dict[int, list[tuple[int, int]]] = {}
        for piece in stored:
            block = self.block_bytes[piece.piece]
            if block not in ranges:
                gap = block + self.price_bytes
                ranges[block] = byte_ranges(shape, boxes, item_bytes=item, gap_bytes=gap)
            for a, b in ranges[block]:
                a, b = max(a, piece.start), min(b, piece.stop)
                if a < b:
                    self.moves.append(Move(piece.piece, a - piece.start, b - a, scatter, a))


def _spans(leaf: Leaf, pieces: Sequence[Piece], item: int, *, name: str) -> list[_Stored]:
    stored = []
    end = 0
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


def _runs(part: BoxDestination, shape: tuple[int, ...], item: int) -> ContiguousRuns | None:
    steps = byte_strides(shape, item)
    extent = shape_of(part.box)
    return contiguous_runs(extent, steps, part.steps, item_bytes=item, least_bytes=RUN_BYTES)


def _moves(piece: _Stored, part: BoxDestination, runs: ContiguousRuns, item: int) -> Iterator[Move]:
    """Yield a move for each run of a part, or for as much of it as the piece holds."""
    first = sum(map(int.__mul__, part.box.start, byte_strides(piece.shape, item)))
    for start, position in runs.starts:
        start += first
        a, b = max(start, piece.start), min(start + runs.length, piece.stop)
        if a < b:
            at = part.position + position + a - start
            yield Move(piece.piece, a - piece.start, b - a, part.buffer, at)


def check_pieces(leaf: Leaf, *, name: str) -> None:
    """Raise unless each piece lies within the leaf and has the length that its elements need.

    Raises:
        FormatError: a piece does not; the message names the leaf.
        LimitError: a chunk is too small to hold its elements, whatever the codec.
    """
    storage = leaf.storage
    assert not isinstance(storage, Inline)
    item = dtypes.itemsize(leaf.dtype)
    if isinstance(storage, Pieces) and storage.encoding not in ("raw", "swapped"):
        raise TypeError(f"{name} is {storage.encoding}: it can only be read whole")
    spans = bool(storage.pieces) and isinstance(storage.pieces[0].where, Span)
    for piece in storage.pieces:
        where = piece.where
        if isinstance(where, Span):
            count, fits = where.stop - where.start, spans and isinstance(storage, Pieces)
        else:
            ends = zip(where.start, where.stop, leaf.shape, strict=False)
            fits = len(where.start) == len(where.stop) == len(leaf.shape) and not spans
            fits = fits and all(0 <= a <= b <= size for a, b, size in ends)
            count = element_count(where)
        if not fits:
            raise FormatError(f"{name}: {where} is no part of shape {list(leaf.shape)}")
        if isinstance(storage, Encoded):
            _check_chunk(leaf, piece, where, storage.chunk_shape, name=name)
        elif piece.length != count * item:
            raise FormatError(
                f"{name}: expected {count * item} bytes for {count} elements of "
                f"{leaf.dtype}, found {piece.length}"
            )


def _check_chunk(
    leaf: Leaf, piece: Piece, where: Span | Box, chunk_shape: tuple[int, ...], *, name: str
) -> None:
    assert isinstance(where, Box)
    if len(chunk_shape) != len(leaf.shape) or any(
        part > size for part, size in zip(shape_of(where), chunk_shape, strict=False)
    ):
        raise FormatError(
            f"{name}: {where} is no chunk of shape {list(chunk_shape)} of an array of "
            f"shape {list(leaf.shape)}"
        )
    size = math.prod(chunk_shape) * dtypes.itemsize(leaf.dtype)
    if size > piece.length * MAX_CHUNK_RATIO:
        raise LimitError(
            f"{name}: a chunk of {piece.length} bytes cannot hold {size} "
            f"(MAX_CHUNK_RATIO is {MAX_CHUNK_RATIO})"
        )


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
        position = part.position
        for at, begin, step in zip(common.start, part.box.start, part.steps, strict=True):
            position += (at - begin) * step
        here = Box(
            tuple(map(int.__sub__, common.start, where.start)),
            tuple(map(int.__sub__, common.stop, where.start)),
        )
        yield BoxDestination(here, part.buffer, position, part.steps)


def _are_disjoint(parts: Sequence[BoxDestination]) -> bool:
    """Return True if no two parts share an element."""
    return not any(
        intersect(part.box, other.box) for i, part in enumerate(parts) for other in parts[:i]
    )
