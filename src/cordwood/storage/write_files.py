"""Writing of files from leaves: filled, hashed and written by a few threads.

**One large file** is written in units: ranges of a few MiB. A thread fills a page-aligned buffer
with a unit from the leaves, hashes its blocks, and writes it past the page cache (O_DIRECT) where
the file system supports that, unless the file is to stay in the page cache. The tree is copied only
through those buffers. The header, with the digests, comes last.

**Many files of a new directory** are written one by each thread. Large raw chunks are written past
the page cache, too. Small ones are written to the page cache from the memory of the leaf. The
kernel is asked at once to write them back, and each file is flushed some files later, when that is
mostly done. So most flushes do not wait, and one commit of the file system's journal serves many
files.

One file, because both ways share their units, their digests, and direct I/O.
"""

from __future__ import annotations

import errno
import math
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from cordwood.encoding.digests import BLOCK_BYTES, DIGEST_BYTES, block_count, digest_of
from cordwood.index import Digests
from cordwood.io.buffers import PAGE_BYTES, ScratchBuffer
from cordwood.io.chunk_codecs import Encoder
from cordwood.io.copy_bytes import copy_bytes, is_little_endian
from cordwood.io.file_contents import FileContents
from cordwood.io.lazy_array import LazyArray
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import read_views, with_file_name
from cordwood.io.page_cache import fits_page_cache
from cordwood.plan.file_plan import (
    ChunkFile,
    FilePlan,
    PlannedFile,
    SmallFile,
    build_header,
    leaves_of,
    segment_offsets,
)
from cordwood.sharding.boxes import is_contiguous, shape_of
from cordwood.storage import syscalls
from cordwood.storage.atomic_file import WritableFile, atomic_file
from cordwood.storage.syscalls import close_quietly, open_fd, opened_fd, write_all
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_pool import map_in_threads, run_tasks

