"""Arrays on accelerators while they are saved: copies of their shards in host memory.

A save reads its arrays from host memory. For a shard on an accelerator that is a copy, in pinned
host memory where the device has it. All saves of the process share one budget for such copies
(`io/staging_memory.py`):

- `save` copies shards when the writer needs them, and a few in advance. A copy is dropped when its
  shard has been written, or before, to make room; then it is made again if it is needed again.
- A save in the background may read the arrays only until its call has returned: then the caller
  may donate or delete them. If all copies fit into the budget, their transfers are started at once
  and the call returns. (XLA orders them before the next use of the arrays.) Otherwise the writer
  begins, as in `save`, and the call returns as soon as the copies of what is not yet written fit.

No thread waits for ever. Room is taken by copies that can be dropped, because their shards are
still on the device, and by copies that are all that is left of a shard. The saves of the latter
wait for no room. A call that waits for room has the `turn`, so that no later save takes the room
that its writer needs; a save whose shards stay on the device has it until it ends.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from cordwood.devices.jax_arrays import ArrayShards, copy_on_device, copy_to_host
from cordwood.index import Box
from cordwood.io.lazy_array import Array, LazyArray
from cordwood.io.progress import WaitLogger
from cordwood.io.staging_memory import StagingOptions, default_budget_bytes, staging_memory
from cordwood.io.threads import check_stop, run_in_worker
from cordwood.sharding.boxes import (
    absolute,
    element_count,
    overlaps,
    relative,
    shape_of,
    slices,
    whole_box,
    within,
)

_log = logging.getLogger("cordwood")

_BYTES_OF_SAVE = 1 << 30  # the budget of `save`, which needs room for a few shards only
_BATCH_BYTES = 64 << 20  # of copies that are started together, ahead of the writer
_BATCH_SHARDS = 256
# Waiting is looking again: a copy may go in a finalizer, which can wake no thread safely.
_PAUSE_SECONDS = 0.01  # of a call that looks at all shards
_SHORT_PAUSE_SECONDS = 0.001  # of a writer that needs one


class _Copy:
    """The elements of a shard in host memory: a jax.Array there, or a numpy array.

    Its room is given back when nothing refers to it any more: neither its shard nor a thread that
    reads it. (A finalizer of the shard would not do: a weak reference can bring an object back
    while its finalizer runs, which then does not run again.)
    """

    __slots__ = ("array", "size_bytes")

    def __init__(self, array: Any, size_bytes: int) -> None:
        self.array = array
        self.size_bytes = size_bytes

    def __del__(self, give_back: Callable[[int], None] = staging_memory.give_back) -> None:
        self.array = None
        give_back(self.size_bytes)


class _Shard:
    """One shard on an accelerator.

    Attributes:
        source: the shard, a jax.Array on one device; None once the copy is all that is left of it.
        host: the sharding in host memory to copy it to; None: the device has none.
        size_bytes: the size of its elements.
        number: its position among the shards of the save.
        copy: its copy; None if there is none now.
    """

    __slots__ = ("__weakref__", "copy", "host", "number", "size_bytes", "source")

    def __init__(self, source: Any, host: Any, size_bytes: int, number: int) -> None:
        self.source = source
        self.host = host
        self.size_bytes = size_bytes
        self.number = number
        self.copy: _Copy | None = None


class StagedArray:
    """The distinct shards of a jax.Array on accelerators of this process.

    Args:
        shape: the shape of the whole array.
        dtype: its dtype.
        boxes: the box of the array that each shard holds.
        shards: the shards.
        staging: the staging of the save, which makes their copies.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        boxes: Sequence[Box],
        shards: Sequence[_Shard],
        staging: Staging,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = element_count(whole_box(shape)) * dtype.itemsize
        self._boxes = boxes
        self._shards = shards
        self._staging = staging

    def part(self, box: Box) -> LazyArray:
        """Return the elements of a box, which are read when they are needed.

        The copies of its shards are kept until the result is dropped, unless room is short.

        Raises ValueError for a box that is not wholly on this process.
        """
        pieces = overlaps(box, self._boxes)
        if len(pieces) != 1:
            return LazyArray(shape_of(box), self.dtype, partial(self._assemble, box))
        number = pieces[0][1]
        around, shard = self._boxes[number], self._shards[number]
        whole = LazyArray(
            shape_of(around),
            self.dtype,
            partial(self._staging.read, shard),
            read_into=partial(self._staging.read_into, shard),
        )
        return whole.within(relative(box, around))

    def _assemble(self, part: Box, inner: Box) -> Array:
        """Return a box of a part whose elements are in several shards."""
        box = absolute(inner, part)
        result = np.empty(shape_of(box), self.dtype)
        for common, number in overlaps(box, self._boxes):
            inside = relative(common, self._boxes[number])
            result[within(common, box)] = self._staging.read(self._shards[number], inside)
        return result


