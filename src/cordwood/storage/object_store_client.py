"""A client of object stores, through TensorStore's KvStore: requests, objects, conditional writes.

Only this module knows TensorStore: an ObjectStore returns bytes and generations, or raises OSError.

The endpoint comes from the environment: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for s3://, and
STORAGE_EMULATOR_HOST for gs://. TensorStore retries failed requests; retries, and requests without
an answer for long, are logged. A store that has never answered is given up after the second
failure.

A data object is written once, whole, under a name that no other save uses, and never changed. The
index is the only object that is replaced. Each object has a generation (on S3 its ETag), which
every write changes. A write that names the generation of the last read takes effect only if the
object still has it: PUT with If-Match, or If-None-Match where there was no object. Where a store
ignores the condition, two savers of one directory lose each other's trees, and nobody notices. So
`require_conditional_writes` tests a store before anything is saved there.

One file, because a request, its retries and its condition decide together what an answer means.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from cordwood.errors import (
    CordwoodError,
    LimitError,
    StorageError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.io.progress import WaitLogger
from cordwood.storage.paths import Url, new_save_id

_log = logging.getLogger("cordwood")

T = TypeVar("T")

# About two minutes; the default of TensorStore, 32 retries, takes a quarter of an hour.
_RETRIES = {"max_retries": 8, "initial_delay": "1s", "max_delay": "32s"}
_FIRST_RETRIES = {"max_retries": 1, "initial_delay": "1s", "max_delay": "1s"}
_POLL_SECONDS = 0.5
_SECONDS_BETWEEN_REPORTS = 60.0
_BUSY = re.compile(r"http_response_code='(5\d\d|429)'")  # an answer: the store exists
_ANSWERED = re.compile(r"http_response_code='|OUT_OF_RANGE")
_SKEWED = "TimeTooSkewed"
_DEFAULT_REGION = "us-east-1"  # accepted by stores without regions


class Store:
    """The key-value store of a URL, opened twice: with all retries, and with one; no request."""

    def __init__(self, url: Url) -> None:
        import tensorstore

        driver = {"gs": "gcs"}.get(url.scheme, url.scheme)
        key = url.key.rstrip("/")
        path = f"{key}/" if key or not url.bucket else ""
        spec: dict[str, Any] = {"driver": driver, "path": path}
        endpoint = ""
        if url.bucket:
            spec["bucket"] = url.bucket
        if url.scheme == "s3":
            endpoint = s3_endpoint() or ""
            # Without this TensorStore checks the condition itself by a read before the write.
            spec["use_conditional_write"] = True
            if endpoint:
                spec.update(endpoint=endpoint, aws_region=s3_region() or _DEFAULT_REGION)
        elif url.scheme == "gs":
            endpoint = gcs_endpoint() or ""
            if endpoint:
                # TensorStore has no option for it, and reads this variable once per process.
                os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", endpoint)
        self.where = f"{url.scheme}://{url.bucket} at {endpoint}"  # the bucket and the endpoint
        self.patient = tensorstore.KvStore.open(spec, context=_context()).result()
        self._quick = None
        if driver in ("gcs", "s3"):
            self._quick = tensorstore.KvStore.open(spec, context=_first_context()).result()

    @property
    def quick(self) -> Any:
        """The store with one retry; None once the store has answered."""
        return None if self.where in _answered else self._quick


_answered: set[str] = set()  # the stores that have answered in this process


class Request(Generic[T]):
    """A request in flight.

    Args:
        store: the store.
        name: the name of the object, for messages.
        start: starts the request, given a key-value store of TensorStore; returns a future.
        parse: returns what is asked for, given the answer.
        doing: what the request does, for errors.
        repeatable: True if it may be started again: it holds no data, and changes nothing.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        start: Callable[[Any], Any],
        parse: Callable[[Any], T],
        *,
        doing: str,
        repeatable: bool = False,
    ) -> None:
        self._store = store
        self._name = name
        self._parse = parse
        self._doing = doing
        quick = store.quick if repeatable else None
        self._again = None if quick is None else start
        self._future = start(store.patient if quick is None else quick)

    def result(self) -> T:
        """Wait for the answer. Raises OSError, and TruncatedError beyond the end of the object."""
        try:
            answer = self._answer()
        except ValueError as e:
            raise storage_error(e, self._name, self._doing) from e
        return self._parse(answer)

    def _answer(self) -> Any:
        """Return the answer of TensorStore. Raises ValueError, as TensorStore does."""
        try:
            result = self._wait()
        except NotImplementedError as e:  # TensorStore raises this for a 501
            raise ValueError(f"UNIMPLEMENTED: {e}") from e
        except ValueError as e:
            if self._again is None or not _BUSY.search(str(e)):
                if _ANSWERED.search(str(e)) and _SKEWED not in str(e):
                    _answered.add(self._store.where)
                raise
            _answered.add(self._store.where)
            _log.warning("%s: %s; requests are tried again for about two minutes", self._name, e)
            self._future, self._again = self._again(self._store.patient), None
            return self._answer()
        _answered.add(self._store.where)
        return result

    def _wait(self) -> Any:
        waiting = WaitLogger(f"an answer of the store about {self._name}")
        try:
            while True:
                try:
                    return self._future.result(timeout=_POLL_SECONDS)
                except TimeoutError:
                    waiting.tick()
                    _report_retries(self._name)
        finally:
            waiting.end()
            _report_retries(self._name)


