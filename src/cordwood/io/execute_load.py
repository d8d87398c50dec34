"""Execution of load plans: the buffers are allocated, read in several threads, and verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from cordwood.index import Digests
from cordwood.io.memory.buffers import Buffer, ScratchBuffer, allocate_buffers
from cordwood.io.open_files import ReadableFile
from cordwood.io.progress import METER
from cordwood.io.read_chunks import read_chunk
from cordwood.io.read_units import SMALL_MOVE_BYTES, FreshPages, all_units, layers_of, read_unit
from cordwood.plan.load_plan import ALIGNMENT, LoadPlan
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads, run_tasks

_BYTES_PER_THREAD = 4 << 20
_FETCHES = 8  # of files on the hub at a time, as huggingface_hub has it


class LoadMemory(Protocol):
    """Memory for the buffers of loads.

    Attributes:
        threads: the number of threads to fill it with where reads do not wait for a network.
    """

    threads: int

    def allocate(self, sizes: Sequence[int], *, alignment: int) -> list[Buffer]:
        """Return buffers of these sizes (bytes), whose addresses are multiples of `alignment`."""

    def scratch(self) -> ScratchBuffer:
        """Return a buffer for one of the threads that fill the memory."""


def execute_load(
    plan: LoadPlan,
    files: Sequence[ReadableFile],
    *,
    digests: Sequence[Digests | None],
    verify: bool,
    memory: LoadMemory | None = None,
) -> list[np.ndarray]:
    """Allocate the plan's buffers and fill them from `files`.

    Args:
        plan: what goes where; a move's source is a position in `files`.
        files: the sources, open.
        digests: of each file, or None where it has none.
        verify: check all blocks that the moves touch, reading them whole.
        memory: allocates the buffers, which are sent to accelerators. None: each is new, and owned
            by the caller.

    Returns:
        One 1-d uint8 array for each buffer, its address a multiple of 64.

    Raises:
        TruncatedError: a move reaches past the end of its file.
        CorruptionError: a block does not match its digest; file and byte range are named.
        OSError: a file cannot be fetched; nothing has been allocated then.
    """
    layers = layers_of(plan, files)
    sources = {layer.source for layer in layers}.union(chunk.source for chunk in plan.chunks)
    distant = [(files[source],) for source in sorted(sources) if files[source].latency_bound]
    map_in_threads(lambda file: file.prepare(), distant, threads=_FETCHES)
    units = all_units(layers, files, digests, verify=verify)
    allocate = allocate_buffers if memory is None else memory.allocate
    new_scratch = ScratchBuffer if memory is None else memory.scratch
    buffers = allocate(plan.buffers, alignment=ALIGNMENT)
    views = [buffer.array.data for buffer in buffers]
    fresh = FreshPages(buffers)
    meter = METER.get()
    total = sum(unit.stop - unit.start for unit in units) + sum(c.length for c in plan.chunks)
    checked = {c.source: digests[c.source] if verify else None for c in plan.chunks}

    def make_worker() -> Callable[[int], None]:
        scratch, decoded = new_scratch(), new_scratch()

        def work(task: int) -> None:
            if task < len(units):
                unit = units[task]
                read_unit(unit, files, views, scratch, fresh)
                if meter is not None:
                    meter.advance(unit.stop - unit.start)
            else:
                chunk = plan.chunks[task - len(units)]
                file, file_digests = files[chunk.source], checked[chunk.source]
                read_chunk(chunk, file, file_digests, views, scratch, decoded)
                if meter is not None:
                    meter.advance(chunk.length)

        return work

    latency_bound = any(files[source].latency_bound for source in sources)
    threads = reading_threads(latency_bound=latency_bound)
    if memory is not None:
        threads = max(threads, memory.threads) if latency_bound else memory.threads
    threads = min(threads, 1 + total // _BYTES_PER_THREAD)
    if not latency_bound and sum(len(layer.starts) for layer in layers) * SMALL_MOVE_BYTES > total:
        threads = 1  # mostly interpreter time, which more threads would only slow down
    run_tasks(len(units) + len(plan.chunks), threads=threads, make_worker=make_worker)
    return [buffer.array for buffer in buffers]
