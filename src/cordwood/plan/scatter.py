"""Scatters: strided copies of boxes of a stored array, out of the bytes read, to buffers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from cordwood.index import Box
from cordwood.plan.byte_ranges import byte_strides, flat_boxes
from cordwood.sharding.boxes import intersect, shape_of


class BoxDestination(NamedTuple):
    """A box of a stored array, and the place in a buffer to copy it to."""

    box: Box
    buffer: int
    position: int  # in bytes, of the box's first element
    steps: tuple[int, ...]  # the strides in the buffer, in bytes


class Scatter(NamedTuple):
    """A stored array, in C order, and the boxes of it to copy to buffers."""

    shape: tuple[int, ...]
    item_bytes: int
    parts: tuple[BoxDestination, ...]


class Codec(NamedTuple):
    """The encoding of a chunk's elements."""

    compressor: str | None  # "zstd", "gzip", "zlib", "deflate", "bz2", "blosc"
    order: Literal["C", "F"] = "C"
    swapped: bool = False  # the elements are big-endian
    skip_bytes: int = 0  # in front of the elements, once decompressed
    crc32: int | None = None  # of all decompressed bytes


class EncodedChunk(NamedTuple):
    """A range of a source to decode; the result is the whole array of `scatter`."""

    source: int
    offset: int
    length: int
    codec: Codec
    dtype: str
    scatter: Scatter


class StridedCopy(NamedTuple):
    """One strided copy of items of `item_bytes` each."""

    item_bytes: int
    shape: tuple[int, ...]
    position: int  # of the first item, in the bytes that were read
    steps: tuple[int, ...]
    buffer: int
    target_position: int
    target_steps: tuple[int, ...]


def strided_copies(scatter: Scatter, start: int, stop: int) -> Iterator[StridedCopy]:
    """Yield the copies to make from bytes start to stop of a stored array.

    The range may begin or end within an element. No copy has more axes than the array (numpy has
    at most 64): an axis for the bytes of an element is added only where axes of a single index
    are left out.
    """
    item = scatter.item_bytes
    steps = (*byte_strides(scatter.shape, item), 1)
    for cell in flat_boxes((*scatter.shape, item), start, stop):
        whole_items = cell.start[-1] == 0 and cell.stop[-1] == item
        elements = Box(cell.start[:-1], cell.stop[:-1])
        for part in scatter.parts:
            common = intersect(elements, part.box)
            if common is None:
                continue
            position = sum(map(int.__mul__, common.start, steps)) - start
            target = part.position
            for at, begin, step in zip(common.start, part.box.start, part.steps, strict=True):
                target += (at - begin) * step
            if whole_items:
                shape, source_steps, target_steps = shape_of(common), steps[:-1], part.steps
            else:
                cut = cell.start[-1]
                position, target = position + cut, target + cut
                extents = [*shape_of(common), cell.stop[-1] - cut]
                kept = [axis for axis, extent in enumerate(extents) if extent > 1]
                shape = tuple([extents[axis] for axis in kept])
                source_steps = tuple([steps[axis] for axis in kept])
                target_steps = tuple([(*part.steps, 1)[axis] for axis in kept])
            size = item if whole_items else 1
            yield StridedCopy(
                size, shape, position, source_steps, part.buffer, target, target_steps
            )
