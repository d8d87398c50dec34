"""Load plans for parts of leaves: any boxes stored, any boxes wanted. Pure.

Where the common part of the two is unbroken in both, its bytes are moved straight into place.
Otherwise a range of the source is read once, and every box that wants of it takes its part by a
strided copy (a spread). How much to read at once is decided by cost: bytes, in whole blocks
where those are checked, plus a price for each range.

Leaves that are cut alike, and of which like boxes are wanted, are thought through once: see
`plan.templates`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from cordwood import dtypes
from cordwood.index import Box, Encoded, Inline, Leaf, Piece, Pieces, Span
from cordwood.keypath import format_path
from cordwood.plan.box_templates import Template, check_pieces, make_template
from cordwood.plan.load_plan import (
    ALIGNMENT,
    OWN_BUFFER_BYTES,
    SLAB_BYTES,
    LoadPlan,
    Move,
    Placement,
    plan_pieces,
)
from cordwood.plan.scatter import BoxDestination, Codec, EncodedChunk, Scatter
from cordwood.sharding.boxes import element_count, whole_box

RANGE_PRICE_BYTES = 256 << 10  # what could be read in the time that another range takes


class BoxRequest(NamedTuple):
    """The boxes of a leaf that are wanted, each as an array of its own."""

    leaf: Leaf
    boxes: tuple[Box, ...]


def plan_boxes(
    wants: Sequence[BoxRequest], *, block_bytes: Sequence[int], codecs: Mapping[str, Codec]
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
    counts: dict[tuple[Box, ...], list[int]] = {}
    straight: list[Sequence[Piece]] = []
    others: list[int] = []
    for i, want in enumerate(wants):
        found = _as_stored(want, counts)
        if found is None:
            others.append(i)
        else:
            straight += [(piece,) for piece in found]
    base = plan_pieces(straight)
    if not others:
        return base
    planner = _Planner(base, block_bytes, codecs)
    others.sort(key=lambda i: _order(wants[i]))
    places = dict(zip(others, planner.add([wants[i] for i in others]), strict=True))
    rest = iter(base.placements)
    return planner.plan(
        [
            place
            for i, want in enumerate(wants)
            for place in places.get(i) or islice(rest, len(want.boxes))
        ]
    )


def _as_stored(
    want: BoxRequest, counts: dict[tuple[Box, ...], list[int]]
) -> Sequence[Piece] | None:
    """The pieces of a leaf, where they are just the boxes that are wanted, in their order.

    `counts` is how many elements boxes have: most leaves are cut as others are.
    """
    leaf, boxes = want
    storage = leaf.storage
    if not isinstance(storage, Pieces) or not boxes or len(storage.pieces) != len(boxes):
        return None
    places, _, _, lengths = zip(*storage.pieces, strict=True)
    if places != boxes and not (isinstance(places[0], Span) and boxes == (whole_box(leaf.shape),)):
        return None
    count = counts.get(boxes)
    if count is None:
        count = counts[boxes] = [element_count(box) for box in boxes]
    item = dtypes.itemsize(leaf.dtype)
    return storage.pieces if lengths == tuple([n * item for n in count]) else None


def _order(want: BoxRequest) -> tuple[int, int]:
    storage = want.leaf.storage
    if isinstance(storage, Inline) or not storage.pieces:
        return 0, 0
    return storage.pieces[0].source, storage.pieces[0].offset


class _Origin(NamedTuple):
    """Where the bytes of a box begin, and how many it takes."""

    piece: int  # of its leaf
    offset: int  # in that piece
    length: int


class _Planner:
    """A plan that grows by more and more boxes."""

    def __init__(
        self, base: LoadPlan, block_bytes: Sequence[int], codecs: Mapping[str, Codec]
    ) -> None:
        self.block_bytes = block_bytes
        self.codecs = codecs
        self.buffers = list(base.buffers)
        self.moves = list(base.moves)
        self.scatters: list[Scatter] = []
        self.chunks: list[EncodedChunk] = []
        self.slab = -1  # the buffer that small boxes share now
        self.templates: dict[Hashable, tuple[Template, tuple[_Origin, ...]]] = {}

    def plan(self, placements: Sequence[Placement]) -> LoadPlan:
        self.moves.sort()
        return LoadPlan(
            tuple(self.buffers),
            tuple(self.moves),
            tuple(placements),
            tuple(self.scatters),
            tuple(self.chunks),
        )

    def place(self, length: int) -> Placement:
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

    def add(self, wants: Sequence[BoxRequest]) -> list[list[Placement]]:
        """Plan the reading of more boxes; of each want, where its boxes will lie.

        They lie in the order of their bytes in the files: neighbours there, which may be shards
        of several leaves for one device, come in by one move where their lengths are multiples
        of ALIGNMENT.
        """
        found = [self.template_of(want) for want in wants]
        order: list[tuple[int, int, int, int, int]] = []  # source, offset, want, box, length
        for number, (want, (_, origins)) in enumerate(zip(wants, found, strict=True)):
            pieces = _pieces(want.leaf)
            for box, (piece, offset, length) in enumerate(origins):
                source, start = (pieces[piece].source, pieces[piece].offset) if pieces else (0, 0)
                order.append((source, start + offset, number, box, length))
        order.sort()
        places: list[list[Placement]] = [[(0, 0, 0)] * len(want.boxes) for want in wants]
        for _, _, number, box, length in order:
            places[number][box] = self.place(length)
        for want, (template, _), its_places in zip(wants, found, places, strict=True):
            self.follow(template, _pieces(want.leaf), its_places)
        return places

    def template_of(self, want: BoxRequest) -> tuple[Template, tuple[_Origin, ...]]:
        """How the pieces of a leaf make up its boxes, and where the bytes of those begin."""
        leaf, boxes = want
        storage = leaf.storage
        if isinstance(storage, Inline):
            raise TypeError(f"{_name(leaf)} is stored inline: there is nothing to read")
        blocks = tuple([self.block_bytes[piece.source] for piece in storage.pieces])
        key = (*_how(leaf, storage), boxes, blocks)
        known = self.templates.get(key)
        if known is None or isinstance(storage, Encoded):  # whose pieces differ in length
            check_pieces(leaf, name=_name(leaf))  # before memory is taken for them
        if known is None:
            template = make_template(
                leaf,
                boxes,
                name=_name(leaf),
                block_bytes=blocks,
                price_bytes=RANGE_PRICE_BYTES,
                codecs=self.codecs,
            )
            known = self.templates[key] = template, _origins(template, leaf, boxes)
        return known

    def follow(
        self, template: Template, pieces: Sequence[Piece], places: Sequence[Placement]
    ) -> None:
        """Plan what a template says for the pieces and boxes that it numbers."""
        first = len(self.scatters)
        add = self.moves.append
        for number, offset, length, buffer, position in template.moves:
            _, source, origin, _ = pieces[number]
            if buffer < 0:
                buffer -= first
            else:
                buffer, begin, _ = places[buffer]
                position += begin
            add(Move(source, origin + offset, length, buffer, position))
        for spread in template.scatters:
            self.scatters.append(_moved(spread, places))
        for chunk in template.chunks:
            _, source, origin, length = pieces[chunk.source]
            spread = _moved(chunk.scatter, places)
            self.chunks.append(
                EncodedChunk(source, origin, length, chunk.codec, chunk.dtype, spread)
            )


def _origins(template: Template, leaf: Leaf, boxes: Sequence[Box]) -> tuple[_Origin, ...]:
    """Where the bytes of boxes begin.

    A box that takes its bytes from a spread, or is empty, goes with the first piece.
    """
    firsts = dict.fromkeys(range(len(boxes)), (0, 0))
    for piece, offset, _, box, _ in reversed(template.moves):
        if box >= 0:
            firsts[box] = piece, offset
    item = dtypes.itemsize(leaf.dtype)
    return tuple([_Origin(*firsts[i], element_count(box) * item) for i, box in enumerate(boxes)])


def _pieces(leaf: Leaf) -> Sequence[Piece]:
    assert not isinstance(leaf.storage, Inline)
    return leaf.storage.pieces


def _how(leaf: Leaf, storage: Pieces | Encoded) -> tuple[Hashable, ...]:
    """All that decides how the parts of a leaf go together."""
    if isinstance(storage, Encoded):
        places: Hashable = tuple([piece.where for piece in storage.pieces])
        return leaf.shape, leaf.dtype, places, storage.chunk_shape, storage.codec
    places = tuple([(piece.where, piece.length) for piece in storage.pieces])
    return leaf.shape, leaf.dtype, places, storage.encoding


def _moved(spread: Scatter, places: Sequence[Placement]) -> Scatter:
    parts = []
    for box, number, position, steps in spread.parts:
        buffer, begin, _ = places[number]
        parts.append(BoxDestination(box, buffer, begin + position, steps))
    return Scatter(spread.shape, spread.item_bytes, tuple(parts))


def _name(leaf: Leaf) -> str:
    return format_path(leaf.key_path) or "the root"
