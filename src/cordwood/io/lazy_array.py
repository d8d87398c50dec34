"""Arrays whose elements are read on demand, in pieces of a few MiB, while they are written."""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cordwood.index import Box
from cordwood.plan.split_arrays import WINDOW_BYTES, element_range, split_array
from cordwood.sharding.boxes import absolute, element_count, is_contiguous, shape_of, whole_box

_KEPT = 3  # windows: eight threads that fill 4 MiB each use three at a time
_KEPT_OF_LARGE = 2  # the same for larger windows
_MAX_ROWS_BYTES = 128 << 20  # the most that is decoded at once, so that each chunk is decoded once


class LazyArray:
    """An array whose elements are read on demand.

    Args:
        shape: the shape of the array.
        dtype: its dtype.
        read: returns the elements of a box as an array of that dtype; called by several threads.
        rows: the extent along the first axis of the chunks that are decoded as wholes.
        window_bytes: the size of the windows to read, if not WINDOW_BYTES. Larger ones are read one
            after another, and parts of the array share them.
        stored_item_bytes: the size of an element before it is cast.
        read_into: fills memory with the bytes of the array, in C order and little-endian, from
            an offset on; called by several threads. None if only boxes can be read.

    Attributes:
        part: `read`; as of other arrays to be written, it returns the elements of a box.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype,
        read: Callable[[Box], np.ndarray],
        *,
        rows: int = 1,
        window_bytes: int | None = None,
        stored_item_bytes: int = 0,
        read_into: Callable[[int, memoryview], None] | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.part = read
        self._rows = rows
        self._window_bytes = window_bytes or WINDOW_BYTES
        self._widest_bytes = max(dtype.itemsize, stored_item_bytes)
        self._read_into = read_into
        self._lock = threading.Lock()
        self._windows: list[Box] | None = None
        self._starts: list[int] = []  # the offsets of the windows, in bytes
        self._most = _KEPT
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()
        self._reading: dict[int, threading.Lock] = {}

    def within(self, box: Box) -> LazyArray:
        """Return a box of the array as a lazy array; nothing is read."""
        if box == whole_box(self.shape):
            return self
        read_into = None
        has_large_windows = self._window_bytes > WINDOW_BYTES  # which are not read for each part
        is_read_by_bytes = self._read_into is not None or has_large_windows
        if is_read_by_bytes and is_contiguous(shape_of(box), self.shape):
            first = element_range(box, self.shape)[0] * self.dtype.itemsize

            def read_into(start: int, target: memoryview) -> None:
                self.copy_bytes(first + start, target)

        def read(inner: Box) -> np.ndarray:
            return self.part(absolute(inner, box))

        return LazyArray(
            shape_of(box),
            self.dtype,
            read,
            rows=self._rows,
            window_bytes=self._window_bytes,
            stored_item_bytes=self._widest_bytes,
            read_into=read_into,
        )

    def copy_bytes(self, start: int, target: memoryview) -> None:
        """Fill `target` with the bytes of the array, in C order and little-endian, from `start` on.

        Raises ValueError if it has fewer bytes.
        """
        stop = start + len(target)
        if stop > self.nbytes:
            raise ValueError(f"expected bytes {start} to {stop}, found {self.nbytes} in all")
        if self._read_into is not None:
            self._read_into(start, target)
            return
        out = np.frombuffer(target, np.uint8)
        at = start
        for number in self._numbers(start, stop):
            data = self._window(number)
            inside = at - self._starts[number]
            count = min(stop - at, len(data) - inside)
            np.copyto(out[at - start : at - start + count], data[inside : inside + count])
            at += count

    def buffers(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield its bytes from start to stop, window by window."""
        for number in self._numbers(start, stop):
            first = self._starts[number]
            yield self._window(number)[max(0, start - first) : stop - first].data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.part(whole_box(self.shape))
        return array if dtype is None and not copy else np.array(array, dtype, copy=copy)

    def _numbers(self, start: int, stop: int) -> range:
        """Return the numbers of the windows that overlap a range of bytes."""
        with self._lock:
            if self._windows is None:
                self._cut()
        if start >= stop:
            return range(0)
        return range(bisect_right(self._starts, start) - 1, bisect_right(self._starts, stop - 1))

    def _cut(self) -> None:
        item, widest = self.dtype.itemsize, self._widest_bytes
        rows = self._rows
        if rows > 1 and rows * math.prod(self.shape[1:]) * widest > _MAX_ROWS_BYTES:
            rows = 1
        windows = list(
            split_array(self.shape, item_bytes=widest, limit_bytes=self._window_bytes, rows=rows)
        )
        self._starts = [element_range(box, self.shape)[0] * item for box in windows]
        largest = max((element_count(box) for box in windows), default=0) * widest
        self._most = _KEPT if largest <= WINDOW_BYTES else _KEPT_OF_LARGE
        self._windows = windows

    def _window(self, number: int) -> np.ndarray:
        with self._lock:
            data = self._kept.get(number)
            # Decoding whole chunks needs twice their size, so only one thread does it at a time.
            is_small = self._rows == 1 and self._window_bytes <= WINDOW_BYTES
            lock = self._reading.setdefault(number if is_small else 0, threading.Lock())
        if data is not None:
            return data
        with lock:
            with self._lock:
                data = self._kept.get(number)
                if data is None:
                    self._keep(self._most - 1)  # before decoding, which needs memory too
            if data is None:
                data = self._bytes(number)
                with self._lock:
                    self._kept[number] = data
                    self._keep(self._most)
        return data

    def _keep(self, count: int) -> None:
        while len(self._kept) > count:
            self._kept.popitem(last=False)

    def _bytes(self, number: int) -> np.ndarray:
        assert self._windows is not None
        array = self.part(self._windows[number])
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return little.reshape(-1).view(np.uint8)
