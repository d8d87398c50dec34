"""Object stores, through TensorStore's KvStore: whole objects written, ranges read.

An object is written once, whole, under a name that no other save uses, and never changed. What is
changed, the index, is replaced by a conditional write: it takes effect only where nobody else
has changed it since it was read.
"""

from __future__ import annotations

import errno
import functools
import random
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cordwood.engine.urls import Url
from cordwood.errors import LimitError, StorageError, TruncatedError

__all__ = ["Found", "ObjectStore"]

_ATTEMPTS = 200  # each lost to a writer that got through: more means a store that does not obey
_MOST_SECONDS_BETWEEN = 2.0
_DELETES_AT_ONCE = 64
_CODE = re.compile(r"([A-Z_]+): ")
# About two minutes; TensorStore's own 32 retries are a quarter of an hour of silence.
_RETRIES = {"max_retries": 8, "initial_delay": "1s", "max_delay": "32s"}
_MESSAGE_LENGTH = 300  # TensorStore ends its messages in a spec of any length


class Found(NamedTuple):
    """An object's bytes (None: there is none) and the generation that a replacement must name."""

    data: bytes | None
    generation: bytes


class ObjectStore:
    """The objects whose keys begin with a URL and a slash; names are relative to it."""

    def __init__(self, url: Url) -> None:
        self.url = url
        self._store = _open(url)

    def name_of(self, name: str) -> str:
        """The whole URL of an object, for messages."""
        return f"{self.url}/{name}"

    def read(self, name: str, *, limit_bytes: int) -> Found:
        """A whole object, of at most `limit_bytes`.

        Raises LimitError for a larger one, StorageError where the store refuses.
        """
        where = self.name_of(name)
        if self.reaches(name, limit_bytes):
            raise LimitError(f"{where}: it is larger than {limit_bytes} bytes, the limit")
        try:
            found = self._store.read(name).result()
        except ValueError as e:
            raise storage_error(e, where, "reading it") from e
        data = None if found.state == "missing" else found.value
        return Found(data, _known(found.stamp.generation, where))

    def start_read(self, name: str, start: int, stop: int) -> Any:
        """A future of a read of bytes [start, stop)."""
        return self._store.read(name, byte_range=slice(start, stop))

    def reaches(self, name: str, offset: int) -> bool | None:
        """Whether an object has a byte at `offset`; None where there is no object.

        TensorStore tells no sizes, so this reads that byte.
        """
        try:
            state = self.start_read(name, offset, offset + 1).result().state
        except ValueError as e:
            if _code(e) == "OUT_OF_RANGE":
                return False
            raise storage_error(e, self.name_of(name), "looking for it") from e
        return None if state == "missing" else True

    def start_write(self, name: str, data: bytes) -> Any:
        """A future of the writing of a whole new object."""
        return self._store.write(name, data)

    def replace(
        self, name: str, update: Callable[[bytes | None], bytes | None], *, limit_bytes: int
    ) -> bytes:
        """Replace an object by what `update` makes of its bytes; None stands for no object.

        `update` is called again whenever another writer came first, with what that one wrote. It
        must do no harm to be called on its own result: a write may have succeeded unnoticed.

        Returns the new generation.

        Raises StorageError where the store refuses, or after very many attempts; and what
        `update` raises.
        """
        where = self.name_of(name)
        for attempt in range(_ATTEMPTS):
            if attempt:
                most = min(_MOST_SECONDS_BETWEEN, 0.001 * 2 ** min(attempt, 16))
                time.sleep(random.uniform(0, most))  # noqa: S311  (not a secret)
            found = self.read(name, limit_bytes=limit_bytes)
            data = update(found.data)
            if data is None and found.data is None:
                return found.generation
            try:
                stamp = self._store.write(name, data, if_equal=found.generation).result()
            except ValueError as e:
                raise storage_error(e, where, "replacing it") from e
            if stamp.generation:  # empty: the condition did not hold
                generation: bytes = stamp.generation
                return generation
        raise StorageError(
            errno.EBUSY, f"other writers replaced it {_ATTEMPTS} times meanwhile; save again", where
        )

    def generation(self, name: str) -> bytes:
        """At which of its versions an object is."""
        return self.generations([name])[name]

    def generations(self, names: Iterable[str]) -> dict[str, bytes]:
        """As `generation`, of several at once."""
        futures = {name: self._store.read(name, byte_range=slice(0, 0)) for name in names}
        found = {}
        for name, future in futures.items():
            try:
                found[name] = _known(future.result().stamp.generation, self.name_of(name))
            except ValueError as e:
                raise storage_error(e, self.name_of(name), "looking for it") from e
        return found

    def names(self) -> list[str]:
        """The names of all objects, sorted; those that are no UTF-8 left out."""
        try:
            keys = self._store.list().result()
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
            futures = [(name, self._store.write(name, None)) for name in now]
            for name, future in futures:
                try:
                    future.result()
                except ValueError as e:
                    raise storage_error(e, self.name_of(name), "deleting it") from e

    def __repr__(self) -> str:
        return f"<{self.url}>"


def storage_error(error: ValueError, where: str, doing: str) -> OSError | TruncatedError:
    """What TensorStore says (always a ValueError that begins with a code), in our classes."""
    code = _code(error)
    text = str(error)
    if len(text) > _MESSAGE_LENGTH:
        text = f"{text[:_MESSAGE_LENGTH]} ..."
    if code == "OUT_OF_RANGE":
        return TruncatedError(f"{where}: it ends before what was to be read ({text})")
    if code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return PermissionError(errno.EACCES, f"the store refused while {doing}: {text}", where)
    if code == "NOT_FOUND":
        return FileNotFoundError(errno.ENOENT, f"not found while {doing}: {text}", where)
    return StorageError(errno.EIO, f"the store failed while {doing}: {text}", where)


def _code(error: ValueError) -> str:
    found = _CODE.match(str(error))
    return found[1] if found else ""


def _known(generation: bytes, where: str) -> bytes:
    if not generation:  # it would make the write unconditional
        raise StorageError(errno.EIO, "the store tells no generation of it", where)
    return generation


@functools.cache
def _context() -> Any:
    """One for the process: what memory:// holds belongs to it."""
    import tensorstore

    return tensorstore.Context(
        {"gcs_request_retries": _RETRIES, "s3_request_retries": _RETRIES},
    )


def _open(url: Url) -> Any:
    import tensorstore

    spec: dict[str, Any] = {"path": f"{url.key.rstrip('/')}/"}
    if url.scheme in ("gs", "s3"):
        spec.update(driver={"gs": "gcs", "s3": "s3"}[url.scheme], bucket=url.bucket)
    else:
        spec.update(driver=url.scheme)
    try:
        return tensorstore.KvStore.open(spec, context=_context()).result()
    except ValueError as e:
        raise storage_error(e, str(url), "opening it") from e
