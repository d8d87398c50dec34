"""Fill buffers with ranges of a file that does not exist yet, from literals and leaves."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np

from cordwood.plan.save import LeafBytes, Segment

__all__ = ["LeafStore", "copy_bytes"]

_SMALL_COPY_BYTES = 16 << 10  # below this, memoryview assignment is quicker than numpy's


class LeafStore:
    """The segments of a file and the leaves they take their bytes from.

    Each leaf is fetched once, by one thread at a time, and dropped after its last byte.
    """

    def __init__(self, segments: Sequence[Segment], fetch: Callable[[int], np.ndarray]) -> None:
        self._segments = segments
        self._fetch = fetch
        self._lock = threading.Lock()
        self._left: dict[int, int] = {}  # bytes of each leaf that are still to be written
        self._held: dict[int, np.ndarray] = {}
        for segment in segments:
            if isinstance(segment, LeafBytes):
                leaf, start, stop = segment
                self._left[leaf] = self._left.get(leaf, 0) + stop - start

    def fill(self, buffer: memoryview, segment: int, skip: int) -> None:
        """Fill `buffer` with the file from byte `skip` of a segment on."""
        at, size = 0, len(buffer)
        segments = self._segments
        while at < size:
            item = segments[segment]
            if isinstance(item, LeafBytes):
                leaf, start, stop = item
                start += skip
                count = min(stop - start, size - at)
                if count:
                    self._copy(leaf, start, buffer[at : at + count])
            else:
                data = memoryview(item.data)[skip : skip + size - at]
                count = len(data)
                buffer[at : at + count] = data
            at += count
            segment += 1
            skip = 0

    def _copy(self, leaf: int, start: int, target: memoryview) -> None:
        array = self._take(leaf)
        try:
            copy_bytes(array, start, target)
        except ValueError as e:
            raise ValueError(f"leaf {leaf}: {e}") from e
        del array
        self._release(leaf, len(target))

    def _take(self, leaf: int) -> np.ndarray:
        with self._lock:
            array = self._held.get(leaf)
            if array is None:
                array = np.asarray(self._fetch(leaf))
                self._held[leaf] = array
            return array

    def _release(self, leaf: int, count: int) -> None:
        with self._lock:
            left = self._left[leaf] - count
            if left:
                self._left[leaf] = left
                return
            del self._left[leaf]
            array = self._held.pop(leaf)
        del array  # outside the lock: freeing it may run the caller's code


def copy_bytes(array: np.ndarray, start: int, target: memoryview) -> None:
    """Fill `target` with the bytes of `array`, C order and little-endian, from `start` on.

    Raises ValueError where the array has fewer bytes.
    """
    stop = start + len(target)
    if stop > array.nbytes:
        raise ValueError(f"expected bytes {start} to {stop}, found {array.nbytes} in all")
    order = array.dtype.byteorder
    little = order == "|" or order == "<" or (order == "=" and sys.byteorder == "little")
    if little and array.flags.c_contiguous:
        source = array.reshape(-1).view(np.uint8)
        if len(target) < _SMALL_COPY_BYTES:
            target[:] = source.data[start:stop]
        else:  # releases the GIL
            np.copyto(np.frombuffer(target, np.uint8), source[start:stop])
        return
    _copy_elements(array, start, np.frombuffer(target, np.uint8))


def _copy_elements(array: np.ndarray, start: int, target: np.ndarray) -> None:
    """As copy_bytes for any strides and byte order, without a copy of the array."""
    size = array.itemsize
    dtype = array.dtype.newbyteorder("<")
    at, total = 0, len(target)
    while at < total:
        element, inside = divmod(start + at, size)
        whole = (total - at) // size if not inside else 0
        if whole:
            count = whole * size
            _copy_range(array, element, element + whole, target[at : at + count].view(dtype))
        else:  # the edge of the target cuts through an element
            one = np.empty(1, dtype)
            _copy_range(array, element, element + 1, one)
            count = min(size - inside, total - at)
            target[at : at + count] = one.view(np.uint8)[inside : inside + count]
        at += count


def _copy_range(array: np.ndarray, start: int, stop: int, target: np.ndarray) -> None:
    """Elements [start, stop) in C order into the 1-d `target`, by boxes as large as fit."""
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
