"""What of a stored array goes where, by strided copies out of bytes that were read. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from cordwood.index import Box
from cordwood.plan.byte_ranges import byte_strides, flat_boxes
from cordwood.sharding.boxes import intersect, shape_of


class BoxDestination(NamedTuple):
    """A box of a stored array, and where it goes."""

    box: Box
    buffer: int
    position: int  # in bytes, of the box's first element
    steps: tuple[int, ...]  # in bytes, from one index to the next along each axis


class Scatter(NamedTuple):
    """A stored array, in C order, of which several boxes are wanted."""

    shape: tuple[int, ...]
    item_bytes: int
    parts: tuple[BoxDestination, ...]


class Codec(NamedTuple):
    """What was done to the elements of a chunk."""

    compressor: str | None  # "zstd", "gzip", "zlib", "deflate", "bz2", "blosc"
    order: Literal["C", "F"] = "C"
    swapped: bool = False  # they are big-endian
    skip_bytes: int = 0  # before the elements, once decompressed
    crc32: int | None = None  # of all that it decompresses to


class EncodedChunk(NamedTuple):
    """A range of a source that has to be decoded: it becomes the whole array of a spread."""

    source: int
    offset: int
    length: int
    codec: Codec
    dtype: str
    scatter: Scatter


class StridedCopy(NamedTuple):
    """One strided copy, of items of some bytes."""

    item_bytes: int
    shape: tuple[int, ...]
    position: int  # where it begins in the bytes that were read
    steps: tuple[int, ...]
    buffer: int
    target_position: int
    target_steps: tuple[int, ...]


def strided_copies(spread: Scatter, start: int, stop: int) -> Iterator[StridedCopy]:
    """What to do with bytes start to stop of a stored array, which may cut elements in two.

    No copy has more axes than the array (numpy has at most 64): one for the bytes of an element
    is added where others, of a single index, are left out.
    """
    item = spread.item_bytes
    steps = (*byte_strides(spread.shape, item), 1)
    for cell in flat_boxes((*spread.shape, item), start, stop):
        whole_items = cell.start[-1] == 0 and cell.stop[-1] == item
        elements = Box(cell.start[:-1], cell.stop[:-1])
        for part in spread.parts:
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
