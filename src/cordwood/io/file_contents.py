"""The bytes of a file that is made of parts of leaves.

When a part is taken, its leaf is read; once the last part of a leaf is taken, it is released.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from cordwood.errors import CordwoodError
from cordwood.index import Box
from cordwood.io.copy_bytes import SMALL_COPY_BYTES, copy_bytes, is_little_endian
from cordwood.io.lazy_array import LazyArray
from cordwood.plan.file_plan import LeafBytes, Segment


class FileContents:
    """The segments of a file, and the leaves that provide their bytes.

    The part of each segment is taken once, and released after its last byte.

    Args:
        segments: the segments.
        ends: the offset of each segment in bytes, and the end of the last one.
        part: returns a part of a leaf: `Leaves.part`, or `Leaves.view`.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        ends: Sequence[int],
        part: Callable[[int, Box | None], np.ndarray | LazyArray],
    ) -> None:
        self._segments = segments
        self._ends = ends
        self._part = part
        self._lock = threading.Lock()
        self._remaining: dict[int, int] = {}  # bytes still to be copied of each held segment
        self._held: dict[int, np.ndarray | LazyArray] = {}

    def fill(self, buffer: memoryview, segment: int, skip: int) -> None:
        """Fill `buffer` with the bytes of the file from byte `skip` of a segment on."""
        at, size = 0, len(buffer)
        segments, ends = self._segments, self._ends
        while at < size:
            small = self._small_leaves(segment, size - at) if not skip else []
            if small:
                data = _joined(small)
                buffer[at : at + len(data)] = data
                at += len(data)
                segment += len(small)
                continue
            item = segments[segment]
            length = ends[segment + 1] - ends[segment]
            count = min(length - skip, size - at)
            if not isinstance(item, LeafBytes):
                data = item.data
                buffer[at : at + count] = (
                    data if count == length else memoryview(data)[skip : skip + count]
                )
            elif count < length:
                self._copy_some(segment, item, skip, buffer[at : at + count])
            elif count:
                part = self._part(item.leaf, item.box)
                _copy_leaf(item.leaf, part, item.start, buffer[at : at + count])
                del part
            at += count
            segment += 1
            skip = 0

    def _small_leaves(self, segment: int, room: int) -> list[np.ndarray | bytearray]:
        """Return the bytes of the consecutive small leaves from a segment on.

        They are joined and then copied, which is faster than a view of the target for each.
        """
        parts: list[np.ndarray | bytearray] = []
        for i in range(segment, len(self._segments)):
            item = self._segments[i]
            if not isinstance(item, LeafBytes):
                break
            leaf, start, stop, box = item
            size = stop - start
            room -= size
            if size >= SMALL_COPY_BYTES or room < 0:
                break
            if not size:
                parts.append(bytearray())
                continue
            array = self._part(leaf, box)
            if array.nbytes == size and not start and is_little_endian(array):
                parts.append(array)
            else:
                data = bytearray(size)
                _copy_leaf(leaf, array, start, memoryview(data))
                parts.append(data)
        return parts

    def _copy_some(self, segment: int, item: LeafBytes, skip: int, target: memoryview) -> None:
        """Copy some bytes of a segment of which other units need the others."""
        with self._lock:
            if segment not in self._held:
                self._held[segment] = self._part(item.leaf, item.box)
                self._remaining[segment] = item.stop - item.start
            part = self._held[segment]
        _copy_leaf(item.leaf, part, item.start + skip, target)
        with self._lock:
            remaining_bytes = self._remaining.pop(segment, 0) - len(target)
            if remaining_bytes > 0:
                self._remaining[segment] = remaining_bytes
            else:  # an upload reads some blocks twice, so another thread may have been the last
                self._held.pop(segment, None)


def _copy_leaf(leaf: int, array: np.ndarray | LazyArray, start: int, target: memoryview) -> None:
    try:
        copy_bytes(array, start, target)
    except CordwoodError:
        raise  # an error of the file that a LazyArray reads
    except ValueError as e:
        raise ValueError(f"leaf {leaf}: {e}") from e


def _joined(parts: Sequence[np.ndarray | bytearray]) -> bytes:
    try:
        return b"".join(cast("Sequence[bytearray]", parts))
    except (BufferError, TypeError, ValueError):  # strides, or a dtype without a buffer format
        return b"".join([p.tobytes() if isinstance(p, np.ndarray) else p for p in parts])
