"""Load plans for parts of leaves: any requested boxes from any stored boxes. Pure.

If the intersection of a stored and a requested box is contiguous in both, its bytes are read
straight into place. Otherwise a range of the source is read once, and each requested box takes
its part of it by a strided copy (a scatter). The cost decides how much is read at once: bytes, in
whole blocks where blocks are verified, plus a price for each range.

Leaves of equal layout, of which equal boxes are requested, are planned once, by a template. It
treats each piece of a leaf as a source of its own, and each requested box as a buffer of its own.
So it also fits every other leaf whose pieces have the same boxes and lengths, wherever these lie.
A large model has thousands of leaves, but only a few different layouts.

Leaves that are read as they are stored need no templates: neighbours become one move.

One file, because a template is a part of a plan, and both are made of the same pieces.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter, le
from typing import NamedTuple, TypeAlias

from cordwood import dtypes
from cordwood.errors import FormatError, LimitError
from cordwood.index import Box, Encoded, Inline, Leaf, Piece, Pieces, Span
from cordwood.keypath import path_label
from cordwood.plan.load_plan import (
    ALIGNMENT,
    BoxDestination,
    ContiguousRuns,
    EncodedChunk,
    LoadPlan,
    Move,
    Placement,
    Scatter,
    byte_ranges,
    byte_strides,
    contiguous_runs,
    is_tiling,
    scatter_buffer,
)
from cordwood.sharding.boxes import element_count, intersect, shape_of, whole_box

OWN_BUFFER_BYTES = 4 << 20  # a leaf of at least this size has its own buffer: dropping it frees it
SLAB_BYTES = 16 << 20  # smaller leaves share buffers of at most this size
GAP_BYTES = 4096  # a gap of at most this size between two leaves is cheaper to read than to skip
RUN_BYTES = 64 << 10  # a shorter run is read together with its neighbours, and then copied
MAX_CHUNK_RATIO = 1 << 16  # decoded size over stored size: more than any codec reaches
RANGE_PRICE_BYTES = 256 << 10  # the cost of one more range: bytes read in the same time


def plan_boxes(
    leaves: Sequence[Leaf],
    boxes: Mapping[int, Sequence[Box]],
    *,
    block_bytes: Sequence[int],
) -> LoadPlan:
    """Plan the reading of leaves, or of boxes of them, which may be stored in any number of parts.

    Args:
        leaves: leaves that are stored as pieces or encoded.
        boxes: the requested boxes of leaves, by position in `leaves`; each gets memory of its own.
            Of elements that are packed, or byte-swapped, boxes give the stored bytes. A leaf
            without an entry is read whole, and if it is packed, it can only be read so.
        block_bytes: for each source, the size of the blocks that are verified as wholes; 0 if
            any byte range can be read.

    Returns:
        A plan with one placement for each whole leaf and each box, those of the first leaf first.

    Raises:
        FormatError: pieces do not make up the leaf, or their lengths differ from those of their
            boxes; the message names the leaf.
        LimitError: a chunk is too small to hold its elements, whatever the codec.
    """
    storages = list(map(itemgetter(4), leaves))
    if not boxes and _are_in_order(storages):  # a file of many leaves: no loop over them here
        return plan_pieces(list(map(itemgetter(0), storages)))
    counts: dict[tuple[Box, ...], list[int]] = {}
    unchanged: list[Sequence[Piece]] = []  # the pieces of each item that is stored as it is read
    others: list[_BoxRequest] = []
    for i, leaf in enumerate(leaves):
        requested = boxes.get(i)
        if requested is None:
            if _are_in_order([storages[i]]):
                unchanged.append(storages[i][0])
                continue
            requested = (whole_box(leaf.shape),)
        request = _BoxRequest(leaf, tuple(requested), i)
        pieces = _matching_pieces(request, counts)
        if pieces is None:
            others.append(request)
        else:
            unchanged += [(piece,) for piece in pieces]
    base = plan_pieces(unchanged)
    if not others:
        return base
    planner = _Planner(base, block_bytes)
    others.sort(key=lambda request: first_byte(request.leaf))
    numbers = [request.number for request in others]
    placements = dict(zip(numbers, planner.add(others), strict=True))
    base_placements = iter(base.placements)
    return planner.plan(
        [
            placement
            for i in range(len(leaves))
            for placement in placements.get(i)
            or islice(base_placements, len(boxes[i]) if i in boxes else 1)
        ]
    )


def _are_in_order(storages: Sequence[Pieces | Encoded | Inline]) -> bool:
    """Return True if all leaves are stored as spans: their bytes in the order of the elements."""
    if set(map(type, storages)) - {Pieces}:
        return False
    firsts = [storage[0][0] for storage in storages if storage[0]]
    return not set(map(type, map(itemgetter(0), firsts))) - {Span}


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


class _BoxRequest(NamedTuple):
    """A leaf, and the boxes of it to read, each into an array of its own."""

    leaf: Leaf
    boxes: tuple[Box, ...]
    number: int  # the position of the leaf


def _matching_pieces(
    request: _BoxRequest, counts: dict[tuple[Box, ...], list[int]]
) -> Sequence[Piece] | None:
    """Return the pieces of a leaf if they are exactly the requested boxes, in their order.

    `counts` caches the element counts of boxes: most leaves are cut like other leaves.
    """
    leaf, boxes, _ = request
    storage = leaf.storage
    if not isinstance(storage, Pieces) or not boxes or len(storage.pieces) != len(boxes):
        return None
    parts, _, _, lengths = zip(*storage.pieces, strict=True)
    if parts != boxes and not (isinstance(parts[0], Span) and boxes == (whole_box(leaf.shape),)):
        return None
    count = counts.get(boxes)
    if count is None:
        count = counts[boxes] = [element_count(box) for box in boxes]
    item = dtypes.itemsize(leaf.dtype)
    return storage.pieces if lengths == tuple([n * item for n in count]) else None


def first_byte(leaf: Leaf) -> tuple[int, int]:
    """Return where a leaf begins: its source and offset."""
    if isinstance(leaf.storage, Inline) or not leaf.storage.pieces:
        return 0, 0
    return leaf.storage.pieces[0][1:3]


# The first stored byte of a box: the piece of the leaf, and the offset in it; and its length.
_Origin: TypeAlias = tuple[int, int, int]


class _Planner:
    """A plan under construction, to which boxes are added."""

    def __init__(self, base: LoadPlan, block_bytes: Sequence[int]) -> None:
        self.block_bytes = block_bytes
        self.buffers = list(base.buffers)
        self.moves = list(base.moves)
        self.scatters: list[Scatter] = []
        self.chunks: list[EncodedChunk] = []
        self.slab = -1  # the buffer that small boxes share at present
        self.templates: dict[Hashable, tuple[Template, list[_Origin]]] = {}

    def plan(self, placements: Sequence[Placement]) -> LoadPlan:
        self.moves.sort()
        return LoadPlan(
            tuple(self.buffers),
            tuple(self.moves),
            tuple(placements),
            tuple(self.scatters),
            tuple(self.chunks),
        )

    def allocate(self, length: int) -> Placement:
        """Return a place for a box of `length` bytes: in a buffer of its own, or in the slab."""
        if length >= OWN_BUFFER_BYTES:
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

    def add(self, requests: Sequence[_BoxRequest]) -> list[list[Placement]]:
        """Plan the reading of more boxes; return the placements of the boxes of each request.

        In memory they are in the order of their bytes in the files. Neighbours there, which may
        be shards of several leaves for one device, are read by one move if their lengths are
        multiples of ALIGNMENT.
        """
        templates = [self.template_of(request) for request in requests]
        order: list[tuple[int, int, int, int, int]] = []  # source, offset, request, box, length
        for number, (request, (_, origins)) in enumerate(zip(requests, templates, strict=True)):
            pieces = _pieces(request.leaf)
            for box, (piece, offset, length) in enumerate(origins):
                source, start = (pieces[piece].source, pieces[piece].offset) if pieces else (0, 0)
                order.append((source, start + offset, number, box, length))
        order.sort()
        placements: list[list[Placement]] = [[(0, 0, 0)] * len(each.boxes) for each in requests]
        for _, _, number, box, length in order:
            placements[number][box] = self.allocate(length)
        for request, (template, _), placed in zip(requests, templates, placements, strict=True):
            self.apply(template, _pieces(request.leaf), placed)
        return placements

    def template_of(self, request: _BoxRequest) -> tuple[Template, list[_Origin]]:
        """Return the template for the boxes of a leaf, and the first stored byte of each box."""
        leaf, boxes, _ = request
        storage = leaf.storage
        if isinstance(storage, Inline):
            raise TypeError(
                f"{path_label(leaf.key_path)} is stored inline: there is nothing to read"
            )
        blocks = tuple([self.block_bytes[piece.source] for piece in storage.pieces])
        key = (*_layout_key(leaf, storage), boxes, blocks)
        entry = self.templates.get(key)
        if entry is None or isinstance(storage, Encoded):  # its chunks differ in length
            check_pieces(leaf)  # before memory is allocated for them
        if entry is None:
            template = make_template(leaf, boxes, blocks)
            entry = self.templates[key] = template, _origins(template, leaf, boxes)
        return entry

    def apply(
        self, template: Template, pieces: Sequence[Piece], placements: Sequence[Placement]
    ) -> None:
        """Add the moves, scatters and chunks of a template for these pieces and placements."""
        first = len(self.scatters)
        add = self.moves.append
        for number, offset, length, buffer, position in template.moves:
            _, source, origin, _ = pieces[number]
            if buffer < 0:  # a scatter of the template: `first` of the plan come before it
                buffer -= first
            else:
                buffer, begin, _ = placements[buffer]
                position += begin
            add(Move(source, origin + offset, length, buffer, position))
        for scatter in template.scatters:
            self.scatters.append(_place(scatter, placements))
        for chunk in template.chunks:
            _, source, origin, length = pieces[chunk.source]
            scatter = _place(chunk.scatter, placements)
            self.chunks.append(
                EncodedChunk(source, origin, length, chunk.codec, chunk.dtype, scatter)
            )


def _origins(template: Template, leaf: Leaf, boxes: Sequence[Box]) -> list[_Origin]:
    """Return the first stored byte of each box.

    A box that is empty, or that takes its bytes from a scatter, counts to the first piece.
    """
    firsts = dict.fromkeys(range(len(boxes)), (0, 0))
    for piece, offset, _, box, _ in reversed(template.moves):
        if box >= 0:
            firsts[box] = piece, offset
    item = dtypes.itemsize(leaf.dtype)
    return [(*firsts[i], element_count(box) * item) for i, box in enumerate(boxes)]


def _pieces(leaf: Leaf) -> Sequence[Piece]:
    assert not isinstance(leaf.storage, Inline)
    return leaf.storage.pieces


def _layout_key(leaf: Leaf, storage: Pieces | Encoded) -> tuple[Hashable, ...]:
    """Return all that decides how the pieces of a leaf make up boxes of it."""
    if isinstance(storage, Encoded):
        parts: Hashable = tuple([piece.where for piece in storage.pieces])
        return leaf.shape, leaf.dtype, parts, storage.chunk_shape, storage.codec
    parts = tuple([(piece.where, piece.length) for piece in storage.pieces])
    return leaf.shape, leaf.dtype, parts, storage.encoding


def _place(scatter: Scatter, placements: Sequence[Placement]) -> Scatter:
    """Return a scatter of a template with the buffers of the plan in place of box numbers."""
    parts = []
    for box, number, position, steps in scatter.parts:
        buffer, begin, _ = placements[number]
        parts.append(BoxDestination(box, buffer, begin + position, steps))
    return Scatter(scatter.shape, scatter.item_bytes, tuple(parts))


# Templates


class Template(NamedTuple):
    """A LoadPlan whose sources are pieces, by number, and whose buffers are boxes, by number.

    Offsets count from the start of the piece, positions from the start of the box.
    """

    moves: list[Move]
    scatters: list[Scatter]
    chunks: list[EncodedChunk]


class _Stored(NamedTuple):
    """A piece as a range of the bytes of an array in C order."""

    piece: int
    shape: tuple[int, ...]
    start: int  # in bytes of the array: the piece holds bytes start to stop
    stop: int


def make_template(leaf: Leaf, boxes: Sequence[Box], block_bytes: Sequence[int]) -> Template:
    """Return the template for boxes of one leaf.

    Args:
        leaf: a leaf that `check_pieces` accepts.
        boxes: the requested boxes of it.
        block_bytes: for each piece, the size of the blocks in which its source is verified.

    Raises:
        FormatError: the pieces do not cover the boxes exactly once; the message names the leaf.
    """
    storage = leaf.storage
    assert not isinstance(storage, Inline)
    item = dtypes.itemsize(leaf.dtype)
    parts = [
        BoxDestination(box, number, 0, byte_strides(shape_of(box), item))
        for number, box in enumerate(boxes)
        if element_count(box)
    ]
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
    scatter = scatter_buffer(len(template.scatters))
    template.scatters.append(Scatter(shape, item, tuple(parts)))
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
                template.moves.append(Move(piece.piece, a - piece.start, b - a, scatter, a))


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
) -> Iterator[Move]:
    """Yield a move for each run of a part, or for as much of it as the piece holds."""
    first = sum(map(int.__mul__, part.box.start, steps))
    for start, position in runs.starts:
        start += first
        a, b = max(start, piece.start), min(start + runs.length, piece.stop)
        if a < b:
            at = part.position + position + a - start
            yield Move(piece.piece, a - piece.start, b - a, part.buffer, at)


def check_pieces(leaf: Leaf) -> None:
    """Raise unless each piece lies within the leaf and has the length that its elements need.

    Raises:
        FormatError: a piece does not; the message names the leaf.
        LimitError: a chunk is too small to hold its elements, whatever the codec.
    """
    storage, name = leaf.storage, path_label(leaf.key_path)
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