class _Reported:
    """The number of retries that have been logged."""

    count = 0
    next_seconds = 0.0  # the monotonic time of the next permitted message


def _report_retries(name: str) -> None:
    """Log that TensorStore retries requests, at most once a minute."""
    import tensorstore

    collect = tensorstore.experimental_collect_matching_metrics
    metrics = [*collect("/tensorstore/kvstore/s3/retries")]
    metrics += collect("/tensorstore/kvstore/gcs/retries")
    count = sum(value["value"] for metric in metrics for value in metric["values"])
    if count <= _Reported.count:
        return
    _Reported.count = count
    if time.monotonic() >= _Reported.next_seconds:
        _Reported.next_seconds = time.monotonic() + _SECONDS_BETWEEN_REPORTS
        _log.warning(
            "%s: the store cannot be reached, or answers that it cannot do it now; requests are "
            "tried again, for up to two minutes where it has answered before",
            name,
        )


def s3_endpoint() -> str | None:
    """Return the endpoint from the environment, in boto3's order; None for Amazon's."""
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def s3_region() -> str | None:
    """Return the region from the environment."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


def gcs_endpoint() -> str | None:
    """Return the emulator from the environment; None for Google's own service."""
    host = os.environ.get("STORAGE_EMULATOR_HOST")
    if not host:
        return None
    return (host if "://" in host else f"http://{host}").rstrip("/")


@functools.cache
def _context() -> Any:
    """Return the context of the process, which holds the contents of memory:// stores."""
    return _new_context(_RETRIES)


@functools.cache
def _first_context() -> Any:
    return _new_context(_FIRST_RETRIES)


def _new_context(retries: dict[str, Any]) -> Any:
    import tensorstore

    spec: dict[str, Any] = {"gcs_request_retries": retries, "s3_request_retries": retries}
    if os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY"):
        # These have priority anyway; the default would also look for profiles, and warn of none.
        spec["aws_credentials"] = {"type": "environment"}
    return tensorstore.Context(spec)


_MAX_DELETES_IN_FLIGHT = 64
_CODE = re.compile(r"([A-Z_]+): ")
_MESSAGE_LENGTH = 300  # messages of TensorStore end with a spec of unbounded length
_HINTS = {  # advice for an error, by a part of its message
    _SKEWED: "; set the clock of this machine",
    "CURL error": (
        "; check the bucket's name, the network, and what AWS_ENDPOINT_URL or "
        "STORAGE_EMULATOR_HOST says"
    ),
}


class StoredObject(NamedTuple):
    """The bytes of an object (None: there is no object) and its generation.

    A conditional replacement must name the generation.
    """

    data: bytes | None
    generation: bytes


