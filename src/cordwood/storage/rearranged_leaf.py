"""A large arranged leaf in a temporary file, for a writer that needs it from start to end.

A part of a stacked and transposed leaf reads a little from all over its sources, so that reading
it part by part would read all of them again and again. Here each source is read once, in order, and
its elements are written to their places in the file.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np

from cordwood.index import Arranged, ArrangedPart, Box, Encoded, Leaf
from cordwood.plan.load_plan import byte_strides
from cordwood.plan.split_arrays import split_array
from cordwood.sharding.boxes import shape_of
from cordwood.storage.locations import LocalPath
from cordwood.storage.scratch_file import UnnamedTemporaryFile

_BLOCK_BYTES = 32 << 20
_LEAST_RUN_BYTES = 1 << 10  # of shorter ones, too many writes would be needed


def is_worth_a_file(leaf: Leaf, item_bytes: int) -> bool:
    """Return True if the parts of an arranged leaf are runs of many bytes in it.

    Chunks would have to be decoded again for each block of them: those are not worth it.
    """
    storage = leaf.storage
    if not isinstance(storage, Arranged) or storage.copies:
        return False
    if any(isinstance(part.leaf.storage, Encoded) for part in storage.parts):
        return False
    return all(
        _run_bytes(shape_of(box), storage.shape, item_bytes) >= _LEAST_RUN_BYTES
        for part in storage.parts
        for box in list(_source_blocks(part, item_bytes))[:1]
    )


class RearrangedLeaf:
    """The bytes of an arranged leaf, in a temporary file that is filled at first use.

    Args:
        leaf: the leaf.
        read: returns the elements of a box of the split array, as they are to be written.
        folder: a directory on the disk that holds the file.
        item_bytes: the size of an element as written.
    """

    def __init__(
        self,
        leaf: Leaf,
        read: Callable[[Leaf, Box], np.ndarray],
        folder: LocalPath,
        item_bytes: int,
    ) -> None:
        self._leaf = leaf
        self._read = read
        self._folder = folder
        self._item_bytes = item_bytes
        self._lock = threading.Lock()
        self._file: UnnamedTemporaryFile | None = None

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill memory with the bytes of the leaf from `start` on. Raises StorageError."""
        with self._lock:
            if self._file is None:
                self._file = self._filled()
        self._file.read_into(start, [target])

    def _filled(self) -> UnnamedTemporaryFile:
        storage = self._leaf.storage
        assert isinstance(storage, Arranged)
        split = self._leaf._replace(shape=storage.shape)
        file = UnnamedTemporaryFile(self._folder, self._folder.text, purpose="a rearranged array")
        try:
            size_bytes = math.prod(storage.shape) * self._item_bytes
            file.reserve(size_bytes)
            for part in storage.parts:
                for box in _source_blocks(part, self._item_bytes):
                    self._write(file, box, storage.shape, self._read(split, box))
            file.size_bytes = size_bytes  # also where it ends with padding
            file.finish()
        except BaseException:
            file.close()
            raise
        return file

    def _write(
        self, file: UnnamedTemporaryFile, box: Box, shape: Sequence[int], array: np.ndarray
    ) -> None:
        """Write the elements of a box of the split array, run by run."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        steps = byte_strides(shape, self._item_bytes)
        sizes = shape_of(box)
        length = _run_bytes(sizes, shape, self._item_bytes)
        axes, size = len(sizes), self._item_bytes
        while size < length:
            axes -= 1
            size *= sizes[axes]
        first = sum(map(int.__mul__, box.start, steps))
        at = 0
        for index in product(*map(range, sizes[:axes])):
            offset = first + sum(map(int.__mul__, index, steps))
            file.write_at(data[at : at + length], offset)
            at += length


def _run_bytes(sizes: Sequence[int], shape: Sequence[int], item_bytes: int) -> int:
    """Return the length of the contiguous runs of a box of those sizes."""
    length = item_bytes
    for size, full in zip(reversed(sizes), reversed(shape), strict=True):
        length *= size
        if size != full:
            break
    return length


def _source_blocks(part: ArrangedPart, item_bytes: int) -> Iterator[Box]:
    """Yield the boxes of the split array that are blocks of the source of a part, in its order."""
    axes = [axis for axis in part.axes if axis >= 0]
    sizes = shape_of(part.box)
    extents = [sizes[axis] for axis in axes]
    for block in split_array(extents, item_bytes=item_bytes, limit_bytes=_BLOCK_BYTES):
        start, stop = list(part.box.start), list(part.box.stop)
        for axis, low, high in zip(axes, block.start, block.stop, strict=True):
            start[axis], stop[axis] = part.box.start[axis] + low, part.box.start[axis] + high
        yield Box(tuple(start), tuple(stop))
