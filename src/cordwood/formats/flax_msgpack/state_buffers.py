"""The msgpack bytes of a state dict: planned, and produced piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from cordwood.errors import LimitError, UnsupportedLeafError
from cordwood.formats.flax_msgpack.plan_save import plan_save
from cordwood.io.leaves_to_write import Array, LazyArray, Leaves
from cordwood.plan.file_plan import FilePlan, LiteralBytes

_chunk_size: int = 2**30


class ChunkSizeModule(ModuleType):
    """A module whose `MAX_CHUNK_SIZE` can be assigned with effect, as in Flax and eFormer.

    All such modules share one value. It is read at each save: arrays of more bytes are stored in
    pieces.
    """

    @property
    def MAX_CHUNK_SIZE(self) -> int:
        return _chunk_size

    @MAX_CHUNK_SIZE.setter
    def MAX_CHUNK_SIZE(self, size_bytes: int) -> None:
        global _chunk_size
        _chunk_size = size_bytes


def plan_state(
    state: Any,
    *,
    sort_keys: bool = False,
    problems: list[UnsupportedLeafError | LimitError] | None = None,
) -> tuple[FilePlan, tuple[Any, ...]]:
    """Return the plan of a state dict's msgpack bytes, and the arrays that it counts.

    With `problems`, leaves that cannot be stored are collected there, and not raised.
    """
    return plan_save(state, max_chunk_size=_chunk_size, sort_keys=sort_keys, problems=problems)


def plan_buffers(plan: FilePlan, leaves: Leaves) -> Iterator[memoryview]:
    """Return the bytes of a plan, piece by piece; the pieces of a leaf follow one another."""
    current, array, elements = -1, None, memoryview(b"")
    for segment in plan.segments:
        if isinstance(segment, LiteralBytes):
            yield memoryview(segment.data)
            continue
        if segment.leaf != current:
            array = None  # released before the next one is taken
            current, array = segment.leaf, leaves.part(segment.leaf)
            elements = memoryview(b"") if isinstance(array, LazyArray) else _elements(array)
        if isinstance(array, LazyArray):
            yield from array.buffers(segment.start, segment.stop)
            continue
        if segment.stop - segment.start == len(elements):
            yield elements
        else:
            yield elements[segment.start : segment.stop]


def _elements(array: Array) -> memoryview:
    """Return the elements of an array in C order and little-endian: a view where possible."""
    if not array.flags.c_contiguous:
        array = array.copy()
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.reshape(-1).view(np.uint8).data
