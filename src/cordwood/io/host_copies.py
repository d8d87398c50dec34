"""Arrays on accelerators while they are saved: copies of their shards in host memory.

A save reads its arrays from host memory. For a shard on an accelerator that is a copy, in pinned
host memory where the device has it. All saves of the process share one budget for such copies
(`io/memory/staging_memory.py`):

- `save` copies shards when the writer needs them, and a few in advance. A copy is dropped when its
  shard has been written, or before, if the memory is needed; then it is made again when necessary.
- A save in the background may read the arrays only until its call has returned: then the caller
  may donate or delete them. If all copies fit into the budget, their transfers are started at once
  and the call returns. (XLA orders them before the next use of the arrays.) Otherwise the writer
  begins, as in `save`, and the call returns as soon as the copies of what is not yet written fit.

No thread waits for ever. Memory is taken by copies that can be dropped, because their shards are
still on the device, and by copies that are all that is left of a shard. A save makes the latter
for all its shards at once, and needs no more memory then. `StagingMemory.admit` lets one save at a
time come so far, in the order in which the saves are queued.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from cordwood.devices.array_shards import ArrayShards
from cordwood.devices.copy_shards import copy_on_device, copy_to_host
from cordwood.index import Box
from cordwood.io.lazy_array import LazyArray
from cordwood.io.memory.staging_memory import (
    StagingMemory,
    StagingOptions,
    default_budget_bytes,
    staging_memory,
)
from cordwood.sharding.boxes import (
    absolute,
    element_count,
    overlaps,
    relative,
    shape_of,
    slices,
    within,
)
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.threads.stop_check import StoppedError, check_stop
from cordwood.threads.wait_logger import WaitLogger

_BATCH_BYTES = 64 << 20  # of copies that are started together, ahead of the writer
_BATCH_SHARDS = 256
# A copy that was read so recently is not dropped: the same thread may need its next bytes. Each
# copy of a shard stays twice as long as the one before, so few are made.
_HOLD_SECONDS = 0.05
# Waiting is polling: a copy may go in a finalizer, which can wake no thread safely.
_POLL_SECONDS = 0.005


@contextmanager
def _waiting() -> Iterator[Callable[[], None]]:
    """Give a function that waits a moment, and raises what `check_stop` raises.

    A long wait is logged.
    """
    wait_logger = WaitLogger("host memory for the copies of arrays on accelerators (staging_bytes)")

    def wait() -> None:
        check_stop()
        wait_logger.tick()
        time.sleep(_POLL_SECONDS)

    try:
        yield wait
    finally:
        wait_logger.end()


class _Copy:
    """The elements of a shard in host memory: a jax.Array there, or a numpy array.

    It counts as used memory until it is dropped, or until nothing refers to it any more: neither
    its shard nor a thread that reads it. (A finalizer of the shard would not do: a weak reference
    can bring an object back while its finalizer runs, which then does not run again.)
    """

    __slots__ = ("array", "size_bytes")

    def __init__(self, array: Any, size_bytes: int) -> None:
        self.array = array
        self.size_bytes = size_bytes

    def drop(self, give_back: Callable[[int], None] = staging_memory.give_back) -> None:
        """Give the memory back, even if something refers to this copy."""
        size_bytes, self.size_bytes, self.array = self.size_bytes, 0, None
        give_back(size_bytes)

    __del__ = drop

    def has_arrived(self) -> bool:
        """Return True if the transfer has ended."""
        return isinstance(self.array, np.ndarray) or bool(self.array.is_ready())

    def elements(self) -> np.ndarray:
        """Return the elements; wait until they have arrived.

        Raises StoppedError if the save was given up meanwhile.
        """
        array = self.array
        if array is None:
            raise StoppedError
        elements = np.asarray(array)
        if elements.base is None:  # no view: some devices have another layout in host memory
            self.array = elements
        return elements

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill memory with the bytes from an offset on."""
        source = np.ascontiguousarray(self.elements()).reshape(-1).view(np.uint8)
        np.copyto(np.frombuffer(target, np.uint8), source[start : start + len(target)])


