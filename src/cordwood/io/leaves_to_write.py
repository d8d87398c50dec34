"""The leaves of a tree while they are written, whatever holds their elements.

A leaf is an array of the caller, the shards that a snapshot holds, or an array of another
checkpoint, whose elements are read when its turn comes. Writers take parts of leaves, and do not
know which of these it is.

A checkpoint is copied in pieces of a few MiB: its large arrays are LazyArrays, which are read while
they are written. The threads of a writer ask for byte ranges from start to end, nearly in order. If
an array can be read by byte ranges, they are read straight into the writer's buffer. Other arrays
are read in windows, each once, and the last few windows are kept.

FileContents fills buffers with the bytes of a file that is made of such parts.

One file, because the parts of a leaf and the bytes of a file that is made of them are one contract:
when a part is taken, and when its leaf is released.
"""

from __future__ import annotations

import math
import sys
import threading
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeGuard, cast

import numpy as np

from cordwood.devices.jax_arrays import DistinctShardsOf, LocalShards, local_shards
from cordwood.errors import CordwoodError
from cordwood.index import Box
from cordwood.plan.file_plan import LeafBytes, Segment
from cordwood.plan.split_arrays import element_range, split_array
from cordwood.sharding.boxes import element_count, is_contiguous, shape_of, slices, whole_box
from cordwood.tree.leaves import DeferredArray, is_jax_array, whole_array, without_padding

Array: TypeAlias = np.ndarray[Any, Any]

WINDOW_BYTES = 16 << 20
_KEPT = 3  # windows: eight threads that fill 4 MiB each use three at a time
_KEPT_OF_LARGE = 2  # the same for larger windows
_MAX_ROWS_BYTES = 128 << 20  # the most that is decoded at once, so that each chunk is decoded once
_SMALL_COPY_BYTES = 16 << 10  # below this, memoryview assignment is quicker than numpy's
_LITTLE_ENDIAN = ("|", "<", "=") if sys.byteorder == "little" else ("|", "<")


class Leaves:
    """The leaves of a save. Each is taken for its first part, and released after its last.

    The parts of a leaf are all of it, or boxes. They are numpy arrays, views where possible, which
    keep the memory of the leaf in use; a part of a leaf that is read on demand is a LazyArray.
    Several threads may ask for parts; leaves are taken by one of them at a time.

    Args:
        values: the leaves: arrays of the caller, LocalShards, DeferredArrays, str and bytes.
        on_take: called with the position of a leaf when it is taken; for the progress.
    """

    def __init__(
        self, values: Iterable[Any], *, on_take: Callable[[int], None] | None = None
    ) -> None:
        self.on_take = on_take
        self._values = list(values)
        self._lock = threading.Lock()
        self._parts_left: dict[int, int] = {}  # of leaves that have several parts
        self._held: dict[int, Any] = {}  # leaves that were taken and have more parts
        self._distinct: DistinctShardsOf = {}

    def expect(self, parts: Iterable[int]) -> None:
        """Note the leaf of each part that will be taken; without this, each leaf has one part."""
        numbers = list(parts)
        if len(set(numbers)) < len(numbers):
            self._parts_left = {leaf: n for leaf, n in Counter(numbers).items() if n > 1}

    def part(self, leaf: int, box: Box | None = None) -> Array | LazyArray:
        """Return the elements of a box of a leaf, or of all of it, and release the leaf if due."""
        with self._lock:
            value = self._held.get(leaf)
            if value is None:
                value = self._elements(self._pop(leaf), whole=box is None)
            if leaf in self._parts_left:
                self._parts_left[leaf] -= 1
                if self._parts_left[leaf]:
                    self._held[leaf] = value
                else:
                    del self._parts_left[leaf]
                    self._held.pop(leaf, None)
        return value if box is None else _within(value, box)

    def view(self, leaf: int, box: Box | None = None) -> Array | LazyArray:
        """Return a part of a leaf that was not taken yet, any number of times."""
        value = self._elements(self._values[leaf], whole=box is None)
        return value if box is None else _within(value, box)

    def release(self, leaf: int, parts: int) -> None:
        """Count parts of a leaf as written that were taken by `view`; release the leaf if due."""
        with self._lock:
            left = self._parts_left.pop(leaf, parts) - parts
            if left:
                self._parts_left[leaf] = left
            else:
                self._pop(leaf)

    def drop(self, leaf: int) -> None:
        """Release a leaf of which nothing needs to be written."""
        with self._lock:
            self._pop(leaf)

    def clear(self) -> None:
        """Release all leaves."""
        self._values.clear()
        self._held.clear()

    def _pop(self, leaf: int) -> Any:
        value, self._values[leaf] = self._values[leaf], None
        if self.on_take is not None:
            self.on_take(leaf)
        return value

    def _elements(self, value: Any, *, whole: bool) -> Any:
        """Return a leaf as something that has parts: an array, LocalShards or a LazyArray."""
        if type(value) is DeferredArray:
            value = value.read()
        if isinstance(value, LazyArray):
            return value
        if whole:
            return whole_array(value)
        if isinstance(value, LocalShards):
            return value
        if is_jax_array(value):
            return local_shards(value, self._distinct)
        if isinstance(value, str | bytes):
            return whole_array(value)
        return np.asarray(value)


