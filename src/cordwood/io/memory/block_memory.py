"""Memory for blocks that are read, used and dropped one after another: the same for each block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from cordwood.io.memory.buffers import PAGE_BYTES, Buffer, ScratchBuffer

_SCRATCH = 2  # of a thread: for bytes as they are stored, and for those of a decoded chunk


class BlockMemory:
    """Memory that is read into again and again, by one read at a time.

    The arrays of a read are valid until the next one. New memory for each block would be given back
    to the system, which has to find and zero it again: that takes longer than reading.

    Attributes:
        threads: the number of threads of a read that does not wait for a network. Its caller is one
            of several threads that read blocks.
    """

    threads = 1

    def __init__(self) -> None:
        self._block = ScratchBuffer()
        self._scratch = [ScratchBuffer() for _ in range(_SCRATCH)]
        self._unused: list[ScratchBuffer] = []

    def allocate(self, sizes: Sequence[int], *, alignment: int) -> list[Buffer]:
        """Return buffers of these sizes (bytes), whose addresses are multiples of `alignment`."""
        if PAGE_BYTES % alignment:
            raise ValueError(f"alignment={alignment}: expected a divisor of {PAGE_BYTES}")
        self._unused = [*self._scratch]
        steps = [-(-size // alignment) * alignment for size in sizes]
        memory = np.frombuffer(self._block.view(sum(steps)), np.uint8)
        buffers, start = [], 0
        for size, step in zip(sizes, steps, strict=True):
            buffers.append(Buffer(memory[start : start + size], None))
            start += step
        return buffers

    def scratch(self) -> ScratchBuffer:
        """Return a buffer for a thread of the read: those of the first thread stay for the next."""
        try:
            return self._unused.pop()
        except IndexError:
            return ScratchBuffer()


class BlockMemories:
    """The memories of threads that read blocks: as many as are in use at a time."""

    def __init__(self) -> None:
        self._unused: list[BlockMemory] = []

    @contextmanager
    def one(self) -> Iterator[BlockMemory]:
        """Lend a memory to this thread."""
        try:
            memory = self._unused.pop()
        except IndexError:
            memory = BlockMemory()
        try:
            yield memory
        finally:
            self._unused.append(memory)
