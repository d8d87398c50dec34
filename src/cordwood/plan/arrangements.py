"""Boxes of arranged leaves as boxes of the leaves that they are made of. Pure.

An arranged leaf and each leaf in it are seen as arrays of more axes, in which the part of the one
is a box of the other with its axes in another order. A box of the arranged leaf itself is a few
boxes of that array, as an axis may be made of several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from cordwood import dtypes
from cordwood.index import (
    Arranged,
    ArrangedPart,
    Box,
    Encoded,
    Inline,
    Leaf,
    LeafStorage,
    Piece,
    Pieces,
    Span,
)
from cordwood.plan.load_plan import (
    BoxDestination,
    byte_strides,
    contiguous_extents,
    flat_boxes,
    plan_extent_moves,
)
from cordwood.plan.split_arrays import all_boxes, element_range
from cordwood.sharding.boxes import intersect, is_contiguous, shape_of, whole_box


def split_axes(shape: Sequence[int], split: Sequence[int]) -> list[range]:
    """Return, for each axis of a shape, the axes of the split shape that it is made of.

    >>> split_axes((12, 5), (3, 4, 5))
    [range(0, 2), range(2, 3)]
    """
    groups = []
    first = 0
    for size in shape:
        stop = first
        while stop < len(split) and (math.prod(split[first:stop]) < size or split[stop] == 1):
            stop += 1
        groups.append(range(first, stop))
        first = stop
    return groups


class _SplitBox(NamedTuple):
    """A box of the split array, and the place of its elements in a buffer that holds another."""

    box: Box
    position: int  # in bytes, of its first element
    steps: tuple[int, ...]  # in bytes, along the axes of the split array


def _split_boxes(
    box: Box, shape: Sequence[int], split: Sequence[int], item_bytes: int
) -> Iterator[_SplitBox]:
    """Yield the boxes of the split array that make up a box of an array, which fills a buffer."""
    groups = split_axes(shape, split)
    axis_steps = byte_strides(shape_of(box), item_bytes)
    steps = [0] * len(split)
    choices: list[list[tuple[Box, int]]] = []
    for group, start, stop, step in zip(groups, box.start, box.stop, axis_steps, strict=True):
        sizes = split[group.start : group.stop]
        inner = byte_strides(sizes, 1)
        for axis, size in zip(group, inner, strict=True):
            steps[axis] = size * step
        choices.append(
            [
                (cell, (sum(map(int.__mul__, cell.start, inner)) - start) * step)
                for cell in flat_boxes(sizes, start, stop)
            ]
        )
    for cells in product(*choices):
        low = tuple([at for cell, _ in cells for at in cell.start])
        high = tuple([at for cell, _ in cells for at in cell.stop])
        yield _SplitBox(Box(low, high), sum([offset for _, offset in cells]), tuple(steps))


class _Split(NamedTuple):
    """A box of the split array that a requested box needs."""

    request: int
    box: _SplitBox


def _requested(leaf: Leaf, boxes: Sequence[Box], item_bytes: int) -> list[_Split]:
    storage = leaf.storage
    assert isinstance(storage, Arranged)
    return [
        _Split(number, each)
        for number, box in enumerate(boxes)
        if 0 not in shape_of(box)
        for each in _split_boxes(box, leaf.shape, storage.shape, item_bytes)
    ]


def _intersections(requested: Sequence[_Split], box: Box) -> Iterator[BoxDestination]:
    """Yield the parts of a box of the split array that are requested, and where they go."""
    for number, each in requested:
        common = intersect(each.box, box)
        if common is not None:
            inside = map(int.__sub__, common.start, each.box.start)
            position = each.position + sum(map(int.__mul__, inside, each.steps))
            yield BoxDestination(common, number, position, each.steps)


def part_destinations(
    leaf: Leaf, boxes: Sequence[Box], item_bytes: int
) -> list[list[BoxDestination]]:
    """Return, for each part of an arranged leaf, its boxes that boxes of the leaf need.

    The boxes of a part are of its leaf, seen in the shape of the part. The buffer of each is the
    number of the requested box, which fills it in C order.
    """
    storage = leaf.storage
    assert isinstance(storage, Arranged)
    requested = _requested(leaf, boxes, item_bytes)
    return [
        [
            _of_source(part, destination, item_bytes)
            for destination in _intersections(requested, part.box)
        ]
        for part in storage.parts
    ]


def _of_source(part: ArrangedPart, destination: BoxDestination, item_bytes: int) -> BoxDestination:
    """Return the destination of a box of the arranged array as one of the leaf of the part."""
    box, buffer, position, steps = destination
    start, stop, source_steps = [], [], []
    for low, axis in zip(part.start, part.axes, strict=True):
        offset = 0 if axis < 0 else box.start[axis] - part.box.start[axis]
        size = 1 if axis < 0 else box.stop[axis] - box.start[axis]
        start.append(low + offset)
        stop.append(low + offset + size)
        source_steps.append(item_bytes if axis < 0 else steps[axis])
    return BoxDestination(Box(tuple(start), tuple(stop)), buffer, position, tuple(source_steps))


def padding_destinations(
    leaf: Leaf, boxes: Sequence[Box], item_bytes: int
) -> Iterator[BoxDestination]:
    """Yield the parts of requested boxes of an arranged leaf that are zero."""
    storage = leaf.storage
    assert isinstance(storage, Arranged)
    requested = _requested(leaf, boxes, item_bytes) if storage.padding else []
    for box in storage.padding:
        yield from _intersections(requested, box)


def seen_as(leaf: Leaf, shape: tuple[int, ...]) -> Leaf | None:
    """Return a stored leaf as an array of more axes; None if its pieces are no boxes of that."""
    storage = leaf.storage
    assert not isinstance(storage, Inline | Arranged)
    if leaf.shape == shape:
        return leaf
    groups = split_axes(leaf.shape, shape)
    if isinstance(storage, Encoded):
        chunk = _split_box(Box((0,) * len(leaf.shape), storage.chunk_shape), leaf.shape, shape)
        if chunk is None or (storage.codec.order == "F" and any(len(g) != 1 for g in groups)):
            return None
        storage = storage._replace(chunk_shape=chunk.stop)
    pieces: list[Piece] = []
    for piece in storage.pieces:
        where = piece.where
        if isinstance(where, Box):
            split = _split_box(where, leaf.shape, shape)
            if split is None:
                return None
            where = split
        pieces.append(piece._replace(where=where))
    return leaf._replace(shape=shape, storage=storage._replace(pieces=tuple(pieces)))


def _split_box(box: Box, shape: Sequence[int], split: Sequence[int]) -> Box | None:
    """Return a box of an array as a box of the split array; None if it is none."""
    start: list[int] = []
    stop: list[int] = []
    for group, low, high, size in zip(
        split_axes(shape, split), box.start, box.stop, shape, strict=True
    ):
        if not 0 <= low < high <= size:
            return None
        cells = list(flat_boxes(split[group.start : group.stop], low, high))
        if len(cells) != 1:
            return None
        start += cells[0].start
        stop += cells[0].stop
    return Box(tuple(start), tuple(stop))


def unsplit(
    destinations: Sequence[BoxDestination], shape: Sequence[int], split: Sequence[int]
) -> list[BoxDestination]:
    """Return boxes of the split array as boxes of the array itself, which may be many."""
    groups = split_axes(shape, split)
    result = []
    for box, buffer, position, steps in destinations:
        runs = [
            _axis_runs(
                split[group.start : group.stop],
                box.start[group.start : group.stop],
                box.stop[group.start : group.stop],
                steps[group.start : group.stop],
            )
            for group in groups
        ]
        for cells in product(*runs):
            start = tuple([cell.start for cell in cells])
            stop = tuple([cell.stop for cell in cells])
            at = position + sum([cell.position for cell in cells])
            parts = Box(start, stop), buffer, at, tuple([cell.step for cell in cells])
            result.append(BoxDestination(*parts))
    return result


class _AxisRun(NamedTuple):
    """Indices start to stop of an axis, which lie at even steps in a buffer."""

    start: int
    stop: int
    position: int
    step: int


def _axis_runs(
    sizes: Sequence[int], start: Sequence[int], stop: Sequence[int], steps: Sequence[int]
) -> list[_AxisRun]:
    """Return the runs of an axis that is made of axes of these sizes."""
    runs = [_AxisRun(0, 1, 0, 1)]
    full = 1  # the number of indices of all inner axes
    for size, low, high, step in reversed(list(zip(sizes, start, stop, steps, strict=True))):
        first = runs[0]
        if high - low == 1:
            runs = [
                run._replace(start=low * full + run.start, stop=low * full + run.stop)
                for run in runs
            ]
        elif first[:2] == (0, full) and full in (1, step // first.step):
            runs = [_AxisRun(low * full, high * full, 0, step if full == 1 else first.step)]
        else:
            runs = [
                _AxisRun(i * full + a, i * full + b, (i - low) * step + at, inner_step)
                for i in range(low, high)
                for a, b, at, inner_step in runs
            ]
        full *= size
    return runs


def as_arranged(leaf: Leaf) -> Arranged:
    """Return the storage of a leaf as an arrangement, of the leaf alone if it is none."""
    storage = leaf.storage
    if isinstance(storage, Arranged):
        return storage
    shape = leaf.shape
    part = ArrangedPart(leaf, shape, (0,) * len(shape), tuple(range(len(shape))), whole_box(shape))
    return Arranged(shape, (part,))


def transposed_leaf(leaf: Leaf, order: Sequence[int]) -> Leaf:
    """Return an array leaf with its axes in another order, as numpy.transpose takes it."""
    if 0 in leaf.shape:
        return leaf._replace(shape=tuple([leaf.shape[axis] for axis in order]), storage=Pieces(()))
    storage = as_arranged(leaf)
    groups = split_axes(leaf.shape, storage.shape)
    axes = [axis for group in order for axis in groups[group]]
    shape = tuple([leaf.shape[axis] for axis in order])
    return leaf._replace(shape=shape, storage=_transposed(storage, axes))


def _transposed(arranged: Arranged, axes: Sequence[int]) -> Arranged:
    """Return an arrangement with the axes of the split array in another order."""

    def permuted(sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple([sizes[axis] for axis in axes])

    def box(old: Box) -> Box:
        return Box(permuted(old.start), permuted(old.stop))

    parts = [
        part._replace(
            axes=tuple([axis if axis < 0 else axes.index(axis) for axis in part.axes]),
            box=box(part.box),
        )
        for part in arranged.parts
    ]
    return arranged._replace(
        shape=permuted(arranged.shape),
        parts=tuple(parts),
        padding=tuple(map(box, arranged.padding)),
        copies=tuple([_transposed(copy, axes) for copy in arranged.copies]),
    )


def dtype_as_stored(leaf: Leaf) -> str:
    """Return the dtype of the stored elements of a leaf, before any arithmetic."""
    storage = leaf.storage
    if isinstance(storage, Arranged) and storage.parts:
        return storage.parts[0].leaf.dtype
    return leaf.dtype


def is_read_in_place(leaf: Leaf) -> bool:
    """Return True if parts of a stored leaf can be read to any places; False: only all of it."""
    storage = leaf.storage
    if isinstance(storage, Pieces):
        return storage.encoding == "raw"
    return isinstance(storage, Encoded)


def arranged_sources(leaf: Leaf) -> list[Leaf]:
    """Return the leaves that an arranged leaf is made of, those of its copies included."""
    storage = leaf.storage
    assert isinstance(storage, Arranged)
    every = (storage, *storage.copies, *storage.dropped)
    return [part.leaf for each in every for part in each.parts]


def in_order(leaf: Leaf) -> Leaf:
    """Return an arranged leaf as pieces, if all of its bytes are stored in its order.

    So a stack of layers is read as if it were stored so. Any other leaf stays as it is.
    """
    storage = leaf.storage
    if not isinstance(storage, Arranged) or storage.arithmetic:
        return leaf
    if storage.copies or storage.dropped:  # which are read to be compared
        return leaf
    item = dtypes.itemsize(leaf.dtype)
    pieces: list[Piece] = []
    for part in storage.parts:
        long = [axis for axis, size in zip(part.axes, part.shape, strict=True) if size > 1]
        sizes = shape_of(part.box)
        source = Box(
            part.start,
            tuple(
                [
                    low + (1 if axis < 0 else sizes[axis])
                    for low, axis in zip(part.start, part.axes, strict=True)
                ]
            ),
        )
        inner = [axis for axis in long if axis >= 0 and sizes[axis] > 1]
        is_straight = inner == sorted(inner) and is_contiguous(sizes, storage.shape)
        if not (is_straight and is_contiguous(shape_of(source), part.shape)):
            return leaf
        extents = contiguous_extents(part.leaf)
        if extents is None:
            return leaf
        first, last = element_range(source, part.shape)
        begin = element_range(part.box, storage.shape)[0]
        for move in plan_extent_moves(extents, first * item, last * item):
            start = begin + move.position // item
            where = Span(start, start + move.length // item)
            pieces.append(Piece(where, move.source, move.offset, move.length))
    pieces.sort()
    ends = [0, *[piece.where.stop for piece in pieces if isinstance(piece.where, Span)]]
    starts = [piece.where.start for piece in pieces if isinstance(piece.where, Span)]
    if starts != ends[:-1] or ends[-1] != math.prod(leaf.shape):
        return leaf
    return leaf._replace(storage=Pieces(tuple(pieces)))


def source_blocks(part: ArrangedPart, *, item_bytes: int, limit_bytes: int) -> Iterator[Box]:
    """Yield the boxes of the arranged array that are blocks of the source of a part, in its order.

    They make up the part. Where the source is stored as chunks, blocks are of whole ones.
    """
    axes = [axis for axis in part.axes if axis >= 0]
    sizes = shape_of(part.box)
    chunk_shape: list[int] = []
    seen = seen_as(part.leaf, part.shape) if isinstance(part.leaf.storage, Encoded) else None
    if seen is not None and isinstance(seen.storage, Encoded):
        chunk_axes = zip(seen.storage.chunk_shape, part.axes, strict=True)
        chunk_shape = [size for size, axis in chunk_axes if axis >= 0]
    blocks = all_boxes(
        [sizes[axis] for axis in axes],
        item_bytes=item_bytes,
        limit_bytes=limit_bytes,
        chunk_shape=chunk_shape,
    )
    for block in blocks:
        start, stop = list(part.box.start), list(part.box.stop)
        for axis, low, high in zip(axes, block.start, block.stop, strict=True):
            start[axis], stop[axis] = part.box.start[axis] + low, part.box.start[axis] + high
        yield Box(tuple(start), tuple(stop))


def source_of_view(leaf: Leaf) -> Leaf | None:
    """Return the leaf of which an arranged leaf is a view with other axes; None if it is none."""
    storage = leaf.storage
    if not isinstance(storage, Arranged) or len(storage.parts) != 1:
        return None
    (part,) = storage.parts
    is_compared = bool(storage.copies or storage.dropped)
    whole = part.box == whole_box(storage.shape) and not (storage.padding or is_compared)
    is_split = len(storage.shape) > len(leaf.shape) or storage.arithmetic is not None
    return part.leaf if whole and not is_split else None


def with_storages(leaf: Leaf, storages: Mapping[int, LeafStorage]) -> Leaf:
    """Return a leaf with other storage, or with that of its parts, by the identity of the leaf."""
    if isinstance(leaf.storage, Arranged):
        return leaf._replace(storage=_with_storages(leaf.storage, storages))
    return leaf._replace(storage=storages[id(leaf)])


def _with_storages(arranged: Arranged, storages: Mapping[int, LeafStorage]) -> Arranged:
    parts = [
        part._replace(leaf=part.leaf._replace(storage=storages[id(part.leaf)]))
        for part in arranged.parts
    ]
    copies = [_with_storages(copy, storages) for copy in arranged.copies]
    dropped = [_with_storages(each, storages) for each in arranged.dropped]
    return arranged._replace(parts=tuple(parts), copies=tuple(copies), dropped=tuple(dropped))