def _within(value: Any, box: Box) -> Array | LazyArray:
    if isinstance(value, LazyArray):
        return value.within(box)
    part = value.part(box) if isinstance(value, LocalShards) else value[slices(box)]
    return without_padding(part)


class LazyArray:
    """An array whose elements are read on demand.

    Args:
        shape: the shape of the array.
        dtype: its dtype.
        read: returns the elements of a box as an array of that dtype; called by several threads.
        rows: the extent along the first axis of the chunks that are decoded as wholes.
        stored_item_bytes: the size of an element before it is cast.
        read_into: fills memory with the bytes of the array, in C order and little-endian, from
            an offset on; called by several threads. None if only boxes can be read.

    Attributes:
        part: `read`; as of other arrays to be written, it returns the elements of a box.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        read: Callable[[Box], Array],
        *,
        rows: int = 1,
        stored_item_bytes: int = 0,
        read_into: Callable[[int, memoryview], None] | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self.part = read
        self._rows = rows
        self._widest_bytes = max(dtype.itemsize, stored_item_bytes)
        self._read_into = read_into
        self._lock = threading.Lock()
        self._windows: list[Box] | None = None
        self._starts: list[int] = []  # the offsets of the windows, in bytes
        self._most = _KEPT
        self._kept: OrderedDict[int, Array] = OrderedDict()
        self._reading: dict[int, threading.Lock] = {}

    def within(self, box: Box) -> LazyArray:
        """Return a box of the array as a lazy array; nothing is read."""
        if box == whole_box(self.shape):
            return self
        read_into, whole = None, self._read_into
        if whole is not None and is_contiguous(shape_of(box), self.shape):
            first = element_range(box, self.shape)[0] * self.dtype.itemsize

            def read_into(start: int, target: memoryview) -> None:
                whole(first + start, target)

        def read(inner: Box) -> Array:
            return self.part(
                Box(
                    tuple(map(int.__add__, inner.start, box.start)),
                    tuple(map(int.__add__, inner.stop, box.start)),
                )
            )

        return LazyArray(
            shape_of(box),
            self.dtype,
            read,
            rows=self._rows,
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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
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
            split_array(self.shape, item_bytes=widest, limit_bytes=WINDOW_BYTES, rows=rows)
        )
        self._starts = [element_range(box, self.shape)[0] * item for box in windows]
        largest = max((element_count(box) for box in windows), default=0) * widest
        self._most = _KEPT if largest <= WINDOW_BYTES else _KEPT_OF_LARGE
        self._windows = windows

    def _window(self, number: int) -> Array:
        with self._lock:
            data = self._kept.get(number)
            # Decoding whole chunks needs twice their size, so only one thread does it at a time.
            lock = self._reading.setdefault(number if self._rows == 1 else 0, threading.Lock())
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

    def _bytes(self, number: int) -> Array:
        assert self._windows is not None
        array = self.part(self._windows[number])
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return little.reshape(-1).view(np.uint8)


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
            left = self._remaining.pop(segment, 0) - len(target)
            if left > 0:
                self._remaining[segment] = left
            else:  # an upload reads some blocks twice, so another thread may have been the last
                self._held.pop(segment, None)


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