class _Shard:
    """One shard on an accelerator.

    Attributes:
        source: the shard, a jax.Array on one device; None once the copy is all that is left of it.
        host_sharding: the sharding in host memory to copy it to; None: the device has none.
        size_bytes: the size of its elements.
        number: its position among the shards of the save.
        copy: its copy; None if there is none now.
        readers: the number of threads that read the copy.
        read_seconds: when the copy was last made or read, by the monotonic clock.
        hold_seconds: how long after that the copy is not dropped; 0 before its first copy.
    """

    __slots__ = (
        "__weakref__",
        "copy",
        "hold_seconds",
        "host_sharding",
        "number",
        "read_seconds",
        "readers",
        "size_bytes",
        "source",
    )

    def __init__(self, source: Any, host_sharding: Any, size_bytes: int, number: int) -> None:
        self.source = source
        self.host_sharding = host_sharding
        self.size_bytes = size_bytes
        self.number = number
        self.copy: _Copy | None = None
        self.readers = 0
        self.read_seconds = 0.0
        self.hold_seconds = 0.0


def _size_of(shards: Sequence[_Shard]) -> int:
    return sum([shard.size_bytes for shard in shards])


class CopiedArray:
    """The distinct shards of a jax.Array on accelerators of this process.

    Args:
        shape: the shape of the whole array.
        dtype: its dtype.
        boxes: the box of the array that each shard holds.
        shards: the shards.
        host_copies: the copies of the save, which makes theirs.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype,
        boxes: Sequence[Box],
        shards: Sequence[_Shard],
        host_copies: HostCopies,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self._boxes = boxes
        self._shards = shards
        self._host_copies = host_copies

    def part(self, box: Box) -> LazyArray:
        """Return the elements of a box, which are read when they are needed.

        The copies of its shards are kept until the result is dropped, unless memory is short.

        Raises ValueError for a box that is not wholly on this process.
        """
        pieces = overlaps(box, self._boxes)
        if len(pieces) != 1:
            shards = [self._shards[number] for _, number in pieces]
            boxes = [self._boxes[number] for _, number in pieces]
            read = partial(_assemble, self._host_copies, shards, boxes, self.dtype, box)
            return LazyArray(shape_of(box), self.dtype, read)
        number = pieces[0][1]
        around, shard = self._boxes[number], self._shards[number]
        whole = LazyArray(
            shape_of(around),
            self.dtype,
            partial(_read, self._host_copies, shard),
            read_into=partial(_read_into, self._host_copies, shard),
        )
        return whole.within(relative(box, around))


def _read(host_copies: HostCopies, shard: _Shard, box: Box) -> np.ndarray:
    """Return a box of a shard, in memory of its own."""
    with host_copies.copies_of([shard]) as (copy,):
        return np.array(copy.elements()[slices(box)])


def _read_into(host_copies: HostCopies, shard: _Shard, start: int, target: memoryview) -> None:
    """Fill memory with the bytes of a shard from an offset on."""
    with host_copies.copies_of([shard]) as (copy,):
        copy.read_into(start, target)


def _assemble(
    host_copies: HostCopies,
    shards: Sequence[_Shard],
    boxes: Sequence[Box],
    dtype: np.dtype,
    part: Box,
    inner: Box,
) -> np.ndarray:
    """Return a box of a part of an array, whose elements are in several shards.

    The shards are copied together, because each row of the part may need all of them.
    """
    box = absolute(inner, part)
    result = np.empty(shape_of(box), dtype)
    with host_copies.copies_of(shards) as copies:
        for common, number in overlaps(box, boxes):
            source = within(common, boxes[number])
            result[within(common, box)] = copies[number].elements()[source]
    return result


class HostCopies:
    """The shards of one save that are on accelerators, and their copies.

    The budget is for the copies of all saves of the process. If the shards that a writer needs at
    once are larger, they are copied when there are no other copies.

    Args:
        options: the options of a save in the background; `save` has the default ones.
    """

    def __init__(self, options: StagingOptions) -> None:
        budget_bytes, self._device_copies = options
        self._budget_bytes = default_budget_bytes() if budget_bytes is None else budget_bytes
        self._shards: list[weakref.ref[_Shard]] = []
        self._is_detached = False  # the sources are used no more
        self.is_given_up = False
        self._has_logged = False

    def hold(self, array: ArrayShards) -> CopiedArray:
        """Return an array whose elements are copied when they are needed, or in advance."""
        dtype = array.array.dtype
        with staging_memory.lock:
            shards = []
            for source, box, host in zip(
                array.shards, array.boxes, array.host_shardings, strict=True
            ):
                size_bytes = element_count(box) * dtype.itemsize
                shards.append(_Shard(source, host, size_bytes, len(self._shards)))
                self._shards.append(weakref.ref(shards[-1]))
        return CopiedArray(array.array.shape, dtype, array.boxes, shards, self)

    def admit(self) -> None:
        """Wait until this save may have copies that cannot be dropped; start them if they fit.

        Called in the thread that then queues the save: so saves are queued as they are admitted.
        """
        run_in_worker(self._admit)  # no interrupt may come between a change and its record

    def detach(self) -> None:
        """Stop reading the caller's arrays, which it may donate or delete then.

        Waits until the copies of what is not written yet fit, and starts their transfers. With
        `device_copies` it waits for nothing: the arrays are copied on their devices. The save is
        queued: what is written meanwhile is read from the devices.
        """
        run_in_worker(self._detach)

    def _admit(self) -> None:
        with _waiting() as wait:
            while not staging_memory.admit(self):
                wait()
        self._start_rest()

    def _detach(self) -> None:
        if not self._start_rest() and self._device_copies and self._copy_sources():
            return  # it needs memory until it ends: `close` dismisses it
        with _waiting() as wait:
            while not self._start_rest():
                wait()
        with staging_memory.lock:
            staging_memory.dismiss(self)

    def give_up(self) -> None:
        """Let the writer fail, if there is one: the caller may change its arrays from now on."""
        with staging_memory.lock:
            self.is_given_up = True
            self._drop_all()

    def check(self) -> None:
        """Raise StoppedError if the save was given up."""
        if self.is_given_up:
            raise StoppedError

    def close(self) -> None:
        """Drop all copies, also those to which an exception still refers."""
        with staging_memory.lock:
            self._drop_all()

    def _drop_all(self) -> None:
        self._is_detached = True
        for shard in self._living():
            _drop_copy(shard)
            shard.source = None
        staging_memory.dismiss(self)

    def _living(self) -> list[_Shard]:
        """Return the shards that are not written yet."""
        return [shard for ref in self._shards if (shard := ref()) is not None]

    def _start_rest(self) -> bool:
        """Start the copies of all shards if they fit, and use their sources no more."""
        with staging_memory.lock:
            if not self._is_detached:
                shards = self._living()
                if self._start([shard for shard in shards if shard.copy is None]):
                    self._is_detached = True
                    for shard in shards:
                        shard.source = None
            return self._is_detached

    def _copy_sources(self) -> bool:
        """Copy the shards on their devices; return False if that is not possible.

        All of them: a copy on the host must be one that can be dropped, as the writer may need
        other shards first.
        """
        with staging_memory.lock:
            if self._is_detached:  # the writer has failed
                return True
            shards = self._living()
            try:
                sources = copy_on_device([shard.source for shard in shards])
            except (RuntimeError, ValueError) as e:
                log.warning(
                    "the save waits: arrays could not be copied on their devices: %s", str(e)
                )
                return False
            for shard, source in zip(shards, sources, strict=True):
                shard.source = source
        return True

    @contextmanager
    def copies_of(self, shards: Sequence[_Shard]) -> Iterator[list[_Copy]]:
        """Give the copies of shards, which are not dropped in the block."""
        with _waiting() as wait:
            while (copies := self._needed_copies(shards)) is None:
                wait()
        try:
            if shards:
                self._start_ahead(max([shard.number for shard in shards]))
            yield copies
        finally:
            with staging_memory.lock:
                seconds_now = time.monotonic()
                for shard in shards:
                    shard.readers -= 1
                    shard.read_seconds = seconds_now

    def _needed_copies(self, shards: Sequence[_Shard]) -> list[_Copy] | None:
        """Return the copies of shards, and count a reader; None: there is no memory now."""
        with staging_memory.lock:
            self.check()
            missing = [shard for shard in shards if shard.copy is None]
            if missing:
                self._drop_others(_size_of(missing), shards)
                present_bytes = _size_of(shards) - _size_of(missing)
                if not self._start(missing, alone=staging_memory.count_bytes() <= present_bytes):
                    return None
            for shard in shards:
                shard.readers += 1
            return [shard.copy for shard in shards if shard.copy is not None]

    def _start(self, shards: Sequence[_Shard], *, alone: bool = False) -> bool:
        """Start the copies of shards if they fit; the lock is held.

        Args:
            shards: shards without copies.
            alone: no memory will be given back, so they may be larger than the budget.
        """
        if not shards:
            return True
        size_bytes = _size_of(shards)
        used_bytes = staging_memory.count_bytes()
        if used_bytes + size_bytes > self._budget_bytes and not alone:
            return False
        try:
            arrays = copy_to_host(
                [shard.source for shard in shards], [shard.host_sharding for shard in shards]
            )
        except RuntimeError as e:
            if alone or "RESOURCE_EXHAUSTED" not in str(e):
                raise
            self._budget_bytes = (used_bytes + size_bytes) // 2
            if not self._has_logged:  # a record that held the exception would hold its frames
                self._has_logged = True
                log.warning("a save has less host memory for copies than its budget: %s", str(e))
            return False
        staging_memory.use(size_bytes)
        seconds_now = time.monotonic()
        for shard, array in zip(shards, arrays, strict=True):
            shard.copy = _Copy(array, shard.size_bytes)
            shard.read_seconds = seconds_now
            shard.hold_seconds = max(_HOLD_SECONDS, 2 * shard.hold_seconds)
            staging_memory.copied[weakref.ref(shard, _forget)] = None
        return True

    def _drop_others(self, size_bytes: int, shards: Sequence[_Shard]) -> None:
        """Drop copies of other shards that are still on a device, the oldest first.

        Does nothing if there is memory for `size_bytes`. Copies that are being transferred or read,
        or were read just now, stay: they are dropped later, if nothing else gives memory back. The
        lock is held.
        """
        missing_bytes = staging_memory.count_bytes() + size_bytes - self._budget_bytes
        if missing_bytes <= 0:
            return
        seconds_now = time.monotonic()
        for ref in [*staging_memory.copied]:
            shard = ref()
            if shard is None or shard.source is None or shard.copy is None:
                _forget(ref)
            elif (
                not shard.readers
                and shard.read_seconds + shard.hold_seconds < seconds_now
                and shard not in shards
                and shard.copy.has_arrived()
            ):
                _forget(ref)
                _drop_copy(shard)
                missing_bytes -= shard.size_bytes
                if missing_bytes <= 0:
                    return

    def _start_ahead(self, number: int) -> None:
        """Start the copies of the shards after one that is read, a batch of them at a time."""
        with staging_memory.lock:
            if self._is_detached:
                return
            batch: list[_Shard] = []
            batch_bytes = 0
            end = min(number + 1 + _BATCH_SHARDS, len(self._shards))
            for following in range(number + 1, end):
                shard = self._shards[following]()
                if shard is None:
                    continue
                if shard.hold_seconds:  # it was copied before
                    break
                batch_bytes += shard.size_bytes
                if batch and batch_bytes > _BATCH_BYTES:
                    break
                batch.append(shard)
            self._start(batch)


def _drop_copy(shard: _Shard) -> None:
    if shard.copy is not None:
        shard.copy.drop()
        shard.copy = None


def _forget(ref: weakref.ref[_Shard], memory: StagingMemory = staging_memory) -> None:
    memory.copied.pop(ref, None)
