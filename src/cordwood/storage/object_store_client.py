"""A client of object stores, through obstore: requests, uploads, conditional writes.

An ObjectStore returns bytes and tags, or raises OSError. All requests run in one event loop, in a
thread of its own, so any of them can be given up. A request that fails for a temporary reason is
repeated, and each repetition is a line of the log. A store that has never answered this process is
given up after the second failure.

A data object is written once, whole, under a name that no other save uses, and never changed. The
index is the only object that is replaced. Each object has a tag (on S3 its ETag, on GCS its
generation), which every write changes. A write that names the tag of the last read takes effect
only if the object still has it. Where a store ignores the condition, two savers of one directory
lose each other's trees, and nobody notices. So `require_conditional_writes` tests a store before
anything is saved there.

One file, because a request, its repetitions and its condition decide together what an answer means.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from cordwood.errors import (
    CordwoodError,
    LimitError,
    StorageError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.io.progress import WaitLogger
from cordwood.io.threads import check_stop
from cordwood.storage.object_store_options import open_store
from cordwood.storage.paths import Url, new_save_id

_log = logging.getLogger("cordwood")

T = TypeVar("T")

_POLL_SECONDS = 0.5
_RETRIES = 8  # after answers that say "later": about two minutes
_RETRIES_AFTER_SILENCE = 2  # after a timeout
_FIRST_RETRIES = 1  # of a store that has never answered
_MAX_DELAY_SECONDS = 32.0
_DELETED_AT_ONCE = 1000
_ABORT_SECONDS = 10.0
_MESSAGE_LENGTH = 300


# The event loop in which all requests of the process run


class _Loop:
    """An event loop in a daemon thread; a child process after a fork has its own."""

    process = 0
    loop: asyncio.AbstractEventLoop | None = None
    lock = threading.Lock()

    @classmethod
    def get(cls) -> asyncio.AbstractEventLoop:
        with cls.lock:
            if cls.loop is None or cls.process != os.getpid():
                cls.loop, cls.process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(
                    target=cls.loop.run_forever, name="cordwood-requests", daemon=True
                ).start()
            return cls.loop


def run_request(
    call: Coroutine[Any, Any, T],
    doing: str,
    check: Callable[[], None],
    *,
    progress: Callable[[], int] = lambda: 0,
) -> T:
    """Run a coroutine in the event loop, and wait for it; a long wait is logged.

    Args:
        call: the coroutine.
        doing: what is waited for, for the log.
        check: called twice a second; if it raises, the coroutine is cancelled.
        progress: a number that changes with each step of the coroutine, after which the wait
            begins anew.
    """
    future = asyncio.run_coroutine_threadsafe(call, _Loop.get())
    waiting, at = WaitLogger(doing), progress()
    try:
        while True:
            try:
                return future.result(timeout=_POLL_SECONDS)
            except TimeoutError:
                if future.done():
                    raise
                check()
                if progress() != at:
                    waiting.end()
                    waiting, at = WaitLogger(doing), progress()
                waiting.tick()
    except BaseException:
        future.cancel()
        raise
    finally:
        waiting.end()


# Failures


class _Failure(NamedTuple):
    """What went wrong with a request."""

    text: str
    status: int = 0  # of the answer; 0: there was none
    timed_out: bool = False

    @property
    def is_temporary(self) -> bool:
        """True if the same request may succeed later."""
        if self.status:
            return self.status in (408, 425, 429) or (self.status >= 500 and self.status != 501)
        return self.timed_out or any(mark in self.text for mark in _CONNECTION_MARKS)


_CONNECTION_MARKS = ("HTTP error", "error sending request", "connection", "error decoding response")
_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_HINTS = {  # advice for an error, by a part of its text
    "RequestTimeTooSkewed": "set the clock of this machine",
    "NoSuchBucket": "create the bucket, or mend its name or the endpoint",
    "InvalidAccessKeyId": "the endpoint does not know this AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "look at AWS_SECRET_ACCESS_KEY",
    "169.254.169.254": (
        "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        "AWS_PROFILE (with boto3 installed)"
    ),
    "metadata.google": (
        "there are no credentials: set GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth "
        "application-default login"
    ),
    "301 Moved": "the bucket is in another region: set AWS_REGION",
    "dns error": "look at the name of the host, and the network",
    "Connection refused": "nothing listens at that address: look at the endpoint",
    "certificate": "the certificate of the store is not trusted: client_options root_certificate",
    "URL scheme is not allowed": "use an endpoint that begins with https://",
}
_NO_ANSWER_HINT = (
    "look at the bucket's name, the network, and what AWS_ENDPOINT_URL or STORAGE_EMULATOR_HOST "
    "says"
)


def _failure_of(error: BaseException) -> _Failure:
    text = str(error)
    status = _STATUS.search(text)
    timed_out = isinstance(error, TimeoutError) or "TimedOut" in text or "Timeout" in text
    return _Failure(text, int(status[1]) if status else 0, timed_out)


def storage_error(error: Exception, where: str, doing: str) -> OSError:
    """Return the exception of ours for one of obstore."""
    text = str(error)
    failure = _failure_of(error)
    hint = next((hint for mark, hint in _HINTS.items() if mark in text), "")
    if not hint and not failure.status:
        hint = _NO_ANSWER_HINT
    said = text.partition("\n\nDebug source")[0].replace("\n", " ")
    cause = re.search(r'message: "([^"]+)"|error: "([^"]+)"', text)
    if failure.timed_out:
        said += " (timed out)"
    elif not failure.status and cause:
        said += f" ({cause[1] or cause[2]})"
    if len(said) > _MESSAGE_LENGTH:
        said = f"{said[:_MESSAGE_LENGTH]} ..."
    said += f"; {hint}" if hint else ""
    kind = type(error).__name__
    if failure.status in (401, 403) or kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return PermissionError(errno.EACCES, f"the store refused while {doing}: {said}", where)
    if "169.254.169.254" in text or "metadata.google" in text:
        return PermissionError(
            errno.EACCES, f"the store cannot be asked while {doing}: {said}", where
        )
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, f"not found while {doing}: {said}", where)
    return StorageError(errno.EIO, f"the store failed while {doing}: {said}", where)


_answered: set[str] = set()  # the stores that have answered in this process


class Tag(NamedTuple):
    """The version of an object, which each write changes."""

    e_tag: str | None
    version: str | None = None


class StoredObject(NamedTuple):
    """The bytes of an object, and its tag; both None if there is no object."""

    data: bytes | None
    tag: Tag | None


class ObjectEntry(NamedTuple):
    """An object in a listing."""

    name: str
    size_bytes: int
    tag: Tag


class ObjectPart(NamedTuple):
    """A range of an object, and the size of the whole object."""

    data: memoryview
    object_bytes: int


class ObjectStore:
    """The objects whose keys begin with a URL and a slash; names are relative to it."""

    def __init__(self, url: Url) -> None:
        self.url = url
        self._open = open_store(url)

    @property
    def location(self) -> str:
        """The bucket and the endpoint, which all objects of one store share."""
        return self._open.where

    @property
    def stall_seconds(self) -> float:
        """A request that takes longer has failed."""
        return self._open.stall_seconds

    def url_of(self, name: str) -> str:
        """Return the whole URL of an object, for messages."""
        return str(self.url.child(name))

    def _key(self, name: str) -> str:
        """Return the key of an object; a name may begin with "../"."""
        return self.url.child(name).key

    def _request(
        self, name: str, call: Callable[[Any], Awaitable[T]], *, doing: str, stoppable: bool = False
    ) -> T:
        """Send a request, given an obstore store; repeat it after temporary failures.

        Raises what obstore raises, unless the failure is temporary; then after the last attempt.
        """
        url = self.url_of(name)
        check = check_stop if stoppable else _go_on
        attempt = 0
        while True:

            async def send() -> T:
                return await asyncio.wait_for(
                    call(self._open.requests), self._open.stall_seconds + _POLL_SECONDS
                )

            try:
                result = run_request(send(), f"an answer of the store about {url}", check)
            except Exception as e:
                failure = _failure_of(e)
                known = self.location in _answered
                if failure.status:
                    _answered.add(self.location)
                limit = _RETRIES_AFTER_SILENCE if failure.timed_out else _RETRIES
                if not known and not failure.status:
                    limit = _FIRST_RETRIES
                if not failure.is_temporary or attempt >= limit:
                    raise
                attempt += 1
                seconds = _delay_seconds(attempt)
                _log.warning(
                    "%s: failed while %s: %s; attempt %d of %d follows in %.1f s",
                    url,
                    doing,
                    storage_error(e, url, doing).strerror,
                    attempt + 1,
                    limit + 1,
                    seconds,
                )
                _sleep(seconds, check)
            else:
                _answered.add(self.location)
                return result

    def read(self, name: str, *, limit_bytes: int) -> StoredObject:
        """Return a whole object, of at most `limit_bytes`.

        Raises LimitError for a larger one, StorageError where the store refuses.
        """
        import obstore

        async def get(store: Any) -> StoredObject:
            try:
                result = await obstore.get_async(store, self._key(name))
            except FileNotFoundError as e:
                if "NoSuchBucket" in str(e):
                    raise
                return StoredObject(None, None)
            if result.meta["size"] > limit_bytes:
                raise LimitError(
                    f"{self.url_of(name)}: it is larger than {limit_bytes} bytes, the limit"
                )
            return StoredObject(bytes(await result.buffer_async()), _tag_of(result.meta))

        stored = self._ask(name, get, doing="reading it", stoppable=True)
        if stored.tag is not None and stored.tag == Tag(None):
            raise StorageError(errno.EIO, "the store tells no tag of it", self.url_of(name))
        return stored

    def read_range(self, name: str, start: int, stop: int) -> ObjectPart | None:
        """Return bytes [start, stop) of an object, at least one; None if there is no object.

        Raises TruncatedError if it ends before.
        """
        import obstore

        async def get(store: Any) -> ObjectPart | None:
            try:
                options: Any = {"range": (start, stop)}
                result = await obstore.get_async(store, self._key(name), options=options)
            except FileNotFoundError as e:
                if "NoSuchBucket" in str(e):
                    raise
                return None
            return ObjectPart(memoryview(await result.buffer_async()), result.meta["size"])

        try:
            doing = f"reading it at byte {start}"
            part = self._ask(name, get, doing=doing, stoppable=True)
        except StorageError as e:
            cause = str(e.__cause__)
            if "StartTooLarge" in cause or "status: 416" in cause:
                raise TruncatedError(
                    f"{self.url_of(name)}: expected {stop - start} bytes at offset {start}, found "
                    "its end"
                ) from e
            raise
        if part is not None and len(part.data) != stop - start:
            raise TruncatedError(
                f"{self.url_of(name)}: expected {stop - start} bytes at offset {start}, found "
                f"{len(part.data)}"
            )
        return part

    def _ask(
        self, name: str, call: Callable[[Any], Awaitable[T]], *, doing: str, stoppable: bool = False
    ) -> T:
        """Send a request; raises OSError with the URL of the object."""
        try:
            return self._request(name, call, doing=doing, stoppable=stoppable)
        except (CordwoodError, asyncio.CancelledError):
            raise
        except Exception as e:
            if _is_ours(e):
                raise
            raise storage_error(e, self.url_of(name), doing) from e

    def _head(self, name: str) -> Any | None:
        """Return the size and the tag of an object; None if there is none."""
        import obstore

        async def head(store: Any) -> Any | None:
            try:
                return await obstore.head_async(store, self._key(name))
            except FileNotFoundError as e:
                if "NoSuchBucket" in str(e):
                    raise
                return None

        return self._ask(name, head, doing="looking for it", stoppable=True)

    def size_of(self, name: str) -> int | None:
        """Return the size of an object in bytes; None if there is none."""
        meta = self._head(name)
        return None if meta is None else int(meta["size"])

    def tag_of(self, name: str) -> Tag | None:
        """Return the tag of an object; None if there is none."""
        meta = self._head(name)
        return None if meta is None else _tag_of(meta)

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a whole object by one request, without a condition. Raises OSError."""
        import obstore

        async def put(store: Any) -> None:
            await obstore.put_async(store, self._key(name), self._own(data), use_multipart=False)

        self._ask(name, put, doing="writing it")

    def write_if(self, name: str, data: bytes, tag: Tag | None) -> Tag | None:
        """Write a whole object if it still has that tag; None: if there is no object.

        Returns the new tag; None if the condition did not hold.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        async def put(store: Any) -> Tag | None:
            mode: Any = "create" if tag is None else _condition(tag, self.location)
            try:
                result = await obstore.put_async(
                    store, self._key(name), data, mode=mode, use_multipart=False
                )
            except (AlreadyExistsError, PreconditionError, FileNotFoundError) as e:
                if "NoSuchBucket" in str(e):
                    raise
                return None
            return _tag_of(result)

        return self._ask(name, put, doing="replacing it")

    def _own(self, data: bytes | memoryview) -> Any:
        """Return bytes to send: a copy where the store is memory, which keeps what it is given."""
        from obstore.store import MemoryStore

        return bytes(data) if isinstance(self._open.requests, MemoryStore) else data

    def upload(
        self,
        name: str,
        parts: Callable[[], AsyncIterator[memoryview]],
        *,
        part_bytes: int,
        parts_in_flight: int,
        check: Callable[[], None],
    ) -> None:
        """Upload a large object in parts; it exists once all of them have arrived.

        A failed upload is aborted. obstore repeats each part a few times; then this raises.

        Args:
            name: the object.
            parts: returns an iterator over its bytes, in buffers of `part_bytes` but for the last,
                which obstore keeps until they have arrived.
            part_bytes: the size of a part.
            parts_in_flight: the most parts in requests at once.
            check: raises to give up the upload; called twice a second.
        """
        import obstore

        stop: list[tuple[BaseException, float]] = []  # why, and since when
        parts_begun = 0

        async def feed() -> AsyncIterator[memoryview]:
            nonlocal parts_begun
            async for part in parts():
                if stop:
                    raise stop[0][0]
                parts_begun += 1
                yield self._own(part)

        async def put() -> None:
            await obstore.put_async(
                self._open.uploads,
                self._key(name),
                feed(),
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=parts_in_flight,
            )

        def look() -> None:
            """Let the upload end by an error, so that obstore aborts it; but not for long."""
            if stop and time.monotonic() - stop[0][1] > _ABORT_SECONDS:
                raise stop[0][0]
            try:
                check()
            except BaseException as e:  # noqa: BLE001  (raised by the upload)
                stop.append((e, time.monotonic()))

        url = self.url_of(name)
        doing = f"parts of {url} to be stored"
        try:
            run_request(put(), doing, look, progress=lambda: parts_begun)
        except Exception as e:
            if _is_ours(e):
                raise
            raise storage_error(e, url, "uploading it in parts") from e
        finally:
            if stop:
                raise stop[0][0]

    def entries(self, *, start_after: str = "") -> list[ObjectEntry]:
        """Return all objects, sorted by name; only names after `start_after`.

        Costs a request for each 1,000 objects.
        """
        import obstore

        prefix = self._open.prefix
        offset = f"{prefix}{start_after}" if start_after else None

        async def collect(store: Any) -> list[Any]:
            stream = obstore.list(store, prefix.rstrip("/") or None, offset=offset)
            return list(await stream.collect_async())

        found = self._ask("", collect, doing="listing it", stoppable=True)
        entries = [
            ObjectEntry(each["path"].removeprefix(prefix), each["size"], _tag_of(each))
            for each in found
            if each["path"].startswith(prefix)
        ]
        return sorted(entries)

    def names(self) -> list[str]:
        """Return the names of all objects, sorted."""
        return [each.name for each in self.entries()]

    def children(self) -> list[str]:
        """Return the names up to their first slash, sorted; this lists no object behind one."""
        import obstore

        prefix = self._open.prefix

        async def collect(store: Any) -> list[str]:
            found = await obstore.list_with_delimiter_async(store, prefix.rstrip("/") or None)
            return [*found["common_prefixes"], *[each["path"] for each in found["objects"]]]

        found = self._ask("", collect, doing="listing it", stoppable=True)
        names = {key.removeprefix(prefix).rstrip("/") for key in found if key.startswith(prefix)}
        return sorted(names - {""})

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects. A name without an object is no error. Raises OSError."""
        import obstore

        remaining = iter(names)
        while batch := list(islice(remaining, _DELETED_AT_ONCE)):
            keys = [self._key(name) for name in batch]

            async def delete(store: Any, keys: list[str] = keys) -> None:
                try:
                    await obstore.delete_async(store, keys)
                except FileNotFoundError:  # some stores stop there
                    for key in keys:
                        with suppress(FileNotFoundError):
                            await obstore.delete_async(store, key)

            self._ask(batch[0], delete, doing=f"deleting {len(batch)} objects")

    def __repr__(self) -> str:
        return f"<{self.url}>"


