"""The leaves of a tree while they are written, whatever holds their elements.

A leaf is an array of the caller, the shards that a snapshot holds, or an array of another
checkpoint, whose elements are read when its turn comes. Writers take parts of leaves, and do not
know which of these it is.

Arrays of another checkpoint and arrays on an accelerator are LazyArrays, which are read while they
are written. The threads of a writer ask for byte ranges from start to end, nearly in order. If an
array can be read by byte ranges, they are read straight into the writer's buffer. Other arrays are
read in windows, each once, and the last few windows are kept.

FileContents fills buffers with the bytes of a file that is made of such parts.

One file, because the parts of a leaf and the bytes of a file that is made of them are one contract:
when a part is taken, and when its leaf is released.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard, cast

import numpy as np

from cordwood.devices.jax_arrays import (
    ArrayShards,
    DistinctShardsOf,
    LocalShards,
    accelerator_shards,
    distinct_shards,
    local_shards,
)
from cordwood.errors import CordwoodError
from cordwood.index import Box
from cordwood.io.lazy_array import Array, LazyArray
from cordwood.io.staging import StagedArray, Staging
from cordwood.io.staging_memory import StagingOptions
from cordwood.plan.file_plan import LeafBytes, Segment
from cordwood.sharding.boxes import slices, whole_box
from cordwood.tree.leaves import (
    DeferredArray,
    is_jax_array,
    may_be_on_accelerator,
    whole_array,
    without_padding,
)

_SMALL_COPY_BYTES = 16 << 10  # below this, memoryview assignment is quicker than numpy's
_LITTLE_ENDIAN = ("|", "<", "=") if sys.byteorder == "little" else ("|", "<")


class Leaves:
    """The leaves of a save. Each is taken for its first part, and released after its last.

    The parts of a leaf are all of it, or boxes. They are numpy arrays, views where possible, which
    keep the memory of the leaf in use; a part of a leaf that is read on demand is a LazyArray.
    Several threads may ask for parts; leaves are taken by one of them at a time.

    Args:
        values: the leaves: arrays of the caller, or of a snapshot (LocalShards, ArrayShards),
            DeferredArrays, str and bytes.
        on_take: called with the position of a leaf when it is taken; for the progress.
        staging: the options for arrays on accelerators; None: the default ones.

    Attributes:
        staging: the copies of arrays on accelerators; None if there are none.
    """

    def __init__(
        self,
        values: Iterable[Any],
        *,
        on_take: Callable[[int], None] | None = None,
        staging: StagingOptions | None = None,
    ) -> None:
        self.on_take = on_take
        self._options = staging or StagingOptions()
        self.staging: Staging | None = None  # made for the first array on an accelerator
        self._distinct: DistinctShardsOf = {}
        # Arrays on accelerators that are not found here are held one by one when they are taken.
        self._values = list(values)
        if may_be_on_accelerator(self._values):
            self._values = accelerator_shards(self._values)
        staged: dict[int, StagedArray] = {}  # an array that is in the tree twice is copied once
        for i, value in enumerate(self._values):
            if type(value) is ArrayShards:
                key = id(value.array)
                self._values[i] = staged[key] = staged.get(key) or self._staged(value)
        self._lock = threading.Lock()
        self._parts_left: dict[int, int] = {}  # of leaves that have several parts
        self._held: dict[int, Any] = {}  # leaves that were taken and have more parts

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
        if self.staging is not None:
            self.staging.close()

    def _staged(self, shards: ArrayShards) -> StagedArray:
        if self.staging is None:
            self.staging = Staging(self._options)
        return self.staging.hold(shards)

    def _pop(self, leaf: int) -> Any:
        value, self._values[leaf] = self._values[leaf], None
        if self.on_take is not None:
            self.on_take(leaf)
        return value

    def _elements(self, value: Any, *, whole: bool) -> Any:
        """Return a leaf as something that has parts: an array, shards or a LazyArray."""
        if type(value) is DeferredArray:
            value = value.read()
        if isinstance(value, StagedArray) and whole:
            return value.part(whole_box(value.shape))
        if isinstance(value, LazyArray | StagedArray):
            return value
        if whole:
            return whole_array(value)
        if isinstance(value, LocalShards):
            return value
        if is_jax_array(value):
            shards = distinct_shards(value, self._distinct)
            return local_shards(shards, views=False) if shards.on_cpu else self._staged(shards)
        if isinstance(value, str | bytes):
            return whole_array(value)
        return np.asarray(value)


def _within(value: Any, box: Box) -> Array | LazyArray:
    if isinstance(value, LazyArray):
        return value.within(box)
    if isinstance(value, StagedArray):
        return value.part(box)
    part = value.part(box) if isinstance(value, LocalShards) else value[slices(box)]
    return without_padding(part)


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
