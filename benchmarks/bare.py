"""Baselines of the machine: the same bytes moved without any other work."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

__all__ = [
    "PAGE_BYTES",
    "REPEATED_BYTES",
    "copy_direct",
    "page_aligned_copy",
    "preadv_into_empty",
    "read_into",
    "read_through",
    "write_direct",
]

CHUNK_BYTES = 4 << 20
T = TypeVar("T")
THREADS = max(2, min(4, os.cpu_count() or 2))
PAGE_BYTES = 4096
REPEATED_BYTES = 16 * CHUNK_BYTES  # what stands for a larger file


def page_aligned_copy(path: Path, *, at_most: int | None = None) -> memoryview:
    """Return a file's (first) bytes, zero-padded to whole pages, in memory fit for O_DIRECT."""
    size_bytes = path.stat().st_size
    if at_most is not None:
        size_bytes = min(size_bytes, at_most)
    padded = max(1, -(-size_bytes // PAGE_BYTES)) * PAGE_BYTES
    memory = memoryview(mmap.mmap(-1, padded))
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < size_bytes:
            done += file.readinto(memory[done:size_bytes]) or 0
    return memory


def write_direct(
    path: Path, data: memoryview, size_bytes: int | None = None, *, threads: int = THREADS
) -> None:
    """Write with fallocate(2), O_DIRECT and fsync, without a copy, a digest or a rename.

    If the size, in whole pages, is larger than the data, the data is written repeatedly.
    """
    total = data.nbytes if size_bytes is None else size_bytes

    def write(start: int, stop: int) -> None:
        at = start % data.nbytes
        _write_all(fd, data[at : at + stop - start], start)

    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o666)
    try:
        _fallocate(fd, total)
        _in_threads(total, write, threads)
        os.fsync(fd)
    finally:
        os.close(fd)


def copy_direct(source: Path, path: Path) -> None:
    """Copy a file in several threads, 4 MiB at a time: page cache to O_DIRECT, then fsync."""
    size_bytes = source.stat().st_size
    padded = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
    buffers = threading.local()

    def move(start: int, stop: int) -> None:
        if not hasattr(buffers, "memory"):
            buffers.memory = memoryview(mmap.mmap(-1, CHUNK_BYTES))
        data = buffers.memory[: stop - start]
        _read_all(inside, data[: min(stop, size_bytes) - start], start)
        _write_all(outside, data, start)

    inside = os.open(source, os.O_RDONLY)
    outside = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o666)
    try:
        _fallocate(outside, padded)
        _in_threads(padded, move)
        os.truncate(outside, size_bytes)
        os.fsync(outside)
    finally:
        os.close(inside)
        os.close(outside)


def preadv_into_empty(path: Path) -> np.ndarray[Any, Any]:
    """Read a file into one np.empty, in several threads."""
    size_bytes = path.stat().st_size
    array = np.empty(size_bytes, np.uint8)
    view = array.data
    fd = os.open(path, os.O_RDONLY)
    try:
        _in_threads(size_bytes, lambda start, stop: _read_all(fd, view[start:stop], start))
    finally:
        os.close(fd)
    return array


def read_into(path: Path, memory: memoryview, *, threads: int, direct: bool = False) -> None:
    """Fill memory with the first bytes of a file. With `direct` they pass by the page cache.

    For that, address and size must be multiples of a page.
    """
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    try:
        _in_threads(
            memory.nbytes, lambda start, stop: _read_all(fd, memory[start:stop], start), threads
        )
    finally:
        os.close(fd)


def read_through(paths: Sequence[Path], look: Callable[[memoryview], Any] | None = None) -> None:
    """Read files one after another in several threads, 4 MiB at a time, one buffer per thread.

    `look` is called with each part that was read.
    """
    buffers = threading.local()

    def read(fd: int, start: int, stop: int) -> None:
        if not hasattr(buffers, "memory"):
            buffers.memory = memoryview(bytearray(CHUNK_BYTES))
        data = buffers.memory[: stop - start]
        _read_all(fd, data, start)
        if look is not None:
            look(data)

    ends = list(accumulate([path.stat().st_size for path in paths], initial=0))
    parts = [
        (number, start, min(start + CHUNK_BYTES, stop - begin))
        for number, (begin, stop) in enumerate(pairwise(ends))
        for start in range(0, stop - begin, CHUNK_BYTES)
    ]
    fds = [os.open(path, os.O_RDONLY) for path in paths]
    try:
        _for_each(parts, lambda part: read(fds[part[0]], *part[1:]))
    finally:
        for fd in fds:
            os.close(fd)


def _fallocate(fd: int, size_bytes: int) -> None:
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(fd, 0, 0, size_bytes) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < data.nbytes:
        done += os.pwrite(fd, data[done:], offset + done)


def _read_all(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < view.nbytes:
        count = os.preadv(fd, [view[done:]], offset + done)
        if count == 0:
            raise EOFError("the file became shorter")
        done += count


def _in_threads(size_bytes: int, work: Callable[[int, int], None], threads: int = THREADS) -> None:
    starts = range(0, size_bytes, CHUNK_BYTES)
    _for_each(starts, lambda start: work(start, min(start + CHUNK_BYTES, size_bytes)), threads)


def _for_each(items: Iterable[T], work: Callable[[T], None], count: int = THREADS) -> None:
    remaining = iter(items)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not errors:
                with lock:
                    item = next(remaining, None)
                if item is None:
                    return
                work(item)
        except BaseException as e:  # noqa: BLE001  (handed to the caller below)
            errors.append(e)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
