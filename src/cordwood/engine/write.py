"""Write one file: fill, hash and write its units from a few threads, seal, commit.

A unit is a few MiB of the file's own offsets. A thread fills a page-aligned buffer with it from
the leaves, hashes its blocks, and writes it, past the page cache (O_DIRECT) where the file
system takes that: a durable file then costs one trip to the disk and no page cache. Nothing of
the tree is copied but through those buffers.
"""

from __future__ import annotations

import errno
import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable

import numpy as np

from cordwood.engine import system
from cordwood.engine.commit import Temporary, atomic_file
from cordwood.engine.digest import BLOCK_BYTES, DIGEST_BYTES, block_count, digest_of
from cordwood.engine.gather import LeafStore
from cordwood.engine.parallel import run_tasks
from cordwood.engine.system import open_into
from cordwood.index import Digests
from cordwood.plan.save import FilePlan, seal, segment_ends

__all__ = ["fill_file", "write_file", "write_stream"]

_UNIT_BYTES = 4 << 20
_THREADS = 4  # each with one buffer; measured: two to four saturate a local disk
# Below this on average, filling is more the interpreter's work than memcpy's.
_SMALL_SEGMENT_BYTES = 64 << 10
_THREADS_FOR_SMALL = 1
_DIRECT_BYTES = 8 << 20  # a smaller file goes through the page cache
_PAGE_BYTES = 4096
_DIRECT_FLAGS = os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC
_NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_STREAM_BYTES = 1 << 20


def write_file(
    path: str | os.PathLike[str], plan: FilePlan, fetch: Callable[[int], np.ndarray]
) -> None:
    """Write what `plan` says to `path`, durably and atomically.

    Args:
        path: the destination; symlinks are followed, missing directories made.
        plan: the file's segments, and the header's seal.
        fetch: gives a leaf's array. Called once for each leaf, when its first byte is needed, by
            one thread at a time (though not always the same one); the array is let go right
            after its last byte. Any strides and byte order: C-order little-endian is written.

    Raises as `cordwood.engine.commit.atomic_file` does, and ValueError for a plan whose sizes
    disagree with each other or with the leaves.
    """
    ends = segment_ends(plan)
    with atomic_file(path) as temporary:
        _fill(temporary, plan, ends, fetch)


def fill_file(file: Temporary, plan: FilePlan, fetch: Callable[[int], np.ndarray]) -> bytes:
    """Write what `plan` says into an open, empty file; its header.

    Raises OSError as the system does, and ValueError as `write_file` does. Nothing is flushed.
    """
    return _fill(file, plan, segment_ends(plan), fetch)


def _fill(
    file: Temporary, plan: FilePlan, ends: list[int], fetch: Callable[[int], np.ndarray]
) -> bytes:
    digests = _write_data(file, plan, ends, LeafStore(plan.segments, ends, fetch))
    header = seal(plan, digests)
    file.doing = "writing the header"
    file.write(memoryview(header), 0)
    found = os.fstat(file.fd).st_size
    if found != plan.size_bytes:
        raise OSError(errno.EIO, f"wrote {plan.size_bytes} bytes, found {found}")
    return header


def write_stream(
    path: str | os.PathLike[str], chunks: Iterable[bytes | bytearray | memoryview]
) -> None:
    """Write `chunks` one after another to `path`, durably and atomically.

    Each chunk is used before the next is asked for. Raises as `atomic_file` does; an exception
    of `chunks` passes through and leaves what was at `path`.
    """
    with atomic_file(path) as temporary:
        offset = 0
        small = bytearray()
        for chunk in chunks:
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
        found = os.fstat(temporary.fd).st_size
        if found != offset:
            raise OSError(errno.EIO, f"wrote {offset} bytes, found {found}")


def _write_data(
    temporary: Temporary, plan: FilePlan, ends: list[int], leaves: LeafStore
) -> Digests:
    base, size = plan.header_bytes, plan.size_bytes
    values = bytearray(DIGEST_BYTES * block_count(size - base, BLOCK_BYTES))
    target = _Target(temporary, size_bytes=size, direct=base % _PAGE_BYTES == 0)

    def make_worker() -> Callable[[int], None]:
        ring = mmap.mmap(-1, min(_UNIT_BYTES, _pages(size - base)))  # page-aligned
        buffer = memoryview(ring)

        def work(task: int) -> None:
            start = base + task * _UNIT_BYTES
            stop = min(start + _UNIT_BYTES, size)
            unit = buffer[: stop - start]
            segment = bisect_right(ends, start) - 1
            leaves.fill(unit, segment, start - ends[segment])
            if plan.seal is not None:
                at = task * (_UNIT_BYTES // BLOCK_BYTES) * DIGEST_BYTES
                for a in range(0, len(unit), BLOCK_BYTES):
                    values[at : at + DIGEST_BYTES] = digest_of(unit[a : a + BLOCK_BYTES])
                    at += DIGEST_BYTES
            target.write(unit, start)

        return work

    units = block_count(size - base, _UNIT_BYTES)
    many_small = len(plan.segments) * _SMALL_SEGMENT_BYTES > size
    threads = _THREADS_FOR_SMALL if many_small else _THREADS
    calls = system.current()
    try:
        target.open()
        target.reserve()
        run_tasks(units, threads=threads, make_worker=make_worker)
    finally:
        if target.opened:
            try:  # noqa: SIM105  (no `suppress`: an interrupt in it would come before the call)
                calls.close(target.opened[0])
            except OSError:
                pass
    return Digests(base, BLOCK_BYTES, bytes(values))


class _Target:
    """The temporary's bulk: whole pages past the page cache, where that is possible."""

    def __init__(self, temporary: Temporary, *, size_bytes: int, direct: bool) -> None:
        self._temporary = temporary
        self._size_bytes = size_bytes
        self._wants_direct = direct and size_bytes >= _DIRECT_BYTES
        self.opened: list[int] = []  # past the page cache

    def open(self) -> None:
        if self._wants_direct:
            try:
                open_into(self.opened, self._temporary.path, _DIRECT_FLAGS)
            except OSError as e:
                if e.errno not in _NO_DIRECT:
                    raise

    def reserve(self) -> None:
        """Claim the space at once: a full disk is found before anything is written."""
        if self._size_bytes < _DIRECT_BYTES:
            return
        self._temporary.doing = "reserving its space"
        try:
            system.current().fallocate(self._temporary.fd, self._size_bytes)
        except OSError as e:
            if e.errno not in _NO_FALLOCATE:
                raise
        self._temporary.doing = "writing"

    def write(self, unit: memoryview, offset: int) -> None:
        whole = len(unit) // _PAGE_BYTES * _PAGE_BYTES if self.opened else 0
        done = 0
        try:
            while done < whole:
                count = system.current().pwrite(self.opened[0], unit[done:whole], offset + done)
                if count <= 0:
                    raise OSError(errno.EIO, "the file takes no more bytes")
                done += count
                if count % _PAGE_BYTES:  # cut short off a page's edge: the page cache takes it on
                    break
        except OSError as e:
            if e.errno not in _NO_DIRECT:
                raise
        self._temporary.write(unit[done:], offset + done)


def _pages(size_bytes: int) -> int:
    return max(1, block_count(size_bytes, _PAGE_BYTES)) * _PAGE_BYTES
