"""Object stores, through TensorStore's KvStore: whole objects written, ranges read.

An object is written once, whole, under a name that no other save uses, and never changed. What is
changed, the index, is replaced by a conditional write: it takes effect only where nobody else
has changed it since it was read.
"""

from __future__ import annotations

import errno
import random
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cordwood.errors import LimitError, StorageError, TruncatedError
from cordwood.storage.object_store_requests import Request, open_store
from cordwood.storage.urls import Url

_ATTEMPTS = 200  # each lost to a writer that got through: more means a store that does not obey
_MOST_SECONDS_BETWEEN = 2.0
_DELETES_AT_ONCE = 64
_CODE = re.compile(r"([A-Z_]+): ")
_MESSAGE_LENGTH = 300  # TensorStore ends its messages in a spec of any length


class StoredObject(NamedTuple):
    """An object's bytes (None: there is none) and the generation that a replacement must name."""

    data: bytes | None
    generation: bytes


class ObjectStore:
    """The objects whose keys begin with a URL and a slash; names are relative to it."""

    def __init__(self, url: Url) -> None:
        self.url = url
        self._store = open_store(url)

    @property
    def location(self) -> str:
        """The bucket and the endpoint: what all names in one store share."""
        return self._store.where

    def url_of(self, name: str) -> str:
        """The whole URL of an object, for messages."""
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
        return StoredObject(data, _known(result.stamp.generation, where))

    def start_read(self, name: str, start: int, stop: int) -> Request:
        """Begin to read bytes [start, stop) of an object."""
        return self._request(name, lambda store: store.read(name, byte_range=slice(start, stop)))

    def has_byte_at(self, name: str, offset: int) -> bool | None:
        """Return True if an object has a byte at `offset`, None where there is no object.

        TensorStore tells no sizes, so this reads that byte.
        """
        where = self.url_of(name)
        try:
            result = self.start_read(name, offset, offset + 1).result()
        except ValueError as e:
            if _code(e) == "OUT_OF_RANGE":
                return False
            raise storage_error(e, where, "looking for it") from e
        return True if has_object(result, where) else None

    def start_write(self, name: str, data: bytes) -> Any:
        """Begin to write a whole new object."""
        return self._write(name, data)

    def write(self, name: str, data: bytes) -> None:
        """Write a whole object, whatever is there. Raises OSError."""
        try:
            self.start_write(name, data).result()
        except ValueError as e:
            raise storage_error(e, self.url_of(name), "writing it") from e

    def _write(self, name: str, data: bytes | None, **condition: bytes) -> Request:
        """Begin to write an object, or with None to remove it."""
        return Request(
            self._store, self.url_of(name), lambda store: store.write(name, data, **condition)
        )

    def _request(self, name: str, start: Callable[[Any], Any]) -> Request:
        """Begin a request that only reads, and so may be begun again."""
        return Request(self._store, self.url_of(name), start, repeatable=True)

    def replace(
        self, name: str, update: Callable[[bytes | None], bytes | None], *, limit_bytes: int
    ) -> bytes:
        """Replace an object by what `update` makes of its bytes; None stands for no object.

        `update` is called again whenever another writer came first, with what that one wrote. It
        must do no harm to be called on its own result: a write may have succeeded unnoticed.

        Where the answer to a write is lost, the object is read back: if it is what was written,
        it was.

        Returns the new generation.

        Raises StorageError where the store refuses, or after very many attempts; and what
        `update` raises.
        """
        where = self.url_of(name)
        written: bytes | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                most = min(_MOST_SECONDS_BETWEEN, 0.001 * 2 ** min(attempt, 16))
                time.sleep(random.uniform(0, most))  # noqa: S311  (not a secret)
            found = self.read(name, limit_bytes=limit_bytes)
            if written is not None and found.data == written:
                return found.generation
            data = update(found.data)
            if data is None and found.data is None:
                return found.generation
            try:
                generation = self.replace_if(name, data, found.generation)
            except OSError:
                # Whatever the answer is: it may be that to a repetition of what has taken effect.
                lying = None if data is None else self._read_back(name, limit_bytes)
                if lying is None or lying.data != data:
                    raise
                return lying.generation
            if generation is not None:
                return generation
            written = data
        raise StorageError(
            errno.EBUSY, f"other writers replaced it {_ATTEMPTS} times meanwhile; save again", where
        )

    def _read_back(self, name: str, limit_bytes: int) -> StoredObject | None:
        try:
            return self.read(name, limit_bytes=limit_bytes)
        except (OSError, LimitError):
            return None

    def replace_if(self, name: str, data: bytes | None, generation: bytes) -> bytes | None:
        """Write an object, or with None remove it, if it still has that generation.

        Returns the new generation; None where the object has another one. Raises OSError.
        """
        where = self.url_of(name)
        try:
            stamp = self._write(name, data, if_equal=generation).result()
        except ValueError as e:
            raise storage_error(e, where, "replacing it") from e
        new: bytes = stamp.generation  # empty: the condition did not hold
        return new or None

    def generation(self, name: str) -> bytes:
        """Return the version that an object is at."""
        return self.generations([name])[name]

    def generations(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return what `generation` does, of several objects at once."""
        requests = {name: self.start_read(name, 0, 0) for name in names}
        found = {}
        for name, request in requests.items():
            try:
                found[name] = _known(request.result().stamp.generation, self.url_of(name))
            except ValueError as e:
                raise storage_error(e, self.url_of(name), "looking for it") from e
        return found

    def names(self) -> list[str]:
        """Return the names of all objects, sorted; those that are no UTF-8 left out."""
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
        """Remove objects; those that are not there are no error."""
        waiting = list(names)
        while waiting:
            now, waiting = waiting[:_DELETES_AT_ONCE], waiting[_DELETES_AT_ONCE:]
            requests = [(name, self._write(name, None)) for name in now]
            for name, request in requests:
                try:
                    request.result()
                except ValueError as e:
                    raise storage_error(e, self.url_of(name), "deleting it") from e

    def __repr__(self) -> str:
        return f"<{self.url}>"


def has_object(result: Any, where: str) -> bool:
    """Return True for a read that brought bytes, False where there is no object.

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
    """Return what TensorStore says (a ValueError that begins with a code) in our classes."""
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
    """Return what to do about an error, "" where nothing is known."""
    if "TimeTooSkewed" in text:
        return "; set the clock of this machine"
    if "CURL error" in text:
        return (
            "; check the bucket's name, the network, and what AWS_ENDPOINT_URL or "
            "STORAGE_EMULATOR_HOST says"
        )
    return ""


def _code(error: ValueError) -> str:
    found = _CODE.match(str(error))
    return found[1] if found else ""


def _known(generation: bytes, where: str) -> bytes:
    if not generation:  # it would make the write unconditional
        raise StorageError(errno.EIO, "the store tells no generation of it", where)
    return generation