class ObjectStore:
    """The objects whose keys begin with a URL and a slash; names are relative to it."""

    def __init__(self, url: Url) -> None:
        self.url = url
        self._store = Store(url)

    @property
    def location(self) -> str:
        """The bucket and the endpoint, which all objects of one store share."""
        return self._store.where

    def url_of(self, name: str) -> str:
        """Return the whole URL of an object, for messages."""
        return f"{self.url}/{name}"

    def read(self, name: str, *, limit_bytes: int) -> StoredObject:
        """Return a whole object, of at most `limit_bytes`.

        Raises LimitError for a larger one, StorageError where the store refuses.
        """
        where = self.url_of(name)
        if self.has_byte_at(name, limit_bytes):
            raise LimitError(f"{where}: it is larger than {limit_bytes} bytes, the limit")
        stored = self._start(name, lambda store: store.read(name), doing="reading it").result()
        _require_generation(stored.generation, where)
        return stored

    def start_read(
        self, name: str, start: int, stop: int, *, doing: str = "reading it"
    ) -> Request[StoredObject]:
        """Begin to read bytes [start, stop) of an object; `doing` is for errors."""

        def read(store: Any) -> Any:
            return store.read(name, byte_range=slice(start, stop))

        return self._start(name, read, doing=doing)

    def has_byte_at(self, name: str, offset: int) -> bool | None:
        """Return True if an object has a byte at `offset`, None if there is no object.

        TensorStore does not report sizes, so this reads that byte.
        """
        try:
            stored = self.start_read(name, offset, offset + 1, doing="looking for it").result()
        except TruncatedError:
            return False
        return None if stored.data is None else True

    def start_write(
        self,
        name: str,
        data: bytes | None,
        *,
        if_generation: bytes | None = None,
        doing: str = "writing it",
    ) -> Request[bytes | None]:
        """Begin to write a whole object, or with None to remove it; returns the new generation.

        Args:
            name: the object.
            data: its bytes.
            if_generation: the generation that the object must still have, or the write has no
                effect (see above), and None is returned; None: no condition.
            doing: for errors.
        """
        condition = {} if if_generation is None else {"if_equal": if_generation}
        return Request(
            self._store,
            self.url_of(name),
            lambda store: store.write(name, data, **condition),
            lambda stamp: stamp.generation or None,  # empty: the condition did not hold
            doing=doing,
        )

    def write(self, name: str, data: bytes) -> None:
        """Write a whole object, or replace it without a condition. Raises OSError."""
        self.start_write(name, data).result()

    def _start(
        self, name: str, start: Callable[[Any], Any], *, doing: str
    ) -> Request[StoredObject]:
        """Begin a read, which can be repeated."""
        where = self.url_of(name)
        return Request(
            self._store,
            where,
            start,
            lambda result: _stored_object(result, where),
            doing=doing,
            repeatable=True,
        )

    def generation(self, name: str) -> bytes:
        """Return the generation of an object: a version identifier that each write changes."""
        return self.generations([name])[name]

    def generations(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the generations of several objects; the requests run at the same time."""
        requests = {name: self.start_read(name, 0, 0, doing="looking for it") for name in names}
        return {
            name: _require_generation(request.result().generation, self.url_of(name))
            for name, request in requests.items()
        }

    def names(self) -> list[str]:
        """Return the names of all objects, sorted, without those that are not UTF-8."""
        keys: list[bytes] = Request(
            self._store,
            str(self.url),
            lambda store: store.list(),
            list,
            doing="listing it",
            repeatable=True,
        ).result()
        names = [key.decode(errors="replace") for key in keys]
        return sorted(name for name, key in zip(names, keys, strict=True) if name.encode() == key)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects. A name without an object is no error."""
        remaining = iter(names)
        while batch := list(islice(remaining, _MAX_DELETES_IN_FLIGHT)):
            for request in [self.start_write(name, None, doing="deleting it") for name in batch]:
                request.result()

    def __repr__(self) -> str:
        return f"<{self.url}>"


def _stored_object(result: Any, where: str) -> StoredObject:
    """Return what a read found. Raises StorageError for a 304 to a request without a condition."""
    if result.state not in ("value", "missing"):
        raise StorageError(
            errno.EIO,
            "expected bytes or that there is no such object, found an answer that is neither (a "
            "304 or 412): look whether a proxy stands between this machine and the store",
            where,
        )
    data = result.value if result.state == "value" else None
    return StoredObject(data, result.stamp.generation)


def storage_error(error: ValueError, where: str, doing: str) -> OSError | TruncatedError:
    """Return the exception of ours for a ValueError of TensorStore, which begins with a code."""
    text = str(error)
    match = _CODE.match(text)
    code = match[1] if match else ""
    hint = next((hint for mark, hint in _HINTS.items() if mark in text), "")
    if len(text) > _MESSAGE_LENGTH:
        text = f"{text[:_MESSAGE_LENGTH]} ..."
    text += hint
    if code == "OUT_OF_RANGE":
        return TruncatedError(f"{where}: it ends before what was to be read ({text})")
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return PermissionError(errno.EACCES, f"the store refused while {doing}: {text}", where)
    if code == "NOT_FOUND":
        return FileNotFoundError(errno.ENOENT, f"not found while {doing}: {text}", where)
    return StorageError(errno.EIO, f"the store failed while {doing}: {text}", where)


def _require_generation(generation: bytes, where: str) -> bytes:
    if not generation:  # it would make the write unconditional
        raise StorageError(errno.EIO, "the store tells no generation of it", where)
    return generation


_MAX_ATTEMPTS = 200  # each is lost to another writer; more means a store that ignores conditions
_MAX_SECONDS_BETWEEN = 2.0

_tested: set[str] = set()  # locations of stores that have passed the test in this process


def write_if_unchanged(
    store: ObjectStore, name: str, data: bytes | None, generation: bytes
) -> bytes | None:
    """Write an object, or with None remove it, if it still has that generation.

    Returns the new generation; None if the object has another one. Raises OSError.
    """
    return store.start_write(name, data, if_generation=generation, doing="replacing it").result()


def replace_object(
    store: ObjectStore,
    name: str,
    update: Callable[[bytes | None], bytes | None],
    *,
    limit_bytes: int,
) -> bytes:
    """Replace an object by the result of `update`, again and again until no other writer is first.

    Where the answer to a write is lost, the object is read back: if it has the bytes that were
    written, the write has taken effect.

    Args:
        store: the store.
        name: the object.
        update: computes the new bytes from the current ones; None stands for no object. Called
            again with the current bytes whenever another writer came first. It must accept its
            own result as input: a write may have taken effect without our knowledge.
        limit_bytes: the most bytes that the object may have.

    Returns the new generation.

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
            return current.generation
        data = update(current.data)
        if data is None and current.data is None:
            return current.generation
        try:
            generation = write_if_unchanged(store, name, data, current.generation)
        except OSError:
            # TensorStore repeats requests: the error may be the answer to the repetition of a
            # write that has taken effect.
            stored = None if data is None else _read_back(store, name, limit_bytes)
            if stored is None or stored.data != data:
                raise
            return stored.generation
        if generation is not None:
            return generation
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
    memory of this process, or a local disk.
    """
    if store.url.scheme not in ("gs", "s3") or store.location in _tested:
        return
    name = f".{index_name}.cordwood-{new_save_id()}.tmp"
    try:
        problem = _find_problem(store, name)
    except StorageError as e:
        if "UNIMPLEMENTED" not in str(e) and "'501'" not in str(e):
            raise
        problem = "has none (501)"
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


def _find_problem(store: ObjectStore, name: str) -> str:
    """Return a description of how conditional writes of a store fail; "" if they work."""
    absent = store.generation(name)
    first = _write_and_confirm(store, name, b"1", absent)
    if first is None:
        return "does not write an object on the condition that there is none"
    try:
        if write_if_unchanged(store, name, b"2", absent) is not None:
            return "ignores If-None-Match"
        if _write_and_confirm(store, name, b"3", first) is None:
            return "does not replace an object on the condition that it has not changed"
        if write_if_unchanged(store, name, b"4", first) is not None:
            return "ignores If-Match"
    except PermissionError:
        pass  # nothing can be replaced there, so nothing is lost
    return ""


def _write_and_confirm(
    store: ObjectStore, name: str, data: bytes, generation: bytes
) -> bytes | None:
    """Return the new generation if the condition held, also if the answer was lost."""
    new = write_if_unchanged(store, name, data, generation)
    if new is None:
        stored = store.read(name, limit_bytes=len(data))
        new = stored.generation if stored.data == data else None
    return new
