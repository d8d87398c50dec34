"""Writing of the many files of a new directory, one by each thread.

Large raw chunks are written past the page cache, as in `write_files`. Small ones are written to the
page cache from the memory of the leaf. The kernel is asked at once to write them back, and each
file is flushed some files later, when that is mostly done. So most flushes do not wait, and one
commit of the file system's journal serves many files.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cordwood.io.chunk_codecs import Encoder
from cordwood.io.copy_bytes import copy_bytes, is_little_endian
from cordwood.io.lazy_array import LazyArray
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.io.open_files import read_views, with_file_name
from cordwood.io.page_cache import fits_page_cache
from cordwood.plan.file_plan import ChunkFile, PlannedFile, SmallFile
from cordwood.sharding.boxes import is_contiguous, shape_of
from cordwood.storage import syscalls
from cordwood.storage.direct_file import DirectFile
from cordwood.storage.syscalls import close_quietly, open_fd, opened_fd
from cordwood.storage.write_units import UNIT_BYTES, block_digests
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_pool import map_in_threads, run_tasks

_DIRECT_CHUNK_BYTES = 1 << 20  # a smaller chunk goes through the page cache
_CHUNK_THREADS = 4
_OPEN_FILES = 32  # files of one thread that are written but not yet flushed; a user may have 256
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


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
    direct = not (page_cache and fits_page_cache(sum([bytes_of_chunk(file) for file in files])))
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
        remaining = [entry for unflushed in waiting for entry in unflushed]

        def finish(task: int) -> None:
            check_stop()
            _flush(*remaining[task])

        run_tasks(len(remaining), threads=_CHUNK_THREADS, make_worker=lambda: finish)
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
                for start in range(0, size, UNIT_BYTES):
                    unit = scratch.view(min(UNIT_BYTES, size - start))
                    read_views(fd, start, [unit], name=path)
                    digests.append(block_digests(unit))
                syscalls.current().fsync(fd)
                return WrittenFile(size, b"".join(digests))
        except OSError as e:
            raise with_file_name(e, path) from e

    return map_in_threads(adopt, [(f"{folder}/{path}",) for path in paths], threads=_CHUNK_THREADS)


def _bulk(file: PlannedFile) -> int:
    """Return the size of a large file, 0 for a small one: sorting keeps the order of those."""
    size = bytes_of_chunk(file)
    return size if size >= UNIT_BYTES else 0


def bytes_of_chunk(file: PlannedFile) -> int:
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
        if encode is not None:
            data = encoded_chunk(file, leaves, encode)
            return _write_units(target, len(data), lambda a, b: memoryview(data)[a:b])
        part = leaves.part(file.leaf, file.box)
        if isinstance(part, LazyArray):
            size = math.prod(file.shape) * file.itemsize
            if size >= _DIRECT_CHUNK_BYTES and _leads(file):
                # Read in parts, never as a whole.
                return _write_raw(target, file, part, scratch, direct=direct)
            part = np.asarray(part)
        return _write_raw(target, file, part, scratch, direct=direct)
    finally:
        target.close_direct()


def encoded_chunk(file: ChunkFile, leaves: Leaves, encode: Encoder) -> bytes:
    """Return the bytes of a compressed chunk."""
    return encode(_padded(np.asarray(leaves.part(file.leaf, file.box)), file.shape))


def _write_raw(
    target: DirectFile,
    file: ChunkFile,
    part: np.ndarray | LazyArray,
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
    for start in range(0, size, UNIT_BYTES):
        unit = unit_of(start, min(start + UNIT_BYTES, size))
        digests.append(block_digests(unit))
        target.write(unit, start)
        if not target.is_direct:
            target.start_writeback(start, len(unit))
    return WrittenFile(size, b"".join(digests))


def _leads(file: ChunkFile) -> bool:
    """Return True if the elements of the box come first in the chunk, before all padding."""
    return is_contiguous(shape_of(file.box), file.shape)


def _padded(part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a C-contiguous little-endian chunk of that shape, padded with zeros."""
    dtype = part.dtype.newbyteorder("<")
    if part.shape == shape:
        return np.ascontiguousarray(part, dtype).reshape(shape)
    chunk = np.zeros(shape, dtype)
    chunk[tuple([slice(size) for size in part.shape])] = part
    return chunk
