"""The bytes of a plan, produced piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cordwood.io.lazy_array import LazyArray
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import FilePlan, LiteralBytes


def buffers_of_plan(plan: FilePlan, leaves: Leaves) -> Iterator[memoryview]:
    """Return the bytes of a plan, piece by piece; the pieces of a leaf follow one another."""
    array, elements = None, memoryview(b"")
    current: int | None = None
    for segment in plan.segments:
        if isinstance(segment, LiteralBytes):
            yield memoryview(segment.data)
            continue
        if segment.leaf != current:
            array = None  # released before the next one is fetched
            current, array = segment.leaf, leaves.part(segment.leaf)
            elements = memoryview(b"") if isinstance(array, LazyArray) else _elements(array)
        if isinstance(array, LazyArray):
            yield from array.buffers(segment.start, segment.stop)
            continue
        if segment.stop - segment.start == len(elements):
            yield elements
        else:
            yield elements[segment.start : segment.stop]


def _elements(array: np.ndarray) -> memoryview:
    """Return the elements of an array in C order and little-endian: a view where possible."""
    if not array.flags.c_contiguous:
        array = array.copy()
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.reshape(-1).view(np.uint8).data
