"""A client of object stores, through obstore: reads, writes and deletions of objects.

An ObjectStore returns bytes and tags, or raises OSError. All requests run in one event loop, in a
thread of its own, so any of them can be given up. `list_objects` lists what there is, and
`multipart_upload` uploads a large object.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from cordwood.errors import CordwoodError, LimitError, StorageError, TruncatedError
from cordwood.storage.locations import Url
from cordwood.storage.object_stores.bucket_cache import BUCKETS
from cordwood.storage.object_stores.object_store_errors import (
    NO_STORE,
    is_missing_bucket,
    is_of_obstore,
    is_web_page,
    request_error,
)
from cordwood.storage.object_stores.request_retries import RequestRetries
from cordwood.storage.object_stores.stored_objects import (
    ObjectEntry,
    ObjectPart,
    StoredObject,
    Tag,
    entry_of,
    tag_of,
)

T = TypeVar("T")

_CHUNK_BYTES = 2 << 20  # of an answer
_DELETED_AT_ONCE = 1000

# Of a range that begins at the end of an object; the last is what Azurite says of an empty one.
_BEHIND_THE_END = ("StartTooLarge", "status: 416", "bytes 0--1/0")


class ObjectStore:
    """The objects whose keys begin with a URL and a slash; names are relative to it.

    Attributes:
        url: the URL.
        bucket: its bucket, as it was open when this was made.
        experience: what this process has learned of the store.
    """

    def __init__(self, url: Url) -> None:
        self.url = url.plain  # errors name objects in one spelling
        self.bucket = BUCKETS.open(url)
        self.experience = BUCKETS.experience_with(self.bucket)
        self._retries = RequestRetries(self.experience)

    @property
    def prefix(self) -> str:
        """The beginning of all keys; "" or with a slash at its end."""
        path = self.url.key.rstrip("/")
        return f"{path}/" if path else ""

    def url_of(self, name: str) -> str:
        """Return the whole URL of an object, for messages."""
        return str(self.url.child(name))

    def key_of(self, name: str) -> str:
        """Return the key of an object; a name may begin with "../"."""
        return self.url.child(name).key

    def read(self, name: str, *, limit_bytes: int) -> StoredObject:
        """Return a whole object, of at most `limit_bytes`.

        Raises LimitError for a larger one, StorageError where the store refuses.
        """
        import obstore

        async def get(store: Any) -> StoredObject:
            result = await _or_none(obstore.get_async(store, self.key_of(name)))
            if result is None:
                return StoredObject(None, None)
            if result.meta["size"] > limit_bytes:
                raise LimitError(
                    f"{self.url_of(name)}: it is larger than {limit_bytes} bytes, the limit"
                )
            data = b"".join(await _first_chunks(result, limit_bytes + 1))
            if len(data) > limit_bytes:
                raise LimitError(
                    f"{self.url_of(name)}: it is larger than {limit_bytes} bytes, the limit"
                )
            return StoredObject(data, tag_of(result.meta))

        stored = self.ask(name, get, doing="reading it", stoppable=True)
        is_store = not self.url.is_web  # whose objects are replaced
        if is_store and stored.tag == Tag(None):
            advice = f"; {NO_STORE}" if is_web_page(stored.data) else ""
            raise StorageError(
                errno.EIO, f"the store tells no tag of it{advice}", self.url_of(name)
            )
        return stored

    def read_range(self, name: str, start: int, stop: int) -> ObjectPart | None:
        """Return bytes [start, stop) of an object, at least one; None if there is no object.

        Raises TruncatedError if it ends before.
        """
        import obstore

        async def get(store: Any) -> ObjectPart | None:
            options: Any = {"range": (start, stop)}
            request = obstore.get_async(store, self.key_of(name), options=options)
            result = await _or_none(request)
            if result is None:
                return None
            chunks = await _first_chunks(result, stop - start)
            return ObjectPart(chunks, result.meta["size"])

        try:
            doing = f"reading it at byte {start}"
            part = self.ask(name, get, doing=doing, stoppable=True)
        except StorageError as e:
            cause = str(e.__cause__)
            if any(mark in cause for mark in _BEHIND_THE_END):
                raise TruncatedError(
                    f"{self.url_of(name)}: expected {stop - start} bytes at offset {start}, found "
                    "its end"
                ) from e
            raise
        if part is not None and part.size_bytes != stop - start:
            raise TruncatedError(
                f"{self.url_of(name)}: expected {stop - start} bytes at offset {start}, found "
                f"{part.size_bytes}"
            )
        return part

    def ask(
        self, name: str, call: Callable[[Any], Awaitable[T]], *, doing: str, stoppable: bool = False
    ) -> T:
        """Send a request, given an obstore store; repeat it after temporary failures.

        Raises OSError with the URL of the object.
        """

        async def send() -> T:
            return await call(self.bucket.requests)

        url = self.url_of(name)
        try:
            return self._retries.send(send, url, doing=doing, stoppable=stoppable)
        except (CordwoodError, asyncio.CancelledError):
            raise
        except Exception as e:
            if not is_of_obstore(e):
                raise
            raise request_error(e, url, doing) from e

    def find(self, name: str) -> ObjectEntry | None:
        """Return the size and the tag of an object; None if there is none."""
        import obstore

        async def head(store: Any) -> ObjectEntry | None:
            meta = await _or_none(obstore.head_async(store, self.key_of(name)))
            if meta is None:
                return None
            return entry_of(name, meta, tag_of(meta))

        return self.ask(name, head, doing="looking for it", stoppable=True)

    def size_of(self, name: str) -> int | None:
        """Return the size of an object in bytes; None if there is none."""
        entry = self.find(name)
        return None if entry is None else entry.size_bytes

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a whole object by one request, without a condition. Raises OSError."""
        import obstore

        async def put(store: Any) -> None:
            await obstore.put_async(
                store, self.key_of(name), self.bytes_to_send(data), use_multipart=False
            )

        self.ask(name, put, doing="writing it")

    def write_if(self, name: str, data: bytes, tag: Tag | None) -> Tag | None:
        """Write a whole object if it still has that tag; None: if there is no object.

        Returns the new tag; None if the condition did not hold.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        async def put(store: Any) -> Tag | None:
            mode: Any = "create" if tag is None else self._condition(tag)
            try:
                result = await obstore.put_async(
                    store, self.key_of(name), data, mode=mode, use_multipart=False
                )
            except (AlreadyExistsError, PreconditionError, FileNotFoundError) as e:
                if is_missing_bucket(e):
                    raise
                return None
            return tag_of(result)

        return self.ask(name, put, doing="replacing it")

    def bytes_to_send(self, data: bytes | memoryview) -> Any:
        """Return bytes to send: a copy where the store is memory, which keeps what it is given."""
        from obstore.store import MemoryStore

        return bytes(data) if isinstance(self.bucket.requests, MemoryStore) else data

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects. A name without an object is no error. Raises OSError."""
        import obstore

        remaining = iter(names)
        while batch := list(islice(remaining, _DELETED_AT_ONCE)):
            keys = [self.key_of(name) for name in batch]

            async def delete(store: Any, keys: list[str] = keys) -> None:
                try:
                    await obstore.delete_async(store, keys)
                except FileNotFoundError:  # some stores stop there
                    for key in keys:
                        with suppress(FileNotFoundError):
                            await obstore.delete_async(store, key)

            self.ask(batch[0], delete, doing=f"deleting {len(batch)} objects")

    def _condition(self, tag: Tag) -> dict[str, str]:
        """Return the condition that an object has a tag, as obstore takes it."""
        e_tag = tag.e_tag
        if e_tag is not None and self.experience.takes_bare_tags:
            e_tag = e_tag.strip('"')
        fields = {"e_tag": e_tag, "version": tag.version}
        return {key: value for key, value in fields.items() if value is not None}

    def __repr__(self) -> str:
        return f"<{self.url}>"


async def _or_none(request: Awaitable[T]) -> T | None:
    """Return the answer to a request; None if there is no such object in an existing bucket."""
    try:
        return await request
    except FileNotFoundError as e:
        if is_missing_bucket(e):
            raise
        return None


async def _first_chunks(result: Any, size_bytes: int) -> list[memoryview]:
    """Return all bytes of an answer or, of a longer one, that many and some more.

    A server may send any number, whatever it was asked for and its headers say. obstore holds a
    chunk twice while it puts it together from the pieces that arrive; small ones cost more time.
    """
    chunks: list[memoryview] = []
    remaining = size_bytes
    async for data in result.stream(min_chunk_size=min(size_bytes, _CHUNK_BYTES)):
        chunks.append(memoryview(data))
        remaining -= len(data)
        if remaining <= 0:
            break
    return chunks
