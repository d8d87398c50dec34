"""Host memory that a load to accelerators reads into, slot by slot, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cordwood.devices.jax_arrays import copies_host_memory, pinned_bytes
from cordwood.io.buffers import PAGE_BYTES, Buffer, allocate_buffers, allocate_bytes

SLOTS = 3  # one is filled, one is sent, and one waits for its turn on the link
_LEAST_SLOT_BYTES = 32 << 20
_LARGEST_SLOT_BYTES = 256 << 20
_GROUPS = 16  # of a small load: pinned memory is made at a few GB/s, which many slots must pay back


class TransferRing:
    """Memory for the groups of leaves of a load, which are sent to accelerators one by one.

    The memory of a group is used again for the third group after it, once its arrays have arrived.
    It is pinned where possible: accelerators then read it directly. A group that is larger than a
    slot has memory of its own, as all groups have if the device might keep using host memory.

    Args:
        total_bytes: the size of the load.
        device: one of the accelerators.
    """

    def __init__(self, total_bytes: int, device: Any) -> None:
        self.group_bytes = min(max(total_bytes // _GROUPS, _LEAST_SLOT_BYTES), _LARGEST_SLOT_BYTES)
        self._slot_bytes = min(self.group_bytes, total_bytes)
        self._device = device
        self._is_reusable = copies_host_memory(device)
        self._memory: list[np.ndarray[Any, Any] | None] = [None] * SLOTS
        self._arrays: list[Sequence[Any]] = [()] * SLOTS
        self._slot = 0

    def allocate(self, sizes: Sequence[int], *, alignment: int) -> list[Buffer]:
        """Return buffers for the next group; wait until the group before in its slot has arrived.

        Args:
            sizes: the sizes of the buffers, in bytes.
            alignment: of their addresses.
        """
        import jax

        self._slot = (self._slot + 1) % SLOTS
        if self._arrays[self._slot]:
            jax.block_until_ready(self._arrays[self._slot])  # type: ignore[no-untyped-call]
            self._arrays[self._slot] = ()
        steps = [-(-size // alignment) * alignment for size in sizes]
        if not self._is_reusable or sum(steps) > self.group_bytes + alignment * len(sizes):
            return allocate_buffers(sizes, alignment=alignment)
        memory = self._memory_of_slot(sum(steps))
        buffers = []
        start = -memory.ctypes.data % alignment
        for size, step in zip(sizes, steps, strict=True):
            buffers.append(Buffer(memory[start : start + size], None))
            start += step
        return buffers

    def send(self, arrays: Sequence[Any]) -> None:
        """Note the jax.Arrays that are made of the buffers of the last call of `allocate`."""
        self._arrays[self._slot] = arrays

    def _memory_of_slot(self, size_bytes: int) -> np.ndarray[Any, Any]:
        memory = self._memory[self._slot]
        if memory is None or len(memory) < size_bytes + PAGE_BYTES:
            size_bytes = max(size_bytes, self._slot_bytes) + PAGE_BYTES
            memory = pinned_bytes(size_bytes, self._device)
            if memory is None:
                memory = allocate_bytes(size_bytes, alignment=PAGE_BYTES)
            self._memory[self._slot] = memory
        return memory
