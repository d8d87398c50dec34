"""An upload in parts: which are filled, which are on their way, and when it has stalled."""

from __future__ import annotations

import asyncio
import errno
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from cordwood.errors import StorageError
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_store_errors import is_of_obstore, request_error
from cordwood.storage.object_stores.request_loop import POLL_SECONDS, call_in_thread, run_request
from cordwood.threads.awake_clock import AwakeClock

_PARTS_AHEAD = 2  # of an upload: filled, and not asked for yet

_ABORT_SECONDS = 10.0


class MultipartUpload:
    """An upload in parts: how many are on their way, and since when none has arrived.

    Time in which no part is on its way, because the leaves are slow to read, does not count; nor
    does time in which the process stood still.

    Two parts are sent at first, and more at once as they arrive quickly: so a slow link is not
    shared by so many parts that none arrives in time.

    Attributes:
        stored_parts: the number of parts that have arrived.
        failure: why it was given up; None: it was not.
        ended: set once no more parts are needed.
    """

    def __init__(
        self, store: ObjectStore, name: str, most_at_once: int, check: Callable[[], None]
    ) -> None:
        self.stored_parts = 0
        self.failure: BaseException | None = None
        self._url = store.url_of(name)
        self._store = store
        self._stall_seconds = store.bucket.stall_seconds
        self._most_at_once = most_at_once
        self._lacks_bytes = False
        self._check = check
        self._sent_parts = 0
        self._at_once = 2
        self.ended = threading.Event()
        self._filled: Callable[[], None] | None = None  # waits until no more parts are filled
        self._room = threading.Semaphore(_PARTS_AHEAD)
        self._context = copy_context()
        self._clock = AwakeClock()
        self._last_seconds = self._clock.now()
        self._failed_seconds = 0.0

    async def feed(
        self,
        fill: Callable[[int, Callable[[], bool]], memoryview],
        part_count: int,
        bytes_to_send: Callable[[memoryview], Any],
    ) -> AsyncIterator[Any]:
        """Yield the parts, but no more at once than may be on their way; none is kept here.

        They are filled in a thread, one after another, a little ahead; or here, where no more
        threads are possible.
        """
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        filled: deque[memoryview] = deque()
        errors: list[BaseException] = []

        def fill_all() -> None:
            try:
                for number in range(part_count):
                    self._room.acquire()
                    if self.ended.is_set():
                        return
                    filled.append(fill(number, self.ended.is_set))
                    loop.call_soon_threadsafe(changed.set)
            except BaseException as e:  # noqa: BLE001  (raised by the upload)
                errors.append(e)
                loop.call_soon_threadsafe(changed.set)

        def count(begun_seconds: float) -> None:
            self.stored_parts += 1
            self._last_seconds = self._clock.now()
            is_quick = self._last_seconds - begun_seconds < self._stall_seconds / 8
            self._at_once = min(self._at_once + is_quick, self._most_at_once)
            loop.call_soon_threadsafe(changed.set)

        self._filled = call_in_thread(partial(self._context.run, fill_all))
        for number in range(part_count):
            while True:
                if self.failure is not None:
                    raise self.failure
                changed.clear()
                if self._filled is None and not filled:
                    filled.append(fill(number, self.ended.is_set))
                if filled and self._sent_parts - self.stored_parts < self._at_once:
                    break
                if errors and not filled:
                    raise errors[0]
                self._lacks_bytes = not filled
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), POLL_SECONDS)
            self._lacks_bytes = False
            if self._sent_parts == self.stored_parts:
                self._last_seconds = self._clock.now()
            self._sent_parts += 1
            weakref.finalize(filled[0], count, self._clock.now())
            yield bytes_to_send(filled.popleft())
            self._room.release()

    def end(self) -> None:
        """Wait for the thread that fills parts, which may use the leaves until then."""
        self.ended.set()
        self._room.release()
        if self._filled is not None:
            self._filled()

    def waits_for(self) -> str:
        """Return what the upload waits for, for the log."""
        if self._waits_for_bytes():
            return f"the bytes to send to {self._url}: the source or the device is slow"
        return f"parts of {self._url} to be stored"

    def _waits_for_bytes(self) -> bool:
        """Return True if no part is on its way, because the next one has not been filled yet."""
        return self._lacks_bytes and self._sent_parts == self.stored_parts

    def check(self) -> None:
        """Raise StorageError once no part has arrived for too long.

        What the check of the caller raises ends `feed`, so that obstore aborts the upload; only if
        that takes long it is raised here.
        """
        now = self._clock.tick()
        if self.failure is not None:
            if now - self._failed_seconds > _ABORT_SECONDS:
                raise self.failure
            return
        try:
            self._check()
        except BaseException as e:  # noqa: BLE001  (raised by the upload)
            self.failure, self._failed_seconds = e, now
            return
        if self._waits_for_bytes():
            self._last_seconds = now
        # With all parts there, the store puts them together, which may take longer.
        limit = self._stall_seconds * (1 if self._sent_parts > self.stored_parts else 5)
        if self._sent_parts and now - self._last_seconds > limit:
            self._store.experience.has_answered = False  # expect no answer for a while
            self.failure = StorageError(
                errno.ETIMEDOUT,
                f"the store ({self._store.bucket.where}) has acknowledged no byte for "
                f"{self._stall_seconds:.0f} s; look at the network, or allow more by "
                "CORDWOOD_STALL_SECONDS",
                self._url,
            )
            raise self.failure


def upload_in_parts(
    store: ObjectStore,
    name: str,
    fill: Callable[[int, Callable[[], bool]], memoryview],
    part_count: int,
    *,
    part_bytes: int,
    parts_in_flight: int,
    check: Callable[[], None],
) -> None:
    """Upload a large object in parts; it exists once all of them have arrived.

    A failed upload is aborted. obstore repeats each part a few times; then this raises.

    Args:
        store: the store.
        name: the object.
        fill: returns the bytes of the part of a number, `part_bytes` but for the last; they are
            referred to until they have arrived. Called in the order of the numbers, in a
            thread, with a function that returns True once no more parts are needed.
        part_count: the number of parts.
        part_bytes: the size of a part.
        parts_in_flight: the most parts in requests at once.
        check: raises to give up the upload; called twice a second.
    """
    import obstore

    upload = MultipartUpload(store, name, parts_in_flight, check)

    async def put() -> None:
        await obstore.put_async(
            store.bucket.uploads,
            store.key_of(name),
            upload.feed(fill, part_count, store.bytes_to_send),
            use_multipart=True,
            chunk_size=part_bytes,
            max_concurrency=parts_in_flight,
        )

    try:
        run_request(put, upload.waits_for, upload.check, progress=lambda: upload.stored_parts)
    except Exception as e:
        if upload.failure is not None:
            raise upload.failure from None
        if not is_of_obstore(e):
            raise
        raise request_error(e, store.url_of(name), "uploading it in parts") from e
    finally:
        upload.end()
