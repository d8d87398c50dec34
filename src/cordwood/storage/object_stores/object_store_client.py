"""A client of object stores, through obstore: reads, writes, listings and deletions of objects.

An ObjectStore returns bytes and tags, or raises OSError. All requests run in one event loop, in a
thread of its own, so any of them can be given up.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from cordwood.errors import (
    CordwoodError,
    LimitError,
    StorageError,
    TruncatedError,
)
from cordwood.message_text import first_names
from cordwood.storage.locations import Url
from cordwood.storage.object_stores.multipart_upload import MultipartUpload
from cordwood.storage.object_stores.object_store_errors import (
    NO_STORE,
    is_missing_bucket,
    is_web_page,
    request_error,
)
from cordwood.storage.object_stores.object_store_options import open_store
from cordwood.storage.object_stores.odd_keys import is_odd, key_behind, odd_key_error, odd_key_of
from cordwood.storage.object_stores.request_loop import run_request
from cordwood.storage.object_stores.request_retries import RequestRetries
from cordwood.storage.object_stores.stored_objects import ObjectEntry, ObjectPart, StoredObject, Tag
from cordwood.storage.paths import POOL
from cordwood.threads.log import log
from cordwood.threads.thread_pool import together

T = TypeVar("T")

_CHUNK_BYTES = 2 << 20  # of an answer
_DELETED_AT_ONCE = 1000

# Of a range that begins at the end of an object; the last is what Azurite says of an empty one.
_BEHIND_THE_END = ("StartTooLarge", "status: 416", "bytes 0--1/0")

_MAX_SHOWN = 3

_warned_of: set[tuple[str, str]] = set()  # keys that are passed over, with their stores

_listed: set[str] = set()  # the stores whose empty listings are to be believed


class ObjectStore:
    """The objects whose keys begin with a URL and a slash; names are relative to it."""

    def __init__(self, url: Url) -> None:
        self.url = url.plain  # errors name objects in one spelling
        self._open = open_store(url)
        self._retries = RequestRetries(self._open.where)

    @property
    def where(self) -> str:
        """The bucket and the endpoint, which all objects of one store share."""
        return self._open.where

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

        async def send() -> T:
            return await call(self._open.requests)

        return self._retries.send(send, self.url_of(name), doing=doing, stoppable=stoppable)

    def read(self, name: str, *, limit_bytes: int) -> StoredObject:
        """Return a whole object, of at most `limit_bytes`.

        Raises LimitError for a larger one, StorageError where the store refuses.
        """
        import obstore

        async def get(store: Any) -> StoredObject:
            result = await _or_none(obstore.get_async(store, self._key(name)))
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
            return StoredObject(data, _tag_of(result.meta))

        stored = self._ask(name, get, doing="reading it", stoppable=True)
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
            request = obstore.get_async(store, self._key(name), options=options)
            result = await _or_none(request)
            if result is None:
                return None
            chunks = await _first_chunks(result, stop - start)
            return ObjectPart(chunks, result.meta["size"])

        try:
            doing = f"reading it at byte {start}"
            part = self._ask(name, get, doing=doing, stoppable=True)
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
            raise request_error(e, self.url_of(name), doing) from e

    def find(self, name: str) -> ObjectEntry | None:
        """Return the size and the tag of an object; None if there is none."""
        import obstore

        async def head(store: Any) -> ObjectEntry | None:
            meta = await _or_none(obstore.head_async(store, self._key(name)))
            if meta is None:
                return None
            return _entry(name, meta, _tag_of(meta))

        return self._ask(name, head, doing="looking for it", stoppable=True)

    def size_of(self, name: str) -> int | None:
        """Return the size of an object in bytes; None if there is none."""
        entry = self.find(name)
        return None if entry is None else entry.size_bytes

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a whole object by one request, without a condition. Raises OSError."""
        import obstore

        async def put(store: Any) -> None:
            await obstore.put_async(
                store, self._key(name), self._bytes_to_send(data), use_multipart=False
            )

        self._ask(name, put, doing="writing it")

    def write_if(self, name: str, data: bytes, tag: Tag | None) -> Tag | None:
        """Write a whole object if it still has that tag; None: if there is no object.

        Returns the new tag; None if the condition did not hold.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        async def put(store: Any) -> Tag | None:
            mode: Any = "create" if tag is None else _condition(tag, self.where)
            try:
                result = await obstore.put_async(
                    store, self._key(name), data, mode=mode, use_multipart=False
                )
            except (AlreadyExistsError, PreconditionError, FileNotFoundError) as e:
                if is_missing_bucket(e):
                    raise
                return None
            return _tag_of(result)

        return self._ask(name, put, doing="replacing it")

    def _bytes_to_send(self, data: bytes | memoryview) -> Any:
        """Return bytes to send: a copy where the store is memory, which keeps what it is given."""
        from obstore.store import MemoryStore

        return bytes(data) if isinstance(self._open.requests, MemoryStore) else data

    def upload(
        self,
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

        url = self.url_of(name)
        upload = MultipartUpload(url, self._open, parts_in_flight, check)

        async def put() -> None:
            await obstore.put_async(
                self._open.uploads,
                self._key(name),
                upload.feed(fill, part_count, self._bytes_to_send),
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=parts_in_flight,
            )

        try:
            run_request(put, upload.waits_for, upload.check, progress=lambda: upload.stored_parts)
        except Exception as e:
            if upload.failure is not None:
                raise upload.failure from None
            if _is_ours(e):
                raise
            raise request_error(e, url, "uploading it in parts") from e
        finally:
            upload.end()

    def entries(
        self,
        *,
        start_after: str = "",
        may_skip: Callable[[str], bool] | None = None,
        skipped: dict[str, str] | None = None,
    ) -> list[ObjectEntry]:
        """Return all objects, sorted by name; only names after `start_after`.

        Objects whose keys no path can name are left out, with one warning that names them. Costs a
        request for each 1,000 objects.

        Args:
            start_after: the name after which the listing begins.
            may_skip: returns True for the name of a folder whose objects may be left out, where an
                odd key keeps the store from listing them. Then names of hidden objects, except
                those of the pool, and objects deeper down may be left out, too. None: nothing may.
            skipped: receives the names of the folders that were left out, each with its odd key.

        Raises StorageError for such a key that the listing cannot pass over.
        """
        offset = f"{self._open.prefix}{start_after}" if start_after else None
        odd: list[str] = []
        skipped = {} if skipped is None else skipped
        objects = self._objects_below(self._open.prefix, offset, odd, may_skip, skipped)
        # Some stores ignore where a listing is to begin: Azurite does.
        return [each for each in self._entries_of(objects, odd) if each.name > start_after]

    def entries_beside(
        self, folder: str, *, may_skip: Callable[[str], bool] | None = None
    ) -> list[ObjectEntry]:
        """Return all objects but those below a folder, sorted by name; the others as `entries`.

        Folders that come before it are listed one by one, so its objects cost no request.

        Args:
            folder: the name of the folder.
            may_skip: as in `entries`. Where an odd key keeps the store from naming the folders,
                those before `folder` are left out.
        """
        after, children = together(
            lambda: self.entries(start_after=f"{folder}0", may_skip=may_skip), self.children
        )
        before: list[Any] = []
        odd: list[str] = []
        for prefix in [f"{name}/" for name in children if f"{name}/" < f"{folder}/"]:
            before += self._objects_below(f"{self._open.prefix}{prefix}", None, odd, may_skip, {})
        return [*self._entries_of(before, odd), *after]

    def _entries_of(self, objects: Sequence[Any], odd: Sequence[str]) -> list[ObjectEntry]:
        """Return what was listed, sorted by name; warn of odd keys, which are left out."""
        prefix = self._open.prefix
        entries = [
            _entry(each["path"].removeprefix(prefix), each, self._listed_tag(each))
            for each in objects
            if each["path"].startswith(prefix)
        ]
        self._warn_of([*odd, *[each.name for each in entries if is_odd(each.name)]])
        return sorted([each for each in entries if not is_odd(each.name)])

    def _objects_below(
        self,
        prefix: str,
        offset: str | None,
        odd: list[str],
        may_skip: Callable[[str], bool] | None,
        skipped: dict[str, str],
    ) -> list[Any]:
        """Return the objects below a prefix, and behind an offset; odd keys go to `odd`."""
        try:
            return self._list_objects(prefix, offset)
        except StorageError as e:
            key = None if e.__cause__ is None else odd_key_of(e.__cause__)
            if key is None:
                raise
            odd.append(key)
            children = self._children_below(prefix)
            if children is not None:
                folders, objects = children
                for folder in folders:
                    if offset is None or f"{folder}/" > offset or offset.startswith(f"{folder}/"):
                        objects += self._objects_below(f"{folder}/", None, odd, may_skip, skipped)
                return objects
            folder = prefix.removeprefix(self._open.prefix).rstrip("/")
            first, _, inner = folder.partition("/")
            # No index of a step lies deeper, and nothing else than an index is looked for there.
            if first and may_skip is not None and ((inner and first != POOL) or may_skip(first)):
                skipped[folder] = key
                return []
            behind = key_behind(key, prefix)
            if behind is None or may_skip is None or first or (offset or "") >= behind:
                raise odd_key_error(key, str(self.url)) from e
            objects = self._objects_below(prefix, max(behind, offset or ""), odd, may_skip, skipped)
            pool = f"{prefix}{POOL}/"
            if (offset or "") < pool < behind:
                objects += self._objects_below(pool, None, odd, may_skip, skipped)
            return objects

    def _list_objects(self, prefix: str, offset: str | None) -> list[Any]:
        import obstore

        async def collect(store: Any) -> list[Any]:
            stream = obstore.list(store, prefix.rstrip("/") or None, offset=offset)
            return list(await stream.collect_async())

        return self._list(collect)

    def _children_below(self, prefix: str) -> tuple[list[str], list[Any]] | None:
        """Return the folders and the objects up to the first slash; None if one of them is odd."""
        import obstore

        async def collect(store: Any) -> list[Any]:
            answer = await obstore.list_with_delimiter_async(store, prefix.rstrip("/") or None)
            return [answer] if answer["common_prefixes"] or answer["objects"] else []

        try:
            answers = self._list(collect)
        except StorageError as e:
            if e.__cause__ is None or odd_key_of(e.__cause__) is None:
                raise
            return None
        # "" stands for keys of a bucket that begin with a slash, of which none is listed below it.
        folders = [each for answer in answers for each in answer["common_prefixes"] if each]
        return folders, [each for answer in answers for each in answer["objects"]]

    def _warn_of(self, odd: Collection[str]) -> None:
        """Log a warning about keys that are passed over, once for each of them."""
        new = [key for key in dict.fromkeys(odd) if (self.where, key) not in _warned_of]
        if new:
            _warned_of.update((self.where, key) for key in new)
            log.warning(
                "%s: passed over %s: no path can name such a key",
                self.url,
                first_names([repr(key) for key in new], _MAX_SHOWN),
            )

    def _listed_tag(self, meta: Any) -> Tag:
        """Return the tag in a listing: Azure's has no quotes there, and has them elsewhere."""
        tag = _tag_of(meta)
        if self.url.scheme == "az" and tag.e_tag and not tag.e_tag.endswith('"'):
            return tag._replace(e_tag=f'"{tag.e_tag}"')
        return tag

    def names(self) -> list[str]:
        """Return the names of all objects, sorted."""
        return [each.name for each in self.entries()]

    def children(self) -> list[str]:
        """Return the names up to their first slash, sorted; this lists no object behind one.

        Odd keys are left out as in `entries`.
        """
        prefix = self._open.prefix
        children = self._children_below(prefix)
        if children is None:
            return sorted(
                {each.name.partition("/")[0] for each in self.entries(may_skip=lambda _: False)}
            )
        folders, objects = children
        keys = [*folders, *[each["path"] for each in objects]]
        names = {key.removeprefix(prefix).rstrip("/") for key in keys if key.startswith(prefix)}
        return sorted({name for name in names if name and not is_odd(name)})

    def _list(self, collect: Callable[[Any], Awaitable[list[T]]]) -> list[T]:
        """Return a listing; raise StorageError if the endpoint answers with a web page.

        A web page reads as an empty listing. So the first listing of a store is made together with
        another request, which shows that.
        """

        def listing() -> list[T]:
            return self._ask("", collect, doing="listing it", stoppable=True)

        if self.url.scheme != "s3" or self.where in _listed:
            return listing()
        objects, problem = together(listing, self._problem_of_listings)
        if problem is not None and not objects:
            raise problem
        _listed.add(self.where)
        return objects

    def _problem_of_listings(self) -> Exception | None:
        """Return the reason why an empty listing says nothing; None: it says that it is empty."""
        try:
            entry = self.find(".cordwood")
        except PermissionError:
            return None
        except (OSError, CordwoodError) as e:
            return e
        if entry is not None and entry.tag == Tag(None):
            return StorageError(errno.EIO, NO_STORE, str(self.url))
        return None

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


