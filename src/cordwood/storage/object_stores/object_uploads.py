"""Uploads of data objects from leaves: hashed first, then sent in parts from a few buffers.

The header of a data file, which holds the digests of all its blocks, comes first, and a store takes
the bytes of an object in order. So the leaves are read twice: to hash them, and to send them. What
is sent is hashed again: a leaf that changes between the two is an error, not a damaged checkpoint.
docs/design/0013-object-stores.md compares this with the alternatives.

The buffers are shared by all uploads of a call. obstore keeps a buffer until its part has been
stored; then the next part is filled into it.
"""

from __future__ import annotations

import queue
import threading
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from cordwood.encoding.digests import BLOCK_BYTES, DIGEST_BYTES, block_count, digest_of
from cordwood.errors import CordwoodError, StorageError
from cordwood.index import Digests, HeaderDigest
from cordwood.io.buffers import PAGE_BYTES, ScratchBuffer, allocate_bytes
from cordwood.io.file_contents import FileContents
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.progress import METER
from cordwood.plan.file_plan import FilePlan, build_header, leaves_of, segment_offsets
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_store_errors import failure_of
from cordwood.storage.storage_protocol import NewDataFile
from cordwood.storage.write_units import block_digests
from cordwood.threads.log import log
from cordwood.threads.stop_check import check_stop, current_stop_check
from cordwood.threads.thread_counts import default_threads
from cordwood.threads.thread_pool import run_tasks

PART_BYTES = 8 << 20
_ATTEMPTS = 2
PARTS_IN_FLIGHT = 12  # of one object
BUFFERS = 18  # of a call, each for one part: the most memory that uploads need
_UPLOADS = 4  # objects at once
_UNIT_BYTES = 4 << 20
_POLL_SECONDS = 0.5


def upload_objects(
    store: ObjectStore,
    files: Sequence[NewDataFile],
    leaves: Leaves,
    *,
    ready: Callable[[], None] = lambda: None,
    max_buffers: int | None = None,
    are_new: bool = True,
) -> list[HeaderDigest]:
    """Upload data objects; all are stored when this returns.

    After an exception no more uploads are begun, and those in progress are given up, so that the
    caller can delete all objects. The leaves of an object are released once it is stored.

    Args:
        store: the store.
        files: the objects.
        leaves: the leaves, which expect the parts of the files.
        ready: called before an object is complete; raises what must stop that.
        are_new: True if no object of these names existed: one of the right size is then what was
            sent, though the answer was lost.
        max_buffers: the most buffers to use, at least 8; None: BUFFERS.

    Returns the digests of their headers.

    Raises OSError, and what `check_stop` raises; ValueError for a plan whose sizes disagree with
    each other or with the leaves.
    """
    results: list[HeaderDigest] = [HeaderDigest(0, b"")] * len(files)
    buffers = _Buffers(max_buffers or BUFFERS)
    failed = threading.Event()

    def make_worker() -> Callable[[int], None]:
        def work(task: int) -> None:
            check_stop()
            try:
                results[task] = _upload(
                    store, files[task], leaves, buffers, failed, ready, is_new=are_new
                )
            except BaseException:
                failed.set()
                raise

        return work

    run_tasks(len(files), threads=_UPLOADS, make_worker=make_worker)
    return results


