"""Writing of one large file from leaves: filled, hashed and written by a few threads.

The file is written in units: ranges of a few MiB. A thread fills a page-aligned buffer with a unit
from the leaves, hashes its blocks, and writes it past the page cache (O_DIRECT) where the file
system supports that, unless the file is to stay in the page cache. The tree is copied only through
those buffers. The header, with the digests, comes last.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable

from cordwood.encoding.digests import BLOCK_BYTES, DIGEST_BYTES, block_count
from cordwood.index import Digests
from cordwood.io.file_contents import FileContents
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.memory.buffers import PAGE_BYTES, ScratchBuffer
from cordwood.io.page_cache import fits_page_cache
from cordwood.plan.file_plan import FilePlan, build_header, leaves_of, segment_offsets
from cordwood.storage.atomic_file import WritableFile, atomic_file
from cordwood.storage.direct_file import DirectFile
from cordwood.storage.write_units import UNIT_BYTES, block_digests
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_pool import run_tasks

_WRITES = 4  # concurrent writes; two to four saturate a local disk
_THREADS = 2 * _WRITES  # each with one buffer: half of them are filled while half are written
# For smaller segments on average, filling is interpreter time, not memcpy.
_SMALL_SEGMENT_BYTES = 64 << 10
_THREADS_FOR_SMALL = 1
_DIRECT_BYTES = 8 << 20  # a smaller file goes through the page cache


def write_file(
    path: str | os.PathLike[str], plan: FilePlan, leaves: Leaves, *, page_cache: bool = False
) -> None:
    """Write the file that `plan` describes to `path`, durably and atomically.

    Args:
        path: the destination; symlinks are followed, missing directories are made.
        plan: the segments of the file, and the seal of its header.
        leaves: the leaves. Each is taken when its first byte is needed, and released right after
            its last byte. Arrays may have any strides and byte order: C order and little-endian is
            written.
        page_cache: True if the file may stay in the page cache, where it is small.

    Raises what `storage.atomic_file.atomic_file` raises, and ValueError for a plan whose sizes
    disagree with each other or with the leaves.
    """
    leaves.expect(leaves_of(plan.segments))
    cached = page_cache and fits_page_cache(plan.size_bytes)
    with atomic_file(path) as temporary:
        fill_file(temporary, plan, leaves, direct=not cached)


def fill_file(file: WritableFile, plan: FilePlan, leaves: Leaves, *, direct: bool = True) -> bytes:
    """Write the file that `plan` describes into an open, empty file; return its header.

    The leaves expect its segments. Nothing is flushed. A large file is written past the page cache,
    unless `direct` is False.

    Raises OSError as the system does, ValueError as `write_file` does, and what `check_stop`
    raises, which is called every few MiB.
    """
    ends = segment_offsets(plan)
    contents = FileContents(plan.segments, ends, leaves.part)
    digests = _write_data(file, plan, ends, contents, direct=direct)
    header = build_header(plan, digests)
    file.doing = "writing the header"
    file.write(memoryview(header), 0)
    file.require_size(plan.size_bytes)
    return header


def _write_data(
    temporary: WritableFile,
    plan: FilePlan,
    ends: list[int],
    contents: FileContents,
    *,
    direct: bool,
) -> Digests:
    base, size = plan.header_bytes, plan.size_bytes
    values = bytearray(DIGEST_BYTES * block_count(size - base, BLOCK_BYTES))
    target = DirectFile(temporary.path, temporary.fd)
    slots = threading.Semaphore(_WRITES)

    def make_worker() -> Callable[[int], None]:
        scratch = ScratchBuffer()

        def work(task: int) -> None:
            check_stop()
            start = base + task * UNIT_BYTES
            stop = min(start + UNIT_BYTES, size)
            unit = scratch.view(stop - start)
            segment = bisect_right(ends, start) - 1
            contents.fill(unit, segment, start - ends[segment])
            if plan.make_header is not None:
                digests = block_digests(unit)
                at = task * (UNIT_BYTES // BLOCK_BYTES) * DIGEST_BYTES
                values[at : at + len(digests)] = digests
            with slots:
                target.write(unit, start)
                if not target.is_direct:
                    target.start_writeback(start, len(unit))

        return work

    units = block_count(size - base, UNIT_BYTES)
    many_small = len(plan.segments) * _SMALL_SEGMENT_BYTES > size
    threads = _THREADS_FOR_SMALL if many_small else _THREADS
    try:
        if size >= _DIRECT_BYTES:
            if direct and base % PAGE_BYTES == 0:
                target.open_direct()
            temporary.doing = "reserving its space"
            target.reserve(size)
            temporary.doing = "writing"
        run_tasks(units, threads=threads, make_worker=make_worker)
    finally:
        target.close_direct()
    return Digests(base, BLOCK_BYTES, bytes(values))