class Staging:
    """The shards of one save that are on accelerators, and their copies.

    The budget is the room for the copies of all saves of the process. A shard that is larger is
    copied when there are no other copies.

    Args:
        options: the options of a save in the background. None: the room is what `save` needs.
    """

    def __init__(self, options: StagingOptions | None = None) -> None:
        if options is None:
            self._budget_bytes = min(_BYTES_OF_SAVE, default_budget_bytes())
        elif options.staging_bytes is None:
            self._budget_bytes = default_budget_bytes()
        else:
            self._budget_bytes = options.staging_bytes
        self._device_copies = options is not None and options.device_copies
        self._shards: list[weakref.ref[_Shard]] = []
        self._copied: dict[int, None] = {}  # shards with copies, the oldest first; some are gone
        self._started = 0  # the copies of the shards before this one have been started
        self._is_complete = False  # the sources of all shards are used no more
        self._has_turn = False

    def hold(self, array: ArrayShards) -> StagedArray:
        """Return an array whose elements are copied when they are needed, or in advance."""
        dtype = array.array.dtype
        shards = []
        for source, box, host in zip(array.shards, array.boxes, array.hosts, strict=True):
            size_bytes = element_count(box) * dtype.itemsize
            shards.append(_Shard(source, host, size_bytes, len(self._shards)))
            self._shards.append(weakref.ref(shards[-1]))
        return StagedArray(array.array.shape, dtype, array.boxes, shards, self)

    def try_complete(self) -> bool:
        """Start the transfers of all shards; return False if there is no room for all copies now.

        After it has returned True, the caller may donate or delete the arrays.
        """
        return run_in_worker(self._try_complete)  # an interrupt would lose the turn

    def complete(self) -> None:
        """Wait until the copies of what is not written yet fit, and start their transfers.

        With `device_copies` this waits for no room: the arrays are copied on their devices.
        Then the caller may donate or delete the arrays. The save must have begun: what it writes
        meanwhile is read from the devices.
        """
        if not self.try_complete():
            run_in_worker(self._stay_on_device if self._device_copies else self._wait_for_room)

    def _try_complete(self) -> bool:
        if not self._is_complete and staging_memory.turn.acquire(blocking=False):
            try:
                self._start_rest()
            finally:
                staging_memory.turn.release()
        return self._is_complete

    def _wait_for_room(self) -> None:
        with self._turn() as wait:
            while not self._start_rest():
                wait()

    @contextmanager
    def _turn(self) -> Iterator[Callable[[], None]]:
        """Take the turn, or wait until everything is written; give a function that waits a moment.

        The turn is given back at the end, unless the save keeps it. A long wait is logged. The
        function raises what `check_stop` raises.
        """
        wait_logger = WaitLogger("room for the copies of arrays on accelerators (staging_bytes)")

        def wait() -> None:
            check_stop()
            wait_logger.tick()
            time.sleep(_PAUSE_SECONDS)

        has_turn = False
        try:
            while not self._is_complete and not has_turn:
                has_turn = staging_memory.turn.acquire(blocking=False)
                if not has_turn:
                    wait()
            yield wait
        finally:
            if has_turn and not self._has_turn:
                staging_memory.turn.release()
            wait_logger.end()

    def close(self) -> None:
        """Drop all copies, also those of shards to which an exception still refers."""
        with staging_memory.lock:
            self._is_complete = True
            for shard in self._living():
                shard.source = shard.copy = None
            if self._has_turn:
                self._has_turn = False
                staging_memory.turn.release()

    def _living(self) -> list[_Shard]:
        """Return the shards that are not written yet."""
        return [shard for ref in self._shards if (shard := ref()) is not None]

    def _start_rest(self) -> bool:
        """Start the copies of all shards if there is room, and use their sources no more."""
        with staging_memory.lock:
            if not self._is_complete:
                shards = self._living()
                if self._start([shard for shard in shards if shard.copy is None]):
                    self._is_complete = True
                    for shard in shards:
                        shard.source = None
        return self._is_complete

    def _stay_on_device(self) -> None:
        """Let the shards that are not written yet be copies on their devices.

        All of them: a copy on the host must be one that can be dropped, as the writer may need
        other shards first. No other save takes room before this one has ended. If a device has no
        room either, wait as without `device_copies`.
        """
        with self._turn() as wait:
            with staging_memory.lock:
                self._has_turn = not self._is_complete and self._copy_sources()
            while not self._has_turn and not self._start_rest():
                wait()

    def _copy_sources(self) -> bool:
        """Copy the shards on their devices; return False if they have no room; the lock is held."""
        shards = self._living()
        try:
            sources = copy_on_device([shard.source for shard in shards])
        except RuntimeError as e:
            _log.warning("the save waits: arrays could not be copied on their devices: %s", e)
            return False
        for shard, source in zip(shards, sources, strict=True):
            shard.source = source
        return True

    def _start(self, shards: Sequence[_Shard]) -> bool:
        """Start the copies of shards if there is room; the lock is held."""
        size_bytes = sum([shard.size_bytes for shard in shards])
        if staging_memory.missing_bytes(size_bytes, self._budget_bytes):
            return False
        if len(shards) > 1 and size_bytes > self._budget_bytes:
            return False
        sources, hosts = [shard.source for shard in shards], [shard.host for shard in shards]
        arrays = copy_to_host(sources, hosts)
        staging_memory.use(size_bytes)
        for shard, array in zip(shards, arrays, strict=True):
            shard.copy = _Copy(array, shard.size_bytes)
            self._copied[shard.number] = None
        return True

    def _make_room(self, size_bytes: int) -> None:
        """Drop copies of shards that are still on the device, the oldest first; the lock is held.

        The room of a copy that a thread reads is there once the thread has read it.
        """
        missing_bytes = staging_memory.missing_bytes(size_bytes, self._budget_bytes)
        for number in [*self._copied] if missing_bytes else ():
            del self._copied[number]
            shard = self._shards[number]()
            if shard is not None and shard.source is not None and shard.copy is not None:
                shard.copy = None
                missing_bytes -= shard.size_bytes
                if missing_bytes <= 0:
                    return

    def _start_ahead(self, number: int) -> None:
        """Start the copies of the shards after one that is read, a batch of them at a time."""
        first = number + 1
        if self._is_complete or first < self._started:
            return
        with staging_memory.lock:
            if self._is_complete or first < self._started:
                return
            batch: list[_Shard] = []
            size_bytes = 0
            for ref in islice(self._shards, first, first + _BATCH_SHARDS):
                shard = ref()
                if shard is not None and shard.copy is None:
                    size_bytes += shard.size_bytes
                    if batch and size_bytes > _BATCH_BYTES:
                        break
                    batch.append(shard)
            if not batch:
                self._started = first + _BATCH_SHARDS
            elif self._start(batch):
                self._started = batch[-1].number + 1

    def _copy_of(self, shard: _Shard) -> _Copy:
        """Return the copy of a shard, which stays as long as the caller refers to it."""
        while True:
            with staging_memory.lock:
                if shard.copy is None:
                    self._make_room(shard.size_bytes)
                    self._start([shard])
                copy = shard.copy
            if copy is not None:
                self._start_ahead(shard.number)
                return copy
            check_stop()
            time.sleep(_SHORT_PAUSE_SECONDS)

    def read(self, shard: _Shard, box: Box) -> Array:
        """Return a box of a shard, in memory of its own."""
        copy = self._copy_of(shard)
        return np.array(np.asarray(copy.array)[slices(box)])

    def read_into(self, shard: _Shard, start: int, target: memoryview) -> None:
        """Fill memory with the bytes of a shard from an offset on."""
        copy = self._copy_of(shard)
        source = np.ascontiguousarray(np.asarray(copy.array)).reshape(-1).view(np.uint8)
        np.copyto(np.frombuffer(target, np.uint8), source[start : start + len(target)])