def _go_on() -> None:
    """Do nothing: a request that changes the store is waited for."""


def _is_ours(error: Exception) -> bool:
    """Return True for an error that did not come from obstore."""
    if isinstance(error, FileNotFoundError | TimeoutError):
        return False
    return not type(error).__module__.startswith("obstore") and not isinstance(error, ValueError)


def _delay_seconds(attempt: int) -> float:
    most: float = min(_MAX_DELAY_SECONDS, 2.0 ** (attempt - 1))
    return random.uniform(most / 2, most)  # noqa: S311  (not a secret)


def _sleep(seconds: float, check: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0:
        time.sleep(min(_POLL_SECONDS, remaining))
        check()


def _tag_of(meta: Any) -> Tag:
    return Tag(meta.get("e_tag"), meta.get("version"))


# Conditional writes

_MAX_ATTEMPTS = 200  # each is lost to another writer; more means a store that ignores conditions
_MAX_SECONDS_BETWEEN = 2.0

_tested: set[str] = set()  # locations of stores that have passed the test in this process
_unquoted: set[str] = set()  # locations of stores that take tags without quotes only


def _condition(tag: Tag, location: str) -> dict[str, str]:
    """Return the condition that an object has a tag, as obstore takes it."""
    e_tag = tag.e_tag
    if e_tag is not None and location in _unquoted:
        e_tag = e_tag.strip('"')
    fields = {"e_tag": e_tag, "version": tag.version}
    return {key: value for key, value in fields.items() if value is not None}


def replace_object(
    store: ObjectStore,
    name: str,
    update: Callable[[bytes | None], bytes | None],
    *,
    limit_bytes: int,
) -> Tag | None:
    """Replace an object by the result of `update`, again and again until no other writer is first.

    Where the answer to a write is lost, the object is read back: if it has the bytes that were
    written, the write has taken effect.

    Args:
        store: the store.
        name: the object.
        update: computes the new bytes from the current ones; None stands for no object, and an
            object without bytes for None: stores have no conditional deletion. Called again with
            the current bytes whenever another writer came first. It must accept its own result as
            input: a write may have taken effect without our knowledge.
        limit_bytes: the most bytes that the object may have.

    Returns the new tag.

    Raises StorageError where the store refuses, or after very many attempts; and what `update`
    raises.
    """
    written: bytes | None = None
    for attempt in range(_MAX_ATTEMPTS):
        if attempt:
            seconds = min(_MAX_SECONDS_BETWEEN, 0.001 * 2 ** min(attempt, 16))
            time.sleep(random.uniform(0, seconds))  # noqa: S311  (not a secret)
        current = store.read(name, limit_bytes=limit_bytes)
        if written is not None and current.data == written:
            return current.tag
        new = update(current.data or None)
        if new is None and not current.data:
            return current.tag
        data = new or b""
        try:
            tag = store.write_if(name, data, current.tag)
        except OSError:
            # The request was perhaps repeated: the error may be the answer to the repetition of a
            # write that has taken effect.
            stored = _read_back(store, name, limit_bytes)
            if stored is None or stored.data != data:
                raise
            return stored.tag
        if tag is not None:
            return tag
        written = data
    raise StorageError(
        errno.EBUSY,
        f"other writers replaced it {_MAX_ATTEMPTS} times meanwhile; save again",
        store.url_of(name),
    )


def _read_back(store: ObjectStore, name: str, limit_bytes: int) -> StoredObject | None:
    try:
        return store.read(name, limit_bytes=limit_bytes)
    except (OSError, LimitError):
        return None


def require_conditional_writes(store: ObjectStore, index_name: str) -> None:
    """Raise UnsupportedFormatError for a store that ignores, or lacks, conditional writes.

    This needs four small writes, once for each store and process; none where the store is the
    memory of this process.
    """
    if store.url.scheme == "memory" or store.location in _tested:
        return
    if store.url.scheme in ("http", "https"):
        raise UnsupportedFormatError(
            f"{store.url}: {store.url.scheme}:// can only be read; expected a path, or a URL of "
            "s3://, gs:// or az:// to save to"
        )
    name = f".{index_name}.cordwood-{new_save_id()}.tmp"
    try:
        problem = find_problem_of_conditions(store, name)
    finally:
        with suppress(OSError, CordwoodError):  # gc removes it
            store.delete([name])
    if problem:
        raise UnsupportedFormatError(
            f"{store.url}: this store ({store.location}) {problem}: saves need conditional writes "
            "(PUT with If-Match and If-None-Match), or savers of one path would lose each other's "
            "trees in silence. Save to a store that has them; or save to a local directory and "
            "copy that to this store as it is: loads work from any"
        )
    _tested.add(store.location)


def find_problem_of_conditions(store: ObjectStore, name: str) -> str:
    """Return a description of how conditional writes of a store fail; "" if they work.

    It writes an object of that name, four times; the caller removes it. Some stores take the tag
    of a condition without its quotes only, against the standard: those are remembered.
    """
    try:
        first = _write_and_confirm(store, name, b"1", None)
        if first is None:
            return "does not write an object on the condition that there is none"
        try:
            if store.write_if(name, b"2", None) is not None:
                return "ignores If-None-Match"
            if _write_and_confirm(store, name, b"3", first) is None:
                _unquoted.add(store.location)
                if _write_and_confirm(store, name, b"3", first) is None:
                    return "does not replace an object on the condition that it has not changed"
            if store.write_if(name, b"4", first) is not None:
                return "ignores If-Match"
        except PermissionError:
            pass  # nothing can be replaced there, so nothing is lost
    except StorageError as e:
        if _failure_of(e.__cause__ or e).status != 501 and "NotSupported" not in repr(e.__cause__):
            raise
        return "has none (501)"
    return ""


def _write_and_confirm(store: ObjectStore, name: str, data: bytes, tag: Tag | None) -> Tag | None:
    """Return the new tag if the condition held, also if the answer was lost."""
    new = store.write_if(name, data, tag)
    if new is None:
        stored = store.read(name, limit_bytes=len(data))
        new = stored.tag if stored.data == data else None
    return new
