"""The contents of a file that is not written yet: fills buffers from its literals and leaves."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from cordwood.errors import CordwoodError
from cordwood.io.lazy_array import LazyArray
from cordwood.plan.file_plan import LeafBytes, Segment

_SMALL_COPY_BYTES = 16 << 10  # below this, memoryview assignment is quicker than numpy's
_LITTLE_ENDIAN = ("|", "<", "=") if sys.byteorder == "little" else ("|", "<")


class FileContents:
    """The segments of a file, and the leaves that provide their bytes.

    Each leaf is fetched once, by one thread at a time, and released after its last byte.
    `ends` holds the offset of each segment in bytes, and the end of the last one.
    """

    def __init__(
        self, segments: Sequence[Segment], ends: Sequence[int], fetch: Callable[[int], np.ndarray]
    ) -> None:
        self._segments = segments
        self._ends = ends
        self._fetch = fetch
        self._lock = threading.Lock()
        self._remaining: dict[int, int] = {}  # bytes still to be written of each leaf in `_held`
        self._held: dict[int, np.ndarray] = {}
        leaves = [segment.leaf for segment in segments if isinstance(segment, LeafBytes)]
        self._totals = _totals(segments) if len(set(leaves)) < len(leaves) else {}

    def fill(self, buffer: memoryview, segment: int, skip: int) -> None:
        """Fill `buffer` with the bytes of the file from byte `skip` of a segment on."""
        at, size = 0, len(buffer)
        segments, ends, totals = self._segments, self._ends, self._totals
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
            elif count < length or item.leaf in totals:
                self._copy_part(item, length, skip, buffer[at : at + count])
            elif count:
                with self._lock:
                    array = self._fetch(item.leaf)
                _copy_leaf(item.leaf, array, item.start, buffer[at : at + count])
                del array
            at += count
            segment += 1
            skip = 0

    def _small_leaves(self, segment: int, room: int) -> list[np.ndarray | bytearray]:
        """Return the bytes of the consecutive small leaves from a segment on.

        They are joined and then copied, which is faster than a view of the target for each.
        """
        parts: list[np.ndarray | bytearray] = []
        with self._lock:
            for i in range(segment, len(self._segments)):
                item = self._segments[i]
                if not isinstance(item, LeafBytes) or item.leaf in self._totals:
                    break
                leaf, start, stop = item
                size = stop - start
                room -= size
                if size >= _SMALL_COPY_BYTES or room < 0:
                    break
                array = self._fetch(leaf)
                whole = array.nbytes == size and not start and is_little_endian(array)
                parts.append(array if whole else _part(leaf, array, start, size))
        return parts

    def _copy_part(self, item: LeafBytes, length: int, skip: int, target: memoryview) -> None:
        """Copy some bytes of a leaf that other units, or other segments, need as well."""
        if not len(target):
            return
        leaf = item.leaf
        with self._lock:
            if leaf not in self._held:
                self._held[leaf] = self._fetch(leaf)
                self._remaining[leaf] = self._totals.get(leaf, length)
            array = self._held[leaf]
        _copy_leaf(leaf, array, item.start + skip, target)
        with self._lock:
            self._remaining[leaf] -= len(target)
            if not self._remaining[leaf]:
                del self._remaining[leaf], self._held[leaf]


def _totals(segments: Sequence[Segment]) -> dict[int, int]:
    """Return the number of bytes that are written of each leaf."""
    totals: dict[int, int] = {}
    for segment in segments:
        if isinstance(segment, LeafBytes):
            totals[segment.leaf] = totals.get(segment.leaf, 0) + segment.stop - segment.start
    return totals


def _copy_leaf(leaf: int, array: np.ndarray, start: int, target: memoryview) -> None:
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


def _part(leaf: int, array: np.ndarray, start: int, size_bytes: int) -> bytearray:
    data = bytearray(size_bytes)
    _copy_leaf(leaf, array, start, memoryview(data))
    return data


def copy_bytes(array: np.ndarray | LazyArray, start: int, target: memoryview) -> None:
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


def is_little_endian(array: np.ndarray) -> bool:
    """Return True for a plain array whose bytes are little-endian, as files hold them."""
    return array.dtype.byteorder in _LITTLE_ENDIAN and type(array) is np.ndarray


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
