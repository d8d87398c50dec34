"""The host memory that copies of arrays on accelerators take while they are saved: one budget.

The runtime of an accelerator keeps the host memory that it has allocated once. So the budget also
bounds what the process keeps, and later saves use the same memory again.
"""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from typing import NamedTuple

from cordwood.io.buffers import machine_memory_bytes

_SHARE_OF_MEMORY = 4  # the budget of a machine is this part of its memory
# Of Slurm, Open MPI, Intel MPI and torchrun.
_COUNT_VARIABLES = (
    *("SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE"),
)


class StagingOptions(NamedTuple):
    """The options of saves in the background that are about arrays on accelerators.

    Attributes:
        staging_bytes: the budget for the copies of all saves; None: `default_budget_bytes`.
        device_copies: trees that do not fit are copied on their devices.
    """

    staging_bytes: int | None = None
    device_copies: bool = False


def staging_options(staging_bytes: int | None, *, device_copies: bool) -> StagingOptions:
    """Return the options of a save; raise TypeError or ValueError for wrong ones."""
    if staging_bytes is not None:
        if not isinstance(staging_bytes, int) or isinstance(staging_bytes, bool):
            raise TypeError(
                f"staging_bytes={staging_bytes!r:.80}: expected a number of bytes, an int, or None"
            )
        if staging_bytes < 0:
            raise ValueError(f"staging_bytes={staging_bytes}: expected at least 0")
    return StagingOptions(staging_bytes, device_copies)


def default_budget_bytes() -> int:
    """Return the budget of a process: its part of a quarter of the machine's memory."""
    return machine_memory_bytes() // (_SHARE_OF_MEMORY * _processes_of_machine())


def _processes_of_machine() -> int:
    """Return the number of processes of the job on this machine, as its launcher says.

    Without a launcher that says it, a process of several that has one device is taken for one of
    eight: machines have up to eight accelerators, and a process for each or one for all.
    """
    import jax

    if jax.process_count() == 1:
        return 1
    for name in _COUNT_VARIABLES:
        if os.environ.get(name, "").isdecimal():
            return max(1, int(os.environ[name]))
    return 1 if jax.local_device_count() > 1 else 8


class StagingMemory:
    """The host memory that copies of shards take in this process.

    Attributes:
        peak_bytes: the largest size of all copies so far.
        turn: held by a call while it waits for room, and by a save whose shards stay on a device.
        lock: held for each change of a copy.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._used_bytes = 0
        self.turn = threading.Lock()
        self.lock = threading.Lock()
        # Sizes of copies that are gone, perhaps by the garbage collector, which may take no lock.
        self._dropped: queue.SimpleQueue[int] = queue.SimpleQueue()

    @property
    def used_bytes(self) -> int:
        """The size of all copies now; the lock is not held."""
        with self.lock:
            self._count_dropped()
            return self._used_bytes

    def missing_bytes(self, size_bytes: int, budget_bytes: int) -> int:
        """Return the room that copies of that size lack; the lock is held.

        Copies that are larger than the budget have room if there are no others.
        """
        self._count_dropped()
        return max(0, self._used_bytes + size_bytes - budget_bytes) if self._used_bytes else 0

    def _count_dropped(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._used_bytes -= self._dropped.get_nowait()

    def use(self, size_bytes: int) -> None:
        """Count copies as used; the lock is held."""
        self._used_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self._used_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Note that a copy is gone. Takes no lock."""
        self._dropped.put(size_bytes)


staging_memory = StagingMemory()
# A forked child has none of the threads that read or wait.
os.register_at_fork(after_in_child=staging_memory.__init__)  # type: ignore[misc]
