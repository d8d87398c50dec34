"""Host memory that a load to accelerators reads into, slot by slot, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cordwood.devices.device_memory import copies_host_memory, pinned_bytes
from cordwood.io.memory.buffers import (
    PAGE_BYTES,
    Buffer,
    ScratchBuffer,
    allocate_buffers,
    allocate_bytes,
)
from cordwood.threads.thread_counts import default_threads, transfer_threads

SLOTS = 3  # one is filled, one is sent, and one waits for its turn on the link
_LEAST_SLOT_BYTES = 32 << 20
_LARGEST_SLOT_BYTES = 256 << 20
_GROUPS = 16  # of a load: pinned memory is made at a few GB/s, which many groups must pay back

# By device and kind of memory: True if a device copies what it is given.
_copies: dict[tuple[Any, bool], bool] = {}


class TransferRing:
    """Memory for the groups of leaves of a load, which are sent to accelerators one by one.

    The memory of a group is used again for the third group after it, once its arrays have arrived.
    It is pinned where possible: accelerators then read it directly. A group that is larger than a
    slot has memory of its own, as all groups have if the device might keep using host memory.

    Args:
        total_bytes: the size of the load.
        device: one of the accelerators; None: this process has none that takes a part of the load.

    Attributes:
        threads: the number of threads that fill a slot.
    """

    def __init__(self, total_bytes: int, device: Any | None) -> None:
        self.group_bytes = min(max(total_bytes // _GROUPS, _LEAST_SLOT_BYTES), _LARGEST_SLOT_BYTES)
        self._slot_bytes = min(self.group_bytes, total_bytes) + PAGE_BYTES
        self.threads = max(default_threads(), transfer_threads())
        self._device = device
        self._memory: list[np.ndarray | None] = [None] * SLOTS
        self._arrays: list[Sequence[Any]] = [()] * SLOTS
        self._slot = 0

    def begin_group(self) -> None:
        """Go to the next slot; wait until the arrays of the group before in it have arrived."""
        import jax

        self._slot = (self._slot + 1) % SLOTS
        if self._arrays[self._slot]:
            jax.block_until_ready(self._arrays[self._slot])  # type: ignore[no-untyped-call]
            self._arrays[self._slot] = ()

    def end_group(self, arrays: Sequence[Any]) -> None:
        """Note the jax.Arrays of the group, whose transfers have been started."""
        self._arrays[self._slot] = arrays

    def allocate(self, sizes: Sequence[int], *, alignment: int) -> list[Buffer]:
        """Return buffers for the group; called at most once for each.

        Args:
            sizes: the sizes of the buffers, in bytes.
            alignment: of their addresses.
        """
        steps = [-(-size // alignment) * alignment for size in sizes]
        memory = self._memory_of_slot() if sum(steps) + alignment <= self._slot_bytes else None
        if memory is None:
            return allocate_buffers(sizes, alignment=alignment)
        buffers = []
        start = -memory.ctypes.data % alignment
        for size, step in zip(sizes, steps, strict=True):
            buffers.append(Buffer(memory[start : start + size], None))
            start += step
        return buffers

    def scratch(self) -> ScratchBuffer:
        """Return a new buffer for a thread."""
        return ScratchBuffer()

    def _memory_of_slot(self) -> np.ndarray | None:
        """Return the memory of the slot; None if the device might keep using it."""
        if self._device is None:
            return None
        memory = self._memory[self._slot]
        if memory is None:
            memory = pinned_bytes(self._slot_bytes, self._device)
            key = self._device, memory is not None
            if memory is None:
                memory = allocate_bytes(self._slot_bytes, alignment=PAGE_BYTES)
            if key not in _copies:
                _copies[key] = copies_host_memory(memory, self._device)
            if not _copies[key]:
                self._device = None
                return None
            self._memory[self._slot] = memory
        return memory