_UNIT_BYTES = 4 << 20
_WRITES = 4  # concurrent writes; two to four saturate a local disk
_THREADS = 2 * _WRITES  # each with one buffer: half of them are filled while half are written
# For smaller segments on average, filling is interpreter time, not memcpy.
_SMALL_SEGMENT_BYTES = 64 << 10
_THREADS_FOR_SMALL = 1
_DIRECT_BYTES = 8 << 20  # a smaller file goes through the page cache
_STREAM_BYTES = 1 << 20
_DIRECT_FLAGS = os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC
_DIRECT_CHUNK_BYTES = 1 << 20  # a smaller chunk goes through the page cache
_CHUNK_THREADS = 4
_OPEN_FILES = 32  # files of one thread that are written but not yet flushed; a user may have 256
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


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
        temporary.require_size(offset + len(small))


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
            start = base + task * _UNIT_BYTES
            stop = min(start + _UNIT_BYTES, size)
            unit = scratch.view(stop - start)
            segment = bisect_right(ends, start) - 1
            contents.fill(unit, segment, start - ends[segment])
            if plan.make_header is not None:
                digests = _block_digests(unit)
                at = task * (_UNIT_BYTES // BLOCK_BYTES) * DIGEST_BYTES
                values[at : at + len(digests)] = digests
            with slots:
                target.write(unit, start)
                if not target.is_direct:
                    target.start_writeback(start, len(unit))

        return work

    units = block_count(size - base, _UNIT_BYTES)
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


def _block_digests(unit: memoryview) -> bytes:
    return b"".join(
        [digest_of(unit[a : a + BLOCK_BYTES]) for a in range(0, len(unit), BLOCK_BYTES)]
    )


class WrittenFile(NamedTuple):
    """The size and the digests of a file that was written."""

    size_bytes: int
    digests: bytes  # of its blocks, packed


def write_new_files(
    folder: str,
    files: Sequence[PlannedFile],
    leaves: Leaves,
    encode: Encoder | None,
    *,
    page_cache: bool = False,
) -> list[WrittenFile]:
    """Create new files. When this returns, their bytes are on the disk.

    Their directories must exist; the caller flushes those.

    Args:
        folder: the directory that their paths are relative to.
        files: the files; the chunk files of one leaf must follow one another.
        leaves: the leaves; each is released after its last chunk.
        encode: compresses a chunk; None for raw chunks.
        page_cache: True if the files may stay in the page cache, where they are small in all.

    Raises OSError as the system does, with the name of the file; and what `check_stop` raises,
    which is called between files.
    """
    leaves.expect([file.leaf for file in files if isinstance(file, ChunkFile)])
    waiting: list[deque[tuple[str, int]]] = []
    results = [WrittenFile(0, b"")] * len(files)
    direct = not (page_cache and fits_page_cache(sum([_size(file) for file in files])))
    # The large ones first, so that no thread is left with one at the end.
    order = sorted(range(len(files)), key=lambda i: -_bulk(files[i]))

    def make_worker() -> Callable[[int], None]:
        unflushed: deque[tuple[str, int]] = deque()
        waiting.append(unflushed)
        scratch = ScratchBuffer()

        def work(task: int) -> None:
            check_stop()
            file = files[order[task]]
            path = f"{folder}/{file.path}"
            try:
                fd = open_fd(path, _CREATE_FLAGS)
                unflushed.append((path, fd))
                results[order[task]] = _write_chunk_file(
                    path, fd, file, leaves, encode, scratch, direct=direct
                )
                if len(unflushed) > _OPEN_FILES:
                    _flush(*unflushed[0])
                    close_quietly(unflushed.popleft()[1])
            except OSError as e:
                raise with_file_name(e, path) from e

        return work

    try:
        run_tasks(len(files), threads=_CHUNK_THREADS, make_worker=make_worker)
        rest = [entry for unflushed in waiting for entry in unflushed]

        def finish(task: int) -> None:
            check_stop()
            _flush(*rest[task])

        run_tasks(len(rest), threads=_CHUNK_THREADS, make_worker=lambda: finish)
    finally:
        for unflushed in waiting:
            for _, fd in unflushed:
                close_quietly(fd)
    return results


def adopt_files(folder: str, paths: Sequence[str]) -> list[WrittenFile]:
    """Hash files that other code has written, and flush them to the disk.

    Raises OSError as the system does, with the name of the file.
    """

    def adopt(path: str) -> WrittenFile:
        check_stop()
        scratch = ScratchBuffer()
        try:
            with opened_fd(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) as fd:
                size = os.fstat(fd).st_size
                digests = []
                for start in range(0, size, _UNIT_BYTES):
                    unit = scratch.view(min(_UNIT_BYTES, size - start))
                    read_views(fd, start, [unit], name=path)
                    digests.append(_block_digests(unit))
                syscalls.current().fsync(fd)
                return WrittenFile(size, b"".join(digests))
        except OSError as e:
            raise with_file_name(e, path) from e

    return map_in_threads(adopt, [(f"{folder}/{path}",) for path in paths], threads=_CHUNK_THREADS)


def _bulk(file: PlannedFile) -> int:
    """Return the size of a large file, 0 for a small one: sorting keeps the order of those."""
    size = _size(file)
    return size if size >= _UNIT_BYTES else 0


def _size(file: PlannedFile) -> int:
    """Return the bytes of a chunk before compression; 0 for a small file."""
    return math.prod(file.shape) * file.itemsize if isinstance(file, ChunkFile) else 0


def _flush(path: str, fd: int) -> None:
    """Flush a file to the disk. A failed fsync is never retried."""
    try:
        syscalls.current().fsync(fd)
    except OSError as e:
        raise with_file_name(e, path) from e


def _write_chunk_file(
    path: str,
    fd: int,
    file: PlannedFile,
    leaves: Leaves,
    encode: Encoder | None,
    scratch: ScratchBuffer,
    *,
    direct: bool,
) -> WrittenFile:
    target = DirectFile(path, fd)
    if isinstance(file, SmallFile):
        return _write_units(target, len(file.data), lambda a, b: memoryview(file.data)[a:b])
    try:
        part = leaves.part(file.leaf, file.box)
        if isinstance(part, LazyArray):
            size = math.prod(file.shape) * file.itemsize
            if encode is None and size >= _DIRECT_CHUNK_BYTES and _leads(file):
                # Read in parts, never as a whole.
                return _write_raw(target, file, part, scratch, direct=direct)
            part = np.asarray(part)
        if encode is not None:
            data = encode(_padded(part, file.shape))
            return _write_units(target, len(data), lambda a, b: memoryview(data)[a:b])
        return _write_raw(target, file, part, scratch, direct=direct)
    finally:
        target.close_direct()


def _write_raw(
    target: DirectFile,
    file: ChunkFile,
    part: np.ndarray[Any, Any] | LazyArray,
    scratch: ScratchBuffer,
    *,
    direct: bool,
) -> WrittenFile:
    size = math.prod(file.shape) * file.itemsize
    if part.nbytes != size and not _leads(file):
        part = _padded(np.asarray(part), file.shape)
    if size >= _DIRECT_CHUNK_BYTES:
        if direct:
            target.open_direct()
        target.reserve(size)
    elif part.nbytes == size and is_little_endian(part) and part.flags.c_contiguous:
        source = part.reshape(-1).view(np.uint8).data
        return _write_units(target, size, lambda a, b: source[a:b])

    def fill(start: int, stop: int) -> memoryview:
        unit = scratch.view(stop - start)
        held = max(0, min(stop, part.nbytes) - start)
        if held:
            copy_bytes(part, start, unit[:held])
        np.frombuffer(unit, np.uint8)[held:] = 0
        return unit

    return _write_units(target, size, fill)


def _write_units(
    target: DirectFile, size: int, unit_of: Callable[[int, int], memoryview]
) -> WrittenFile:
    """Hash and write a file of that size, a few MiB at a time."""
    digests = []
    for start in range(0, size, _UNIT_BYTES):
        unit = unit_of(start, min(start + _UNIT_BYTES, size))
        digests.append(_block_digests(unit))
        target.write(unit, start)
        if not target.is_direct:
            target.start_writeback(start, len(unit))
    return WrittenFile(size, b"".join(digests))


def _leads(file: ChunkFile) -> bool:
    """Return True if the elements of the box come first in the chunk, before all padding."""
    return is_contiguous(shape_of(file.box), file.shape)


def _padded(part: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return a C-contiguous little-endian chunk of that shape, padded with zeros."""
    dtype = part.dtype.newbyteorder("<")
    if part.shape == shape:
        return np.ascontiguousarray(part, dtype).reshape(shape)
    chunk = np.zeros(shape, dtype)
    chunk[tuple([slice(size) for size in part.shape])] = part
    return chunk


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
