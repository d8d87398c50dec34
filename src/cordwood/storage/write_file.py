"""Writing of one file: several threads fill, hash and write its units; then the header is sealed.

A unit is a range of a few MiB of the file. A thread fills a page-aligned buffer with it from the
leaves, hashes its blocks, and writes it past the page cache (O_DIRECT) where the file system
supports that: a durable file is then written to the disk once, without the page cache. The tree is
copied only through those buffers.
"""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress

from cordwood.encoding.digests import BLOCK_BYTES, DIGEST_BYTES, block_count, digest_of
from cordwood.index import Digests
from cordwood.io.buffers import PAGE_BYTES, ScratchBuffer
from cordwood.io.leaves_to_write import FileContents, Leaves
from cordwood.io.threads import check_stop, run_tasks
from cordwood.plan.file_plan import FilePlan, build_header, leaves_of, segment_offsets
from cordwood.storage import syscalls
from cordwood.storage.atomic_file import WritableFile, atomic_file
from cordwood.storage.syscalls import close_quietly, open_fd, write_all

_UNIT_BYTES = 4 << 20
_WRITES = 4  # concurrent writes; two to four saturate a local disk
_THREADS = 2 * _WRITES  # each with one buffer: half of them are filled while half are written
# For smaller segments on average, filling is interpreter time, not memcpy.
_SMALL_SEGMENT_BYTES = 64 << 10
_THREADS_FOR_SMALL = 1
_DIRECT_BYTES = 8 << 20  # a smaller file goes through the page cache
_STREAM_BYTES = 1 << 20
_DIRECT_FLAGS = os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC
_NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


def write_file(path: str | os.PathLike[str], plan: FilePlan, leaves: Leaves) -> None:
    """Write the file that `plan` describes to `path`, durably and atomically.

    Args:
        path: the destination; symlinks are followed, missing directories are made.
        plan: the segments of the file, and the seal of its header.
        leaves: the leaves. Each is taken when its first byte is needed, and released right after
            its last byte. Arrays may have any strides and byte order: C order and little-endian is
            written.

    Raises what `storage.atomic_file.atomic_file` raises, and ValueError for a plan whose sizes
    disagree with each other or with the leaves.
    """
    leaves.expect(leaves_of(plan.segments))
    ends = segment_offsets(plan)
    with atomic_file(path) as temporary:
        _fill(temporary, plan, ends, leaves)


def fill_file(file: WritableFile, plan: FilePlan, leaves: Leaves) -> bytes:
    """Write the file that `plan` describes into an open, empty file; return its header.

    The leaves expect its segments. Nothing is flushed.

    Raises OSError as the system does, ValueError as `write_file` does, and what `check_stop`
    raises, which is called every few MiB.
    """
    return _fill(file, plan, segment_offsets(plan), leaves)


def _fill(file: WritableFile, plan: FilePlan, ends: list[int], leaves: Leaves) -> bytes:
    digests = _write_data(file, plan, ends, FileContents(plan.segments, ends, leaves.part))
    header = build_header(plan, digests)
    file.doing = "writing the header"
    file.write(memoryview(header), 0)
    size = os.fstat(file.fd).st_size
    if size != plan.size_bytes:
        raise OSError(errno.EIO, f"wrote {plan.size_bytes} bytes, found {size}")
    return header


def write_stream(
    path: str | os.PathLike[str], chunks: Iterable[bytes | bytearray | memoryview]
) -> None:
    """Write `chunks` one after another to `path`, durably and atomically.

    Each chunk is used before the next one is requested. Raises as `atomic_file` does; an exception
    of `chunks` is passed on, and the old file at `path` stays.
    """
    with atomic_file(path) as temporary:
        offset = 0
        small = bytearray()
        for chunk in chunks:
            check_stop()
            view = memoryview(chunk).cast("B")
            if len(small) + len(view) < _STREAM_BYTES:
                small += view
                continue
            for part in (small, view):
                temporary.write(memoryview(part), offset)
                offset += len(part)
            small = bytearray()
        temporary.write(memoryview(small), offset)
        offset += len(small)
        size = os.fstat(temporary.fd).st_size
        if size != offset:
            raise OSError(errno.EIO, f"wrote {offset} bytes, found {size}")


