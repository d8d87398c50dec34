"""Load plans for parts of leaves: any requested boxes from any stored boxes. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from cordwood import dtypes
from cordwood.index import Arranged, Box, Encoded, Inline, Leaf, LeafStorage, Piece, Pieces, Span
from cordwood.keypath import path_label
from cordwood.plan.arrangements import (
    dtype_as_stored,
    is_read_in_place,
    part_destinations,
    seen_as,
    unsplit,
)
from cordwood.plan.check_pieces import check_pieces
from cordwood.plan.load_pieces import OWN_BUFFER_BYTES, SLAB_BYTES, first_byte, plan_pieces
from cordwood.plan.load_plan import (
    ALIGNMENT,
    BoxDestination,
    EncodedChunk,
    LoadPlan,
    Move,
    Placement,
    Scatter,
)
from cordwood.plan.move_templates import Template, make_template, whole_destinations
from cordwood.sharding.boxes import element_count, whole_box


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
    planner = _BoxPlanner(base, block_bytes)
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


def _are_in_order(storages: Sequence[LeafStorage]) -> bool:
    """Return True if all leaves are stored as spans: their bytes in the order of the elements."""
    if set(map(type, storages)) - {Pieces}:
        return False
    firsts = [pieces[0] for pieces in map(itemgetter(0), storages) if pieces]
    return not set(map(type, map(itemgetter(0), firsts))) - {Span}


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


# The first stored byte of a box: the piece of the leaf, and the offset in it; and its length.
_Origin: TypeAlias = tuple[int, int, int]


class _BoxPlanner:
    """A plan under construction, to which boxes are added."""

    def __init__(self, base: LoadPlan, block_bytes: Sequence[int]) -> None:
        self.block_bytes = block_bytes
        self.buffers = list(base.buffers)
        self.moves = list(base.moves)
        self.chunks: list[EncodedChunk] = []
        self.slab: int | None = None  # the buffer that small boxes share at present
        self.templates: dict[Hashable, Template] = {}

    def plan(self, placements: Sequence[Placement]) -> LoadPlan:
        self.moves.sort(key=itemgetter(0, 1))  # by source and offset
        return LoadPlan(
            tuple(self.buffers), tuple(self.moves), tuple(placements), tuple(self.chunks)
        )

    def allocate(self, length: int) -> Placement:
        """Return a place for a box of `length` bytes: in a buffer of its own, or in the slab."""
        if length >= OWN_BUFFER_BYTES:
            self.buffers.append(length)
            return len(self.buffers) - 1, 0, length
        slab, position = self.slab, 0
        if slab is not None:
            position = -(-self.buffers[slab] // ALIGNMENT) * ALIGNMENT
        if slab is None or position + length > SLAB_BYTES:
            self.buffers.append(0)
            slab, position = len(self.buffers) - 1, 0
        self.slab = slab
        self.buffers[slab] = position + length
        return slab, position, length

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
        item = dtypes.itemsize(leaf.dtype)
        if isinstance(storage, Arranged):
            item = dtypes.itemsize(dtype_as_stored(leaf))
            template = self.arranged_template(storage, part_destinations(leaf, boxes, item))
        else:
            template = self.template(leaf, whole_destinations(boxes, item))
        return template, _origins(template, boxes, item)

    def arranged_template(
        self, storage: Arranged, destinations: Sequence[Sequence[BoxDestination]]
    ) -> Template:
        """Return the template for the boxes of an arranged leaf: those of its parts, joined."""
        result = Template([], [], [])
        first = 0  # the number of the first piece of the part
        for part, wanted in zip(storage.parts, destinations, strict=True):
            if wanted and is_read_in_place(part.leaf):
                leaf = seen_as(part.leaf, part.shape)
                if leaf is None:
                    leaf, wanted = part.leaf, unsplit(wanted, part.leaf.shape, part.shape)
                start = wanted[0].position
                moved = [each._replace(position=each.position - start) for each in wanted]
                result.append(self.template(leaf, moved), first_piece=first, position=start)
            first += len(_pieces(part.leaf))
        return result

    def template(self, leaf: Leaf, destinations: Sequence[BoxDestination]) -> Template:
        """Return the template for boxes of one stored leaf."""
        storage = leaf.storage
        if isinstance(storage, Inline | Arranged):
            raise TypeError(
                f"{path_label(leaf.key_path)} is stored inline: there is nothing to read"
            )
        blocks = tuple([self.block_bytes[piece.source] for piece in storage.pieces])
        key = (*_layout_key(leaf, storage), tuple(destinations), blocks)
        template = self.templates.get(key)
        if template is None or isinstance(storage, Encoded):  # its chunks differ in length
            check_pieces(leaf)  # before memory is allocated for them
        if template is None:
            template = self.templates[key] = make_template(leaf, destinations, blocks)
        return template

    def apply(
        self, template: Template, pieces: Sequence[Piece], placements: Sequence[Placement]
    ) -> None:
        """Add the moves and chunks of a template for these pieces and placements."""
        add = self.moves.append
        for number, offset, length, box, position in template.moves:
            _, source, origin, _ = pieces[number]
            buffer, begin, _ = placements[box]
            add(Move(source, origin + offset, length, buffer, begin + position))
        for boxes, ranges in template.scatters:
            scatter = _place(boxes, placements)
            for number, offset, length, position in ranges:
                _, source, origin, _ = pieces[number]
                add(Move(source, origin + offset, length, scatter, position))
        for chunk in template.chunks:
            _, source, origin, length = pieces[chunk.source]
            scatter = _place(chunk.scatter, placements)
            self.chunks.append(
                EncodedChunk(source, origin, length, chunk.codec, chunk.dtype, scatter)
            )


def _origins(template: Template, boxes: Sequence[Box], item_bytes: int) -> list[_Origin]:
    """Return the first stored byte of each box.

    A box that is empty, or that takes its bytes from a scatter, counts to the first piece.
    """
    firsts = dict.fromkeys(range(len(boxes)), (0, 0))
    for piece, offset, _, box, _ in reversed(template.moves):
        firsts[box] = piece, offset
    return [(*firsts[i], element_count(box) * item_bytes) for i, box in enumerate(boxes)]


def _pieces(leaf: Leaf) -> Sequence[Piece]:
    return () if isinstance(leaf.storage, Inline) else leaf.storage.pieces


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
