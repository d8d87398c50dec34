"""The host memory that copies of arrays on accelerators take while they are saved: one budget.

The runtime of an accelerator keeps the host memory that it has allocated once. So the budget also
limits what the process keeps, and later saves use the same memory again.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import weakref
from contextlib import suppress
from typing import Any, NamedTuple

from cordwood.io.memory.machine_memory import machine_memory_bytes

_SHARE_OF_MEMORY = 4  # the budget of a machine is this part of its memory
# Of Slurm, Open MPI, Intel MPI and torchrun: the number, or with Slurm a text such as "8(x2)".
_COUNT_VARIABLES = (
    *("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
    *("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE"),
)
# XLA allocates the host memory of GPUs from one pool of the process, of this many GiB.
_POOL_VARIABLE = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
_POOL_GIB = 64
_SHARE_OF_POOL = 0.75  # the rest is for loads, and for what XLA itself stages


class StagingOptions(NamedTuple):
    """The options of saves in the background that are about arrays on accelerators.

    Attributes:
        staging_bytes: the budget for the copies of all saves; None: `default_budget_bytes`.
        device_copies: trees that do not fit are copied on their devices.
    """

    staging_bytes: int | None = None
    device_copies: bool = False


def checked_options(staging_bytes: int | None, device_copies: bool) -> StagingOptions:
    """Return the options of a save; raise TypeError or ValueError for wrong ones."""
    if staging_bytes is not None:
        if not isinstance(staging_bytes, int) or isinstance(staging_bytes, bool):
            raise TypeError(
                f"staging_bytes={staging_bytes!r:.80}: expected a number of bytes, an int, or None"
            )
        if staging_bytes < 0:
            raise ValueError(f"staging_bytes={staging_bytes}: expected at least 0")
    if not isinstance(device_copies, bool):
        raise TypeError(f"device_copies={device_copies!r:.80}: expected True or False")
    return StagingOptions(staging_bytes, device_copies)


def default_budget_bytes() -> int:
    """Return the budget of a process: its part of a quarter of the machine's memory.

    On GPUs it is also limited by the pool from which XLA allocates host memory.
    """
    import jax

    budget = machine_memory_bytes() // (_SHARE_OF_MEMORY * _processes_of_machine())
    if jax.devices()[0].platform != "gpu":
        return budget
    limit = os.environ.get(_POOL_VARIABLE, "")
    gib = int(limit) if limit.isdecimal() else _POOL_GIB
    return min(budget, int(_SHARE_OF_POOL * (gib << 30)))


def _processes_of_machine() -> int:
    """Return the number of processes of the job on this machine, as its launcher says.

    Without a launcher that says it, a process of several that has one device counts as one of
    eight: machines have up to eight accelerators, and a process for each or one for all.
    """
    import jax

    if jax.process_count() == 1:
        return 1
    for name in _COUNT_VARIABLES:
        count = re.match(r"\d+", os.environ.get(name, ""))
        if count:
            return max(1, int(count[0]))
    return 1 if jax.local_device_count() > 1 else 8


class StagingMemory:
    """The host memory that copies of shards take in this process.

    Attributes:
        lock: held for each change of a copy, and while the other attributes are used.
        copied: weak references to the shards that have copies, the oldest first.
        peak_bytes: the largest size of all copies so far.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.copied: dict[weakref.ref[Any], None] = {}
        self.peak_bytes = 0
        self._used_bytes = 0
        self._admitted: weakref.ref[Any] | None = None
        # Sizes of dropped copies, perhaps dropped by the garbage collector, which may take no lock.
        self._dropped: queue.SimpleQueue[int] = queue.SimpleQueue()

    @property
    def used_bytes(self) -> int:
        """The size of all copies now; the lock is not held."""
        with self.lock:
            return self.count_bytes()

    def count_bytes(self) -> int:
        """Return the size of all copies now; the lock is held."""
        with suppress(queue.Empty):
            while True:
                self._used_bytes -= self._dropped.get_nowait()
        return self._used_bytes

    def use(self, size_bytes: int) -> None:
        """Count copies; the lock is held."""
        self._used_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self._used_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Note that a copy was dropped. Takes no lock."""
        self._dropped.put(size_bytes)

    def admit(self, save: object) -> bool:
        """Let a save in the background make copies that cannot be dropped; False: not yet.

        One save at a time is admitted, from before it is queued until it needs no more memory. So
        no save has such copies while another one that was queued before still needs memory.
        """
        with self.lock:
            admitted = None if self._admitted is None else self._admitted()
            if admitted is None:
                self._admitted, admitted = weakref.ref(save), save
            return admitted is save

    def dismiss(self, save: object) -> None:
        """Let the next save be admitted, if this one is; the lock is held."""
        if self._admitted is not None and self._admitted() is save:
            self._admitted = None


staging_memory = StagingMemory()
# A forked child has none of the threads that read or wait.
os.register_at_fork(after_in_child=staging_memory.__init__)  # type: ignore[misc]