def _write_data(
    temporary: WritableFile, plan: FilePlan, ends: list[int], contents: FileContents
) -> Digests:
    base, size = plan.header_bytes, plan.size_bytes
    values = bytearray(DIGEST_BYTES * block_count(size - base, BLOCK_BYTES))
    target = DirectFile(temporary.path, temporary.fd)
    slots = threading.Semaphore(_WRITES)

    def make_worker() -> Callable[[int], None]:
        scratch = ScratchBuffer()

        def work(task: int) -> None:
            check_stop()
            start = base + task * _UNIT_BYTES
            stop = min(start + _UNIT_BYTES, size)
            unit = scratch.view(stop - start)
            segment = bisect_right(ends, start) - 1
            contents.fill(unit, segment, start - ends[segment])
            if plan.make_header is not None:
                at = task * (_UNIT_BYTES // BLOCK_BYTES) * DIGEST_BYTES
                for a in range(0, len(unit), BLOCK_BYTES):
                    values[at : at + DIGEST_BYTES] = digest_of(unit[a : a + BLOCK_BYTES])
                    at += DIGEST_BYTES
            with slots:
                target.write(unit, start)

        return work

    units = block_count(size - base, _UNIT_BYTES)
    many_small = len(plan.segments) * _SMALL_SEGMENT_BYTES > size
    threads = _THREADS_FOR_SMALL if many_small else _THREADS
    try:
        if size >= _DIRECT_BYTES:
            if base % PAGE_BYTES == 0:
                target.open_direct()
            temporary.doing = "reserving its space"
            target.reserve(size)
            temporary.doing = "writing"
        run_tasks(units, threads=threads, make_worker=make_worker)
    finally:
        target.close_direct()
    return Digests(base, BLOCK_BYTES, bytes(values))


class DirectFile:
    """A file that is open for writing, and optionally a second time with O_DIRECT.

    What is written past the page cache takes no memory there, and is written to the disk once.

    Args:
        path: the path of the file.
        fd: its descriptor for writing through the page cache.
    """

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._direct_fd = -1  # the descriptor with O_DIRECT, if any

    @property
    def is_direct(self) -> bool:
        """True if it is open with O_DIRECT."""
        return self._direct_fd >= 0

    def open_direct(self) -> None:
        """Write past the page cache until `close_direct`, if the file system supports it."""
        try:
            self._direct_fd = open_fd(self._path, _DIRECT_FLAGS)
        except OSError as e:
            if e.errno not in _NO_DIRECT:
                raise

    def close_direct(self) -> None:
        fd, self._direct_fd = self._direct_fd, -1
        if fd >= 0:
            close_quietly(fd)

    def reserve(self, size_bytes: int) -> None:
        """Reserve the space, so that a full disk is noticed before anything is written."""
        try:
            syscalls.current().fallocate(self._fd, size_bytes)
        except OSError as e:
            if e.errno not in _NO_FALLOCATE:
                raise

    def start_writeback(self, offset: int, length: int) -> None:
        """Tell the kernel to begin writing back what went through the page cache."""
        with suppress(OSError):  # fsync will report the error
            syscalls.current().start_writeback(self._fd, offset, length)

    def write(self, unit: memoryview, offset: int) -> None:
        """Write all of `unit`. For direct I/O its memory and the offset must be page-aligned.

        A partial last page goes through the page cache.
        """
        whole = len(unit) // PAGE_BYTES * PAGE_BYTES if self.is_direct else 0
        done = 0
        try:
            while done < whole:
                count = syscalls.current().pwrite(self._direct_fd, unit[done:whole], offset + done)
                if count <= 0:
                    raise OSError(errno.EIO, "the file takes no more bytes")
                done += count
                if count % PAGE_BYTES:  # a short write within a page: the page cache takes the rest
                    break
        except OSError as e:
            if e.errno not in _NO_DIRECT:
                raise
        write_all(self._fd, unit[done:], offset + done)
