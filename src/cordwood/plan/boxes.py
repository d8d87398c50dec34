"""Load plans for parts of leaves: any boxes stored, any boxes wanted. Pure.

Where the common part of the two is unbroken in both, its bytes are moved straight into place.
Otherwise a range of the source is read once, and every box that wants of it takes its part by a
strided copy (a spread). How much to read at once is decided by cost: bytes, in whole blocks
where those are checked, plus a price for each range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cordwood import dtypes
from cordwood.errors import FormatError, LimitError
from cordwood.index import Box, Encoded, Inline, Leaf, Piece, Pieces, Span
from cordwood.keypath import format_path
from cordwood.plan.load import (
    ALIGNMENT,
    OWN_BYTES,
    SLAB_BYTES,
    LoadPlan,
    Move,
    Placement,
    plan_load,
)
from cordwood.plan.ranges import Runs, byte_ranges, pitches, runs, tiles
from cordwood.plan.spread import Chunk, Codec, Part, Spread
from cordwood.sharding.boxes import element_count, intersect, shape_of, whole

__all__ = ["MAX_CHUNK_RATIO", "RANGE_PRICE_BYTES", "Want", "plan_boxes"]

RANGE_PRICE_BYTES = 256 << 10  # what could be read in the time that another range takes
RUN_BYTES = 64 << 10  # a shorter run is read with its neighbours, and copied
MAX_CHUNK_RATIO = 1 << 16  # more than any codec's: how much larger a chunk may be decoded


class Want(NamedTuple):
    """The boxes of a leaf that are wanted, each as an array of its own."""

    leaf: Leaf
    boxes: tuple[Box, ...]


def plan_boxes(
    wants: Sequence[Want], *, block_bytes: Sequence[int], codecs: Mapping[str, Codec]
) -> LoadPlan:
    """Plan the reading of boxes of leaves, in however many parts those are stored.

    Args:
        wants: leaves that are stored as pieces (raw or of swapped bytes) or encoded.
        block_bytes: of each source, the size of the blocks that are checked as wholes; 0 where
            any bytes can be read.
        codecs: what the codecs of encoded leaves mean.

    Returns:
        A plan with one placement for each box, those of the first leaf first.

    Raises:
        FormatError: pieces do not make up the leaf, or are not as long as their boxes; names
            the leaf.
        LimitError: a chunk is too small to hold what it should.
    """
    simple = [i for i, want in enumerate(wants) if _is_simple(want)]
    base = plan_load([wants[i].leaf for i in simple])
    if len(simple) == len(wants):
        return base
    planner = _Planner(base, block_bytes, codecs)
    places: list[Sequence[Placement]] = [()] * len(wants)
    for i, place in zip(simple, base.placements, strict=True):
        places[i] = (place,)
    for i in sorted(set(range(len(wants))).difference(simple), key=lambda i: _order(wants[i])):
        places[i] = planner.add(wants[i])
    return planner.plan([place for some in places for place in some])


def _is_simple(want: Want) -> bool:
    """Whether a whole leaf is wanted whose bytes lie in order."""
    leaf, boxes = want
    if not isinstance(leaf.storage, Pieces) or len(boxes) != 1:
        return False
    pieces = leaf.storage.pieces
    if len(pieces) != 1 or boxes[0] != whole(leaf.shape):
        return False
    where = pieces[0].where
    if isinstance(where, Span):
        return True
    return where == boxes[0] and pieces[0].length == element_count(where) * dtypes.itemsize(
        leaf.dtype
    )


def _order(want: Want) -> tuple[int, int]:
    storage = want.leaf.storage
    if isinstance(storage, Inline) or not storage.pieces:
        return 0, 0
    return storage.pieces[0].source, storage.pieces[0].offset


class _Stored(NamedTuple):
    """A piece as a range of the bytes of an array in C order."""

    source: int
    origin: int  # the offset that the array's first byte has, or would have
    shape: tuple[int, ...]
    start: int  # which of the array's bytes the piece holds
    stop: int


class _Planner:
    """A plan that grows leaf by leaf."""

    def __init__(
        self, base: LoadPlan, block_bytes: Sequence[int], codecs: Mapping[str, Codec]
    ) -> None:
        self.block_bytes = block_bytes
        self.codecs = codecs
        self.buffers = list(base.buffers)
        self.moves = list(base.moves)
        self.spreads: list[Spread] = []
        self.chunks: list[Chunk] = []
        self.slab = -1  # the buffer that small boxes share now

    def plan(self, placements: Sequence[Placement]) -> LoadPlan:
        self.moves.sort()
        return LoadPlan(
            tuple(self.buffers),
            tuple(self.moves),
            tuple(placements),
            tuple(self.spreads),
            tuple(self.chunks),
        )

    def place(self, length: int) -> Placement:
        if length >= OWN_BYTES:
            self.buffers.append(length)
            return len(self.buffers) - 1, 0, length
        position = -1
        if self.slab >= 0:
            position = -(-self.buffers[self.slab] // ALIGNMENT) * ALIGNMENT
        if position < 0 or position + length > SLAB_BYTES:
            self.buffers.append(0)
            self.slab, position = len(self.buffers) - 1, 0
        self.buffers[self.slab] = position + length
        return self.slab, position, length

    def add(self, want: Want) -> list[Placement]:
        leaf, boxes = want
        item = dtypes.itemsize(leaf.dtype)
        storage = leaf.storage
        if isinstance(storage, Inline):
            raise TypeError(f"{_name(leaf)} is stored inline: there is nothing to read")
        _check_lengths(leaf, storage, item)  # before memory is taken for them
        places = [self.place(element_count(box) * item) for box in boxes]
        parts = [
            Part(box, buffer, position, pitches(shape_of(box), item))
            for box, (buffer, position, length) in zip(boxes, places, strict=True)
            if length
        ]
        if not parts:
            return places
        if storage.pieces and isinstance(storage.pieces[0].where, Span):
            self.spans(leaf, storage.pieces, parts, item)
            return places
        covered: list[list[Box]] = [[] for _ in parts]
        for piece in storage.pieces:
            assert isinstance(piece.where, Box)
            within = list(_common(piece.where, parts, covered))
            if not within:
                continue
            shape = shape_of(piece.where)
            if isinstance(storage, Encoded):
                spread = Spread(storage.chunk_shape, item, tuple(within))
                codec = self.codecs[storage.codec]
                chunk = Chunk(*piece[1:], codec, leaf.dtype, spread)
                self.chunks.append(chunk)
            else:
                stored = _Stored(piece.source, piece.offset, shape, 0, piece.length)
                self.read([stored], within, item, apart=_are_apart(parts))
        for part, found in zip(parts, covered, strict=True):
            if not tiles(found, part.box):
                raise FormatError(
                    f"{_name(leaf)}: expected pieces that make up "
                    f"{list(zip(part.box.start, part.box.stop, strict=True))}, found "
                    f"{sum(map(element_count, found))} of {element_count(part.box)} elements "
                    "in them, or some twice"
                )
        return places

    def spans(self, leaf: Leaf, pieces: Iterable[Piece], parts: Sequence[Part], item: int) -> None:
        stored = []
        end = 0
        for piece in pieces:
            assert isinstance(piece.where, Span)
            start, stop = piece.where
            if start != end:
                raise FormatError(f"{_name(leaf)}: expected element {end} next, found {start}")
            end = stop
            origin = piece.offset - start * item
            stored.append(_Stored(piece.source, origin, leaf.shape, start * item, stop * item))
        if end != math.prod(leaf.shape):
            raise FormatError(
                f"{_name(leaf)}: expected {math.prod(leaf.shape)} elements in its pieces, "
                f"found {end}"
            )
        self.read(stored, parts, item, apart=_are_apart(parts))

    def read(
        self, stored: Sequence[_Stored], parts: Sequence[Part], item: int, *, apart: bool
    ) -> None:
        """Read parts of an array of which `stored` are ranges."""
        shape = stored[0].shape
        found = [_runs(part, shape, item) for part in parts] if apart else [None]
        straight = [each for each in found if each is not None]
        if len(straight) == len(found):
            for part, each in zip(parts, straight, strict=True):
                for piece in stored:
                    self.moves += _moves(piece, part, each, item)
            return
        spread = ~len(self.spreads)
        self.spreads.append(Spread(shape, item, tuple(parts)))
        boxes = [part.box for part in parts]
        ranges: dict[int, list[tuple[int, int]]] = {}
        for piece in stored:
            block = self.block_bytes[piece.source]
            if block not in ranges:
                gap = block + RANGE_PRICE_BYTES
                ranges[block] = byte_ranges(shape, boxes, item_bytes=item, gap_bytes=gap)
            for a, b in ranges[block]:
                a, b = max(a, piece.start), min(b, piece.stop)
                if a < b:
                    self.moves.append(Move(piece.source, piece.origin + a, b - a, spread, a))


def _runs(part: Part, shape: tuple[int, ...], item: int) -> Runs | None:
    steps = pitches(shape, item)
    extent = shape_of(part.box)
    return runs(extent, steps, part.steps, item_bytes=item, least_bytes=RUN_BYTES)


def _moves(piece: _Stored, part: Part, found: Runs, item: int) -> Iterator[Move]:
    """The runs of a part as moves, so far as the piece holds them."""
    first = sum(map(int.__mul__, part.box.start, pitches(piece.shape, item)))
    for start, position in found.starts:
        start += first
        a, b = max(start, piece.start), min(start + found.length, piece.stop)
        if a < b:
            at = part.position + position + a - start
            yield Move(piece.source, piece.origin + a, b - a, part.buffer, at)


def _check_lengths(leaf: Leaf, storage: Pieces | Encoded, item: int) -> None:
    """Require that each piece lies within the leaf and is as long as what it holds."""
    if isinstance(storage, Pieces) and storage.encoding not in ("raw", "swapped"):
        raise TypeError(f"{_name(leaf)} is {storage.encoding}: it can only be read whole")
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
            raise FormatError(f"{_name(leaf)}: {where} is no part of shape {list(leaf.shape)}")
        if isinstance(storage, Encoded):
            _check_chunk(leaf, piece, where, storage.chunk_shape, item)
        elif piece.length != count * item:
            raise FormatError(
                f"{_name(leaf)}: expected {count * item} bytes for {count} elements of "
                f"{leaf.dtype}, found {piece.length}"
            )


def _check_chunk(
    leaf: Leaf, piece: Piece, where: Span | Box, chunk_shape: tuple[int, ...], item: int
) -> None:
    assert isinstance(where, Box)
    if len(chunk_shape) != len(leaf.shape) or any(
        part > size for part, size in zip(shape_of(where), chunk_shape, strict=False)
    ):
        raise FormatError(
            f"{_name(leaf)}: {where} is no chunk of shape {list(chunk_shape)} of an array of "
            f"shape {list(leaf.shape)}"
        )
    size = math.prod(chunk_shape) * item
    if size > piece.length * MAX_CHUNK_RATIO:
        raise LimitError(
            f"{_name(leaf)}: a chunk of {piece.length} bytes cannot hold {size} "
            f"(MAX_CHUNK_RATIO is {MAX_CHUNK_RATIO})"
        )


def _common(where: Box, parts: Sequence[Part], covered: Sequence[list[Box]]) -> Iterator[Part]:
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
        yield Part(here, part.buffer, position, part.steps)


def _are_apart(parts: Sequence[Part]) -> bool:
    """Whether no two parts share an element: bytes that two want are read once and copied."""
    return not any(
        intersect(part.box, other.box) for i, part in enumerate(parts) for other in parts[:i]
    )


def _name(leaf: Leaf) -> str:
    return format_path(leaf.key_path) or "the root"
