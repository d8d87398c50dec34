"""A client of object stores, through TensorStore's KvStore: writes whole objects, reads ranges.

A data object is written once, whole, under a name that no other save uses, and never changed. The
index is the only object that is replaced: `conditional_writes` does that.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cordwood.errors import LimitError, StorageError, TruncatedError
from cordwood.storage.object_store_requests import Request, open_store
from cordwood.storage.urls import Url

_MAX_DELETES_IN_FLIGHT = 64
_CODE = re.compile(r"([A-Z_]+): ")
_MESSAGE_LENGTH = 300  # messages of TensorStore end with a spec of unbounded length


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
        self._store = open_store(url)

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
        try:
            result = self._request(name, lambda store: store.read(name)).result()
        except ValueError as e:
            raise storage_error(e, where, "reading it") from e
        data = result.value if has_object(result, where) else None
        return StoredObject(data, _require_generation(result.stamp.generation, where))

    def start_read(self, name: str, start: int, stop: int) -> Request:
        """Begin to read bytes [start, stop) of an object."""
        return self._request(name, lambda store: store.read(name, byte_range=slice(start, stop)))

    def has_byte_at(self, name: str, offset: int) -> bool | None:
        """Return True if an object has a byte at `offset`, None if there is no object.

        TensorStore does not report sizes, so this reads that byte.
        """
        where = self.url_of(name)
        try:
            result = self.start_read(name, offset, offset + 1).result()
        except ValueError as e:
            if _code(e) == "OUT_OF_RANGE":
                return False
            raise storage_error(e, where, "looking for it") from e
        return True if has_object(result, where) else None

    def start_write(
        self, name: str, data: bytes | None, *, if_generation: bytes | None = None
    ) -> Request:
        """Begin to write a whole object, or with None to remove it.

        Args:
            name: the object.
            data: its bytes.
            if_generation: the generation that the object must still have, or the write has no
                effect (see `conditional_writes`); None: no condition.
        """
        condition = {} if if_generation is None else {"if_equal": if_generation}
        return Request(
            self._store, self.url_of(name), lambda store: store.write(name, data, **condition)
        )

    def write(self, name: str, data: bytes) -> None:
        """Write a whole object, or replace it without a condition. Raises OSError."""
        try:
            self.start_write(name, data).result()
        except ValueError as e:
            raise storage_error(e, self.url_of(name), "writing it") from e

    def _request(self, name: str, start: Callable[[Any], Any]) -> Request:
        """Begin a request that only reads, so it can be repeated."""
        return Request(self._store, self.url_of(name), start, repeatable=True)

    def generation(self, name: str) -> bytes:
        """Return the generation of an object: a version identifier that each write changes."""
        return self.generations([name])[name]

    def generations(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the generations of several objects; the requests run at the same time."""
        requests = {name: self.start_read(name, 0, 0) for name in names}
        generations = {}
        for name, request in requests.items():
            try:
                generations[name] = _require_generation(
                    request.result().stamp.generation, self.url_of(name)
                )
            except ValueError as e:
                raise storage_error(e, self.url_of(name), "looking for it") from e
        return generations

    def names(self) -> list[str]:
        """Return the names of all objects, sorted, without those that are not UTF-8."""
        try:
            keys = self._request("", lambda store: store.list()).result()
        except ValueError as e:
            raise storage_error(e, str(self.url), "listing it") from e
        names = []
        for key in keys:
            try:
                names.append(key.decode())
            except UnicodeDecodeError:
                continue
        return sorted(names)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects. A name without an object is no error."""
        remaining = list(names)
        while remaining:
            batch = remaining[:_MAX_DELETES_IN_FLIGHT]
            remaining = remaining[_MAX_DELETES_IN_FLIGHT:]
            requests = [(name, self.start_write(name, None)) for name in batch]
            for name, request in requests:
                try:
                    request.result()
                except ValueError as e:
                    raise storage_error(e, self.url_of(name), "deleting it") from e

    def __repr__(self) -> str:
        return f"<{self.url}>"


def has_object(result: Any, where: str) -> bool:
    """Return True if a read returned bytes, False if there is no object.

    Raises StorageError for any other answer, such as 304 to a request without a condition.
    """
    if result.state not in ("value", "missing"):
        raise StorageError(
            errno.EIO,
            "expected bytes or that there is no such object, found an answer that is neither (a "
            "304 or 412): look whether a proxy stands between this machine and the store",
            where,
        )
    return bool(result.state == "value")


def storage_error(error: ValueError, where: str, doing: str) -> OSError | TruncatedError:
    """Return the exception of ours for a ValueError of TensorStore, which begins with a code."""
    code = _code(error)
    text = str(error)
    hint = _hint(text)
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


def _hint(text: str) -> str:
    """Return advice for an error; "" if there is none."""
    if "TimeTooSkewed" in text:
        return "; set the clock of this machine"
    if "CURL error" in text:
        return (
            "; check the bucket's name, the network, and what AWS_ENDPOINT_URL or "
            "STORAGE_EMULATOR_HOST says"
        )
    return ""


def _code(error: ValueError) -> str:
    match = _CODE.match(str(error))
    return match[1] if match else ""


def _require_generation(generation: bytes, where: str) -> bytes:
    if not generation:  # it would make the write unconditional
        raise StorageError(errno.EIO, "the store tells no generation of it", where)
    return generation