class _Buffers:
    """The buffers that the uploads of a call share: a few for parts, made when first needed.

    Attributes:
        hashing: held while an object is hashed: so the first is sent while others are hashed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self.hashing = threading.Lock()
        # One thread at a time takes from the queue: in Python 3.11 `get` with a timeout may never
        # return if another thread takes what it was woken for.
        self._taking = threading.Lock()
        self._made = 0

    def take(self, is_given_up: Callable[[], bool]) -> memoryview:
        """Return a buffer of a part and a block; wait until one is free."""
        while not is_given_up():
            with self._taking, suppress(queue.Empty):
                return self._free.get(timeout=0 if self._made < self._limit else _POLL_SECONDS)
            with self._taking:
                is_new = self._made < self._limit
                self._made += is_new
            if is_new:
                return allocate_bytes(PART_BYTES + BLOCK_BYTES, alignment=PAGE_BYTES).data
        raise StorageError(0, "the upload was given up")

    def give_back(self, buffer: memoryview) -> None:
        """Return a buffer that was not lent."""
        self._free.put(buffer)

    def lend(self, buffer: memoryview, start: int, stop: int) -> memoryview:
        """Return a part of a buffer, which comes back once nobody refers to that part."""
        part = buffer[start:stop]
        weakref.finalize(part, self._free.put, buffer)
        return part


class _Object:
    """A data object that is hashed, and then filled part by part."""

    def __init__(self, name: str, plan: FilePlan, leaves: Leaves) -> None:
        self.name = name
        self.plan = plan
        self._ends = segment_offsets(plan)
        self._contents = FileContents(plan.segments, self._ends, leaves.view)
        digests = plan.digests
        if digests is None or digests.block_bytes != BLOCK_BYTES:
            digests = Digests(plan.header_bytes, BLOCK_BYTES, self._hash())
        self._digests = digests
        self.header = build_header(plan, self._digests)

    def _hash(self) -> bytes:
        base, size = self.plan.header_bytes, self.plan.size_bytes
        values = bytearray(DIGEST_BYTES * block_count(size - base, BLOCK_BYTES))

        def make_worker() -> Callable[[int], None]:
            scratch = ScratchBuffer()

            def work(task: int) -> None:
                check_stop()
                start = base + task * _UNIT_BYTES
                unit = scratch.view(min(_UNIT_BYTES, size - start))
                self._fill(unit, start)
                digests = block_digests(unit)
                at = task * (_UNIT_BYTES // BLOCK_BYTES) * DIGEST_BYTES
                values[at : at + len(digests)] = digests

            return work

        units = block_count(size - base, _UNIT_BYTES)
        run_tasks(units, threads=default_threads(), make_worker=make_worker)
        return bytes(values)

    def _fill(self, buffer: memoryview, start: int) -> None:
        segment = bisect_right(self._ends, start) - 1
        self._contents.fill(buffer, segment, start - self._ends[segment])

    def fill_part(self, buffer: memoryview, start: int, stop: int) -> tuple[int, int]:
        """Fill bytes [start, stop) of the object into a buffer; return where they lie in it.

        The buffer has room for a block more: the block in which the part begins is filled whole, so
        that its digest can be compared.

        Raises StorageError for bytes that have changed since they were hashed.
        """
        base = self.plan.header_bytes
        head = self.header[start:stop] if start < base else b""
        buffer[: len(head)] = head
        first = max(start, base)
        first -= (first - base) % BLOCK_BYTES
        data = buffer[len(head) : len(head) + max(0, stop - first)]
        self._fill(data, first)
        cut = 0 if stop == self.plan.size_bytes else len(data) % BLOCK_BYTES
        at = (first - base) // BLOCK_BYTES * DIGEST_BYTES
        sent = block_digests(data[: len(data) - cut])
        if self._digests.values[at : at + len(sent)] != sent:
            raise StorageError(
                0,
                "a leaf changed while it was saved: expected the bytes that were hashed, found "
                "others; do not write to arrays during a save",
                self.name,
            )
        skip = max(start, base) - first
        return (0, stop - start) if head else (skip, skip + stop - start)


def _upload(
    store: ObjectStore,
    file: NewDataFile,
    leaves: Leaves,
    buffers: _Buffers,
    failed: threading.Event,
    ready: Callable[[], None],
    *,
    is_new: bool,
) -> HeaderDigest:
    name, plan = file
    with buffers.hashing:
        contents = _Object(store.url_of(name), plan, leaves)
    for attempt in range(_ATTEMPTS):
        try:
            _send(store, name, contents, buffers, failed, ready)
            break
        except (OSError, CordwoodError) as e:
            if failed.is_set():
                raise
            if is_new and _is_stored(store, name, plan.size_bytes):  # the answer was lost
                break
            if attempt + 1 == _ATTEMPTS or not _may_repeat(e, store.url_of(name)):
                raise
            log.warning("%s; it is uploaded once more", e)
    for leaf, count in Counter(leaves_of(plan.segments)).items():
        leaves.release(leaf, count)
    return HeaderDigest(plan.header_bytes, digest_of(memoryview(contents.header)))


def _send(
    store: ObjectStore,
    name: str,
    contents: _Object,
    buffers: _Buffers,
    failed: threading.Event,
    ready: Callable[[], None],
) -> None:
    size = contents.plan.size_bytes
    if size > PART_BYTES:
        _upload_parts(store, name, contents, buffers, failed, ready)
        return
    ready()
    buffer = buffers.take(failed.is_set)
    store.write(name, _filled(contents, buffers, buffer, 0, size))
    _advance(size)


def _filled(
    contents: _Object, buffers: _Buffers, buffer: memoryview, start: int, stop: int
) -> memoryview:
    """Return a part in a buffer, which comes back once nobody refers to the part."""
    try:
        bounds = contents.fill_part(buffer, start, stop)
    except BaseException:
        buffers.give_back(buffer)
        raise
    return buffers.lend(buffer, *bounds)


def _may_repeat(error: Exception, url: str) -> bool:
    """Return True if the store has failed for a while only, in a way that obstore does not repeat.

    That is an answer that was cut off. What the store refuses, obstore has repeated already.
    """
    if error.__cause__ is None or getattr(error, "filename", None) != url:
        return False  # not of the store, but of the leaves
    failure = failure_of(error.__cause__)
    return failure.is_temporary and not failure.status


def _is_stored(store: ObjectStore, name: str, size_bytes: int) -> bool:
    with suppress(OSError, CordwoodError):
        return store.size_of(name) == size_bytes
    return False


def _advance(size_bytes: int) -> None:
    meter = METER.get()
    if meter is not None:
        meter.advance(size_bytes)


def _upload_parts(
    store: ObjectStore,
    name: str,
    contents: _Object,
    buffers: _Buffers,
    failed: threading.Event,
    ready: Callable[[], None],
) -> None:
    size = contents.plan.size_bytes

    def fill(number: int, is_given_up: Callable[[], bool]) -> memoryview:
        start = number * PART_BYTES
        stop = min(start + PART_BYTES, size)
        if stop == size:
            ready()
        buffer = buffers.take(lambda: is_given_up() or failed.is_set())
        part = _filled(contents, buffers, buffer, start, stop)
        _advance(stop - start)
        return part

    def check() -> None:
        current_stop_check()()
        if failed.is_set():
            raise StorageError(0, "another upload has failed", store.url_of(name))

    store.upload(
        name,
        fill,
        -(-size // PART_BYTES),
        part_bytes=PART_BYTES,
        parts_in_flight=PARTS_IN_FLIGHT,
        check=check,
    )
