"""How the pieces of a leaf make up the boxes that are wanted of it. Pure.

A leaf is thought through as if each of its pieces were a source of its own and each wanted box
a buffer of its own. The answer holds for every leaf that is cut alike, wherever its pieces lie: of
the thousands of leaves of a large model few differ in that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
from cordwood.plan.load_plan import Move
from cordwood.plan.scatter import BoxDestination, Codec, EncodedChunk, Scatter
from cordwood.sharding.boxes import element_count, intersect, shape_of

RUN_BYTES = 64 << 10  # a shorter run is read with its neighbours, and copied
MAX_CHUNK_RATIO = 1 << 16  # more than any codec's: how much larger a chunk may be decoded


class Template(NamedTuple):
    """As a LoadPlan, but sources are numbers of pieces, buffers are numbers of boxes, and all
    offsets and positions count from where those begin."""

    moves: tuple[Move, ...]
    scatters: tuple[Scatter, ...]
    chunks: tuple[EncodedChunk, ...]


class _Stored(NamedTuple):
    """A piece as a range of the bytes of an array in C order."""

    piece: int
    shape: tuple[int, ...]
    start: int  # which of the array's bytes the piece holds
    stop: int


def make_template(
    leaf: Leaf,
    boxes: Sequence[Box],
    *,
    name: str,
    block_bytes: Sequence[int],
    price_bytes: int,
    codecs: Mapping[str, Codec],
) -> Template:
    """Think one leaf through.

    Args:
        leaf: a leaf that `check_pieces` has passed.
        boxes: what is wanted of it.
        name: what it is called in errors.
        block_bytes: of each piece, the size of the blocks of its source that are checked whole.
        price_bytes: what could be read in the time that another range takes.
        codecs: what the codecs of encoded leaves mean.

    Raises FormatError where the pieces do not make up the boxes.
    """
    storage = leaf.storage
    assert not isinstance(storage, Inline)
    item = dtypes.itemsize(leaf.dtype)
    parts = [
        BoxDestination(box, number, 0, byte_strides(shape_of(box), item))
        for number, box in enumerate(boxes)
        if element_count(box)
    ]
    work = _Work(item, block_bytes, price_bytes, apart=_are_apart(parts))
    if not parts:
        return work.template()
    if storage.pieces and isinstance(storage.pieces[0].where, Span):
        work.read(_spans(leaf, storage.pieces, item, name=name), parts)
        return work.template()
    covered: list[list[Box]] = [[] for _ in parts]
    for number, piece in enumerate(storage.pieces):
        assert isinstance(piece.where, Box)
        within = list(_common(piece.where, parts, covered))
        if not within:
            continue
        if isinstance(storage, Encoded):
            spread = Scatter(storage.chunk_shape, item, tuple(within))
            codec = codecs[storage.codec]
            work.chunks.append(EncodedChunk(number, 0, piece.length, codec, leaf.dtype, spread))
        else:
            work.read([_Stored(number, shape_of(piece.where), 0, piece.length)], within)
    for part, found in zip(parts, covered, strict=True):
        if not is_tiling(found, part.box):
            raise FormatError(
                f"{name}: expected pieces that make up "
                f"{list(zip(part.box.start, part.box.stop, strict=True))}, found "
                f"{sum(map(element_count, found))} of {element_count(part.box)} elements "
                "in them, or some twice"
            )
    return work.template()


class _Work:
    """A template that grows."""

    def __init__(
        self, item: int, block_bytes: Sequence[int], price_bytes: int, *, apart: bool
    ) -> None:
        self.item = item
        self.block_bytes = block_bytes
        self.price_bytes = price_bytes
        self.apart = apart  # bytes that two boxes want are read once and copied
        self.moves: list[Move] = []
        self.scatters: list[Scatter] = []
        self.chunks: list[EncodedChunk] = []

    def template(self) -> Template:
        return Template(tuple(self.moves), tuple(self.scatters), tuple(self.chunks))

    def read(self, stored: Sequence[_Stored], parts: Sequence[BoxDestination]) -> None:
        """Read parts of an array of which `stored` are ranges."""
        item, shape = self.item, stored[0].shape
        found = [_runs(part, shape, item) for part in parts] if self.apart else [None]
        straight = [each for each in found if each is not None]
        if len(straight) == len(found):
            for part, each in zip(parts, straight, strict=True):
                for piece in stored:
                    self.moves += _moves(piece, part, each, item)
            return
        spread = ~len(self.scatters)
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
                    self.moves.append(Move(piece.piece, a - piece.start, b - a, spread, a))


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


def _moves(
    piece: _Stored, part: BoxDestination, found: ContiguousRuns, item: int
) -> Iterator[Move]:
    """The runs of a part as moves, so far as the piece holds them."""
    first = sum(map(int.__mul__, part.box.start, byte_strides(piece.shape, item)))
    for start, position in found.starts:
        start += first
        a, b = max(start, piece.start), min(start + found.length, piece.stop)
        if a < b:
            at = part.position + position + a - start
            yield Move(piece.piece, a - piece.start, b - a, part.buffer, at)


def check_pieces(leaf: Leaf, *, name: str) -> None:
    """Require that each piece lies within the leaf and is as long as what it holds.

    Raises:
        FormatError: one does not; names the leaf.
        LimitError: a chunk is too small to hold what it should.
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


def _common(
    where: Box, parts: Sequence[BoxDestination], covered: Sequence[list[Box]]
) -> Iterator[BoxDestination]:
    """What a stored box holds of each part, by its own indices; noted in `covered`."""
    for part, found in zip(parts, covered, strict=True):
        common = intersect(where, part.box)
        if common is None:
            continue
        found.append(common)
        position = part.position
        for at, begin, step in zip(common.start, part.box.start, part.steps, strict=True):
            position += (at - begin) * step
        here = Box(
            tuple(map(int.__sub__, common.start, where.start)),
            tuple(map(int.__sub__, common.stop, where.start)),
        )
        yield BoxDestination(here, part.buffer, position, part.steps)


def _are_apart(parts: Sequence[BoxDestination]) -> bool:
    """Whether no two parts share an element: bytes that two want are read once and copied."""
    return not any(
        intersect(part.box, other.box) for i, part in enumerate(parts) for other in parts[:i]
    )