async def _or_none(request: Awaitable[T]) -> T | None:
    """Return the answer to a request; None if there is no such object in an existing bucket."""
    try:
        return await request
    except FileNotFoundError as e:
        if is_missing_bucket(e):
            raise
        return None


def _is_ours(error: Exception) -> bool:
    """Return True for an error that did not come from obstore."""
    if isinstance(error, FileNotFoundError | TimeoutError):
        return False
    return not type(error).__module__.startswith("obstore") and not isinstance(error, ValueError)


def _entry(name: str, meta: Any, tag: Tag) -> ObjectEntry:
    return ObjectEntry(name, int(meta["size"]), tag, meta["last_modified"].timestamp())


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


def _tag_of(meta: Any) -> Tag:
    return Tag(meta.get("e_tag"), meta.get("version"))


# Locations of stores that take the tag of a condition without its quotes only.
UNQUOTED: set[str] = set()


def _condition(tag: Tag, location: str) -> dict[str, str]:
    """Return the condition that an object has a tag, as obstore takes it."""
    e_tag = tag.e_tag
    if e_tag is not None and location in UNQUOTED:
        e_tag = e_tag.strip('"')
    fields = {"e_tag": e_tag, "version": tag.version}
    return {key: value for key, value in fields.items() if value is not None}
