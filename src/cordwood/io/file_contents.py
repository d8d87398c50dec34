"""The contents of a file that is not written yet: fills buffers from its literals and leaves."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TypeGuard, cast

import numpy as np

from cordwood.errors import CordwoodError
from cordwood.index import Box
from cordwood.io.leaves_to_write import Array, LazyArray
from cordwood.plan.file_plan import LeafBytes, Segment

_SMALL_COPY_BYTES = 16 << 10  # below this, memoryview assignment is quicker than numpy's
_LITTLE_ENDIAN = ("|", "<", "=") if sys.byteorder == "little" else ("|", "<")


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
        part: Callable[[int, Box | None], Array | LazyArray],
    ) -> None:
        self._segments = segments
        self._ends = ends
        self._part = part
        self._lock = threading.Lock()
        self._remaining: dict[int, int] = {}  # bytes still to be copied of each held segment
        self._held: dict[int, Array | LazyArray] = {}

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

    def _small_leaves(self, segment: int, room: int) -> list[Array | bytearray]:
        """Return the bytes of the consecutive small leaves from a segment on.

        They are joined and then copied, which is faster than a view of the target for each.
        """
        parts: list[Array | bytearray] = []
        for i in range(segment, len(self._segments)):
            item = self._segments[i]
            if not isinstance(item, LeafBytes):
                break
            leaf, start, stop, box = item
            size = stop - start
            room -= size
            if size >= _SMALL_COPY_BYTES or room < 0:
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
            self._remaining[segment] -= len(target)
            if not self._remaining[segment]:
                del self._remaining[segment], self._held[segment]


def _copy_leaf(leaf: int, array: Array | LazyArray, start: int, target: memoryview) -> None:
    try:
        copy_bytes(array, start, target)
    except CordwoodError:
        raise  # an error of the file that a LazyArray reads
    except ValueError as e:
        raise ValueError(f"leaf {leaf}: {e}") from e


def _joined(parts: Sequence[Array | bytearray]) -> bytes:
    try:
        return b"".join(cast("Sequence[bytearray]", parts))
    except (BufferError, TypeError, ValueError):  # strides, or a dtype without a buffer format
        return b"".join([p.tobytes() if isinstance(p, np.ndarray) else p for p in parts])


def copy_bytes(array: Array | LazyArray, start: int, target: memoryview) -> None:
    """Fill `target` with the bytes of `array`, in C order and little-endian, from `start` on.

    Raises ValueError if the array has fewer bytes.
    """
    if isinstance(array, LazyArray):
        array.copy_bytes(start, target)
        return
    if type(array) is not np.ndarray:  # a subclass may reshape in its own way
        array = np.asarray(array)
    size = len(target)
    if start + size > array.nbytes:
        raise ValueError(f"expected bytes {start} to {start + size}, found {array.nbytes} in all")
    if not array.flags.c_contiguous or not is_little_endian(array):
        _copy_elements(array, start, np.frombuffer(target, np.uint8))
        return
    source = array.reshape(-1).view(np.uint8)
    if size < _SMALL_COPY_BYTES:
        target[:] = source.data if size == len(source) else source.data[start : start + size]
    else:  # releases the GIL
        np.copyto(np.frombuffer(target, np.uint8), source[start : start + size])


def is_little_endian(array: Array | LazyArray) -> TypeGuard[Array]:
    """Return True for a plain array whose bytes are little-endian, as files hold them."""
    return type(array) is np.ndarray and array.dtype.byteorder in _LITTLE_ENDIAN


def _copy_elements(array: np.ndarray, start: int, target: np.ndarray) -> None:
    """Do the work of `copy_bytes` for any strides and byte order, without a copy of the array."""
    size = array.itemsize
    dtype = array.dtype.newbyteorder("<")
    at, total = 0, len(target)
    while at < total:
        element, inside = divmod(start + at, size)
        whole = (total - at) // size if not inside else 0
        if whole:
            count = whole * size
            _copy_range(array, element, element + whole, target[at : at + count].view(dtype))
        else:  # the target begins or ends within an element
            one = np.empty(1, dtype)
            _copy_range(array, element, element + 1, one)
            count = min(size - inside, total - at)
            target[at : at + count] = one.view(np.uint8)[inside : inside + count]
        at += count


def _copy_range(array: np.ndarray, start: int, stop: int, target: np.ndarray) -> None:
    """Copy elements [start, stop) in C order to the 1-d `target`, in boxes as large as possible."""
    if array.ndim <= 1:
        np.copyto(target, array.reshape(-1)[start:stop] if array.ndim == 0 else array[start:stop])
        return
    row = math.prod(array.shape[1:])
    at = start
    while at < stop:
        index, inside = divmod(at, row)
        rows = (stop - at) // row if not inside else 0
        if rows:
            count = rows * row
            box = target[at - start : at - start + count].reshape(rows, *array.shape[1:])
            np.copyto(box, array[index : index + rows])
        else:
            count = min(row - inside, stop - at)
            part = target[at - start : at - start + count]
            _copy_range(array[index], inside, inside + count, part)
        at += count
