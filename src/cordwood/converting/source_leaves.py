"""The leaves of a checkpoint as the input of a writer, for convert."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.converting.rearranged_leaf import rearrange_in_file
from cordwood.index import (
    ARRAY_KINDS,
    Arranged,
    Box,
    Encoded,
    Inline,
    Leaf,
    LeafSpec,
    size_in_memory,
)
from cordwood.io.lazy_array import LazyArray
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.io.progress import ProgressMeter
from cordwood.io.read_units import read_moves
from cordwood.io.source_digests import block_bytes
from cordwood.keypath import format_path
from cordwood.loading.cast import convert_dtype
from cordwood.loading.checkpoint import Checkpoint
from cordwood.loading.load_target import Target
from cordwood.loading.stored_leaf import StoredLeaf
from cordwood.plan.load_plan import contiguous_extents, plan_extent_moves
from cordwood.plan.read_windows import choose_windows
from cordwood.plan.select_leaves import SelectedLeaves
from cordwood.plan.split_arrays import WINDOW_BYTES
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.scratch.scratch_file import scratch_directory
from cordwood.tree.leaves import DeferredArray, has_padding, without_padding

_SMALL_BYTES = 256 << 10  # smaller leaves are read several at a time
_BATCH_BYTES = 8 << 20
_KEPT_BYTES = 64 << 20  # of small leaves that were read and not taken yet


def scratch_near(source: str, destination: Location) -> LocalPath:
    """Return the directory of the destination, or that of the source if it is in a store."""
    near = source if isinstance(destination, Url) else str(destination)
    return LocalPath(scratch_directory(near))


class StoredLeaves:
    """Leaves of a checkpoint that a writer takes one by one, from one thread at a time.

    Args:
        checkpoint: the checkpoint; it stays open until all leaves are written.
        selected: its leaves to write.
        dtype_names: the dtype of each leaf as written.
        meter: receives the progress of reading, or None.
        scratch: a directory on whose disk a large leaf is rearranged.

    Attributes:
        leaves: the leaves of a tree to save.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        selected: SelectedLeaves,
        dtype_names: Sequence[str],
        meter: ProgressMeter | None,
        scratch: LocalPath,
    ) -> None:
        leaves = selected.stored.leaves
        self._reader = checkpoint._reader.mapped(selected)
        self._stored = leaves
        self._dtype_names = dtype_names
        self._located = self._reader.with_pieces(leaves)
        self._kept: dict[int, np.ndarray] = {}
        self._kept_bytes = 0
        self._meter = meter
        self._scratch = scratch
        self._threads = threading.local()
        self.leaves = tuple([self._leaf(i, leaf) for i, leaf in enumerate(selected.stored.leaves)])

    def _leaf(self, number: int, leaf: Leaf) -> Any:
        """Return a leaf to save: a DeferredArray, or the value itself if it is small."""
        if leaf.kind in ("jax", "numpy", "prng_key"):
            dtype = self._dtype_names[number]
            weak_type = leaf.weak_type and dtype == leaf.dtype
            spec = LeafSpec(leaf.key_path, leaf.kind, leaf.shape, dtype, weak_type, leaf.prng_impl)
            return DeferredArray(spec, partial(self._array, number))
        if leaf.kind == "numpy_scalar":
            return np.asarray(self._array(number))[()]
        if isinstance(leaf.storage, Inline):
            return leaf.storage.value
        return StoredLeaf(self._stored[number], self._reader).load(to="numpy")

    def _array(self, number: int) -> np.ndarray | LazyArray:
        """Return the elements of an array leaf; those of a large leaf are read on demand."""
        leaf = self._located[number]
        if isinstance(leaf.storage, Inline):
            return self._cast(number, np.asarray(leaf.storage.value))
        size = size_in_memory(leaf)
        if size < _SMALL_BYTES:
            return self._small(number)

        rows, window_bytes = 1, WINDOW_BYTES
        reader = self._reader
        if isinstance(leaf.storage, Encoded) and leaf.storage.chunk_shape:
            rows = leaf.storage.chunk_shape[0]
        elif isinstance(leaf.storage, Arranged):
            blocks = block_bytes(reader.index.sources, verify=True)
            distant = [reader.files[piece.source].latency_bound for piece in leaf.storage.pieces]
            windows = choose_windows(leaf, block_bytes=blocks, is_distant=any(distant))
            if windows is None:
                leaf, reader = rearrange_in_file(leaf, reader, self._scratch)
            else:
                window_bytes, rows = windows

        def read(box: Box) -> np.ndarray:
            (array,) = reader.read([leaf], {0: [box]})
            self._advance(leaf, array.nbytes)
            return self._cast(number, array)

        dtype = dtypes.to_numpy(self._dtype_names[number])
        return LazyArray(
            leaf.shape,
            dtype,
            read,
            rows=rows,
            window_bytes=window_bytes,
            stored_item_bytes=dtypes.itemsize(leaf.dtype),
            read_into=self._direct_reader(number, dtype),
        )

    def _direct_reader(
        self, number: int, dtype: np.dtype
    ) -> Callable[[int, memoryview], None] | None:
        """Return a function that reads stored bytes into memory, if they need no conversion."""
        leaf, reader = self._located[number], self._reader
        extents = contiguous_extents(leaf)
        if extents is None or dtypes.to_numpy(leaf.dtype) != dtype or has_padding(dtype):
            return None
        for source in {extent.source for extent in extents}:
            # An object store needs many concurrent requests; a checksum covers a whole range.
            if reader.files[source].latency_bound or reader.index.sources[source].checksums:
                return None

        def read_into(start: int, target: memoryview) -> None:
            if not hasattr(self._threads, "scratch"):
                self._threads.scratch = ScratchBuffer()
            scratch = self._threads.scratch
            moves = plan_extent_moves(extents, start, start + len(target))
            read_moves(moves, target, reader.files, digests=reader.digests, scratch=scratch)
            self._advance(leaf, len(target))

        return read_into

    def _small(self, number: int) -> np.ndarray:
        if number not in self._kept:
            self._read_from(number)
        array = self._kept.pop(number)
        self._kept_bytes -= array.nbytes
        return array

    def _read_from(self, first: int) -> None:
        """Read a batch of small leaves, from `first` on; the writer takes them next or soon."""
        while self._kept_bytes > _KEPT_BYTES:
            oldest = next(iter(self._kept))
            self._kept_bytes -= self._kept.pop(oldest).nbytes
        batch: list[int] = []
        size = 0
        for number in range(first, len(self._located)):
            leaf = self._located[number]
            if isinstance(leaf.storage, Inline) or leaf.kind not in ARRAY_KINDS:
                continue
            if number in self._kept or size_in_memory(leaf) >= _SMALL_BYTES:
                continue
            size += size_in_memory(leaf)
            if batch and size > _BATCH_BYTES:
                break
            batch.append(number)
        arrays = self._reader.read([self._located[number] for number in batch])
        for number, array in zip(batch, arrays, strict=True):
            self._advance(self._located[number], array.nbytes)
            self._kept[number] = converted = self._cast(number, array)
            self._kept_bytes += converted.nbytes

    def _advance(self, leaf: Leaf, size_bytes: int) -> None:
        if self._meter is not None:
            self._meter.advance(size_bytes, format_path(leaf.key_path))

    def _cast(self, number: int, array: np.ndarray) -> np.ndarray:
        leaf, dtype = self._located[number], self._dtype_names[number]
        if dtype != dtypes.name_of(array.dtype):
            array = convert_dtype(array, Target(leaf, "numpy", dtype))
        return without_padding(array)
