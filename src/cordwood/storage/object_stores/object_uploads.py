"""Uploads of data objects from leaves: hashed first, then sent in parts from a few buffers.

The header of a data file, which holds the digests of all its blocks, comes first, and a store takes
the bytes of an object in order. So the leaves are read twice: to hash them, and to send them. What
is sent is hashed again: a leaf that changes between the two is an error, not a damaged checkpoint.
docs/design/0013-object-stores.md compares this with the alternatives.

The buffers are shared by all uploads of a call. obstore keeps a buffer until its part has been
stored; then the next part is filled into it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from cordwood.encoding.digests import BLOCK_BYTES, digest_of
from cordwood.errors import CordwoodError, StorageError
from cordwood.index import HeaderDigest
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.progress import METER
from cordwood.plan.file_plan import leaves_of
from cordwood.storage.object_stores.hashed_contents import HashedContents
from cordwood.storage.object_stores.multipart_upload import upload_in_parts
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_store_errors import failure_of
from cordwood.storage.object_stores.upload_buffers import UploadBuffers
from cordwood.storage.storage_protocol import NewDataFile
from cordwood.threads.log import log
from cordwood.threads.stop_check import check_stop, current_stop_check
from cordwood.threads.thread_pool import run_tasks

PART_BYTES = 8 << 20
_ATTEMPTS = 2
PARTS_IN_FLIGHT = 12  # of one object
BUFFERS = 18  # of a call, each for one part: the most memory that uploads need
_UPLOADS = 4  # objects at once


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
    uploads = _Uploads(store, leaves, ready, max_buffers or BUFFERS, are_new=are_new)

    def work(number: int) -> None:
        results[number] = uploads.upload(files[number])

    run_tasks(len(files), threads=_UPLOADS, make_worker=lambda: work)
    return results


class _Uploads:
    """The uploads of one call: what they share, and the end of all once one has failed."""

    def __init__(
        self,
        store: ObjectStore,
        leaves: Leaves,
        ready: Callable[[], None],
        max_buffers: int,
        *,
        are_new: bool,
    ) -> None:
        self._store = store
        self._leaves = leaves
        self._ready = ready
        self._are_new = are_new
        # Each has room for a part, and for the block in which the part begins.
        self._buffers = UploadBuffers(max_buffers, PART_BYTES + BLOCK_BYTES)
        self._failed = threading.Event()
        self._hashing = threading.Lock()  # the first object is sent while others are hashed

    def upload(self, file: NewDataFile) -> HeaderDigest:
        """Upload an object, and return the digest of its header."""
        check_stop()
        try:
            name, plan = file
            with self._hashing:
                contents = HashedContents(self._store.url_of(name), plan, self._leaves)
            self._send_again(name, contents)
            for leaf, count in Counter(leaves_of(plan.segments)).items():
                self._leaves.release(leaf, count)
            return HeaderDigest(plan.header_bytes, digest_of(memoryview(contents.header)))
        except BaseException:
            self._failed.set()
            raise

    def _send_again(self, name: str, contents: HashedContents) -> None:
        """Send an object, once more after a failure that may pass."""
        for attempt in range(_ATTEMPTS):
            try:
                self._send(name, contents)
            except (OSError, CordwoodError) as e:
                if self._failed.is_set():
                    raise
                if self._are_new and self._is_stored(name, contents.plan.size_bytes):
                    return  # the answer was lost
                if attempt + 1 == _ATTEMPTS or not _may_repeat(e, self._store.url_of(name)):
                    raise
                log.warning("%s; it is uploaded once more", e)
            else:
                return

    def _send(self, name: str, contents: HashedContents) -> None:
        size = contents.plan.size_bytes
        if size <= PART_BYTES:
            self._ready()
            self._store.write(name, self._fill(contents, 0, size, self._failed.is_set))
            _advance(size)
            return

        def fill(number: int, is_given_up: Callable[[], bool]) -> memoryview:
            start = number * PART_BYTES
            stop = min(start + PART_BYTES, size)
            if stop == size:
                self._ready()
            part = self._fill(contents, start, stop, lambda: is_given_up() or self._failed.is_set())
            _advance(stop - start)
            return part

        def check() -> None:
            current_stop_check()()
            if self._failed.is_set():
                raise StorageError(0, "another upload has failed", self._store.url_of(name))

        upload_in_parts(
            self._store,
            name,
            fill,
            -(-size // PART_BYTES),
            part_bytes=PART_BYTES,
            parts_in_flight=PARTS_IN_FLIGHT,
            check=check,
        )

    def _fill(
        self, contents: HashedContents, start: int, stop: int, is_given_up: Callable[[], bool]
    ) -> memoryview:
        """Return a part in a buffer, which comes back once nobody refers to the part."""
        buffer = self._buffers.take(is_given_up)
        try:
            bounds = contents.fill_part(buffer, start, stop)
        except BaseException:
            self._buffers.give_back(buffer)
            raise
        return self._buffers.lend(buffer, *bounds)

    def _is_stored(self, name: str, size_bytes: int) -> bool:
        with suppress(OSError, CordwoodError):
            return self._store.size_of(name) == size_bytes
        return False


def _may_repeat(error: Exception, url: str) -> bool:
    """Return True if the store has failed for a while only, in a way that obstore does not repeat.

    That is an answer that was cut off. What the store refuses, obstore has repeated already.
    """
    if error.__cause__ is None or getattr(error, "filename", None) != url:
        return False  # not of the store, but of the leaves
    failure = failure_of(error.__cause__)
    return failure.is_temporary and not failure.status


def _advance(size_bytes: int) -> None:
    meter = METER.get()
    if meter is not None:
        meter.advance(size_bytes)
