"""The leaves of a tree while they are written, whatever holds their elements.

A leaf is an array of the caller, the shards that a snapshot holds, or an array of another
checkpoint, whose elements are read when its turn comes. Writers take parts of leaves, and do not
know which of these it is.

Arrays of another checkpoint and arrays on an accelerator are LazyArrays, which are read while they
are written. The threads of a writer ask for byte ranges from start to end, nearly in order. If an
array can be read by byte ranges, they are read straight into the writer's buffer. Other arrays are
read in windows, each once, and the last few windows are kept.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cordwood.devices.array_shards import (
    ArrayShards,
    DistinctShardsOf,
    LocalShards,
    accelerator_shards,
    distinct_shards,
    local_shards,
)
from cordwood.index import Box
from cordwood.io.host_copies import CopiedArray, HostCopies
from cordwood.io.lazy_array import LazyArray
from cordwood.io.memory.staging_memory import StagingOptions
from cordwood.sharding.boxes import slices, whole_box
from cordwood.tree.leaves import (
    DeferredArray,
    is_jax_array,
    may_be_on_accelerator,
    whole_array,
    without_padding,
)


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
        host_copies: the copies of arrays on accelerators; None if there are none.
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
        self.host_copies: HostCopies | None = None  # made for the first array on an accelerator
        self._distinct: DistinctShardsOf = {}
        # Arrays on accelerators that are not found here are held one by one when they are taken.
        self._values = list(values)
        if may_be_on_accelerator(self._values):
            self._values = accelerator_shards(self._values)
        staged: dict[int, CopiedArray] = {}  # an array that is in the tree twice is copied once
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

    def part(self, leaf: int, box: Box | None = None) -> np.ndarray | LazyArray:
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

    def view(self, leaf: int, box: Box | None = None) -> np.ndarray | LazyArray:
        """Return a part of a leaf that was not taken yet, any number of times."""
        value = self._elements(self._values[leaf], whole=box is None)
        return value if box is None else _within(value, box)

    def release(self, leaf: int, parts: int) -> None:
        """Count parts of a leaf as written that were taken by `view`; release the leaf if due."""
        with self._lock:
            remaining = self._parts_left.pop(leaf, parts) - parts
            if remaining:
                self._parts_left[leaf] = remaining
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
        if self.host_copies is not None:
            self.host_copies.close()

    def _staged(self, shards: ArrayShards) -> CopiedArray:
        if self.host_copies is None:
            self.host_copies = HostCopies(self._options)
        return self.host_copies.hold(shards)

    def _pop(self, leaf: int) -> Any:
        value, self._values[leaf] = self._values[leaf], None
        if self.on_take is not None:
            self.on_take(leaf)
        return value

    def _elements(self, value: Any, *, whole: bool) -> Any:
        """Return a leaf as something that has parts: an array, shards or a LazyArray."""
        if type(value) is DeferredArray:
            value = value.read()
        if isinstance(value, CopiedArray) and whole:
            return value.part(whole_box(value.shape))
        if isinstance(value, LazyArray | CopiedArray):
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


def _within(value: Any, box: Box) -> np.ndarray | LazyArray:
    if isinstance(value, LazyArray):
        return value.within(box)
    if isinstance(value, CopiedArray):
        return value.part(box)
    part = value.part(box) if isinstance(value, LocalShards) else value[slices(box)]
    return without_padding(part)
