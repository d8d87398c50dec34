"""Listings of the objects below a URL, which pass over keys that no path can name.

A listing costs a request for each 1,000 objects.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from cordwood.errors import CordwoodError, StorageError
from cordwood.message_text import first_names
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_store_errors import NO_STORE
from cordwood.storage.object_stores.odd_keys import is_odd, key_behind, odd_key_error, odd_key_of
from cordwood.storage.object_stores.stored_objects import ObjectEntry, Tag, entry_of, tag_of
from cordwood.storage.paths import POOL
from cordwood.threads.log import log
from cordwood.threads.thread_pool import together

T = TypeVar("T")

_MAX_SHOWN = 3  # odd keys in a warning


def list_objects(
    store: ObjectStore,
    *,
    start_after: str = "",
    may_skip: Callable[[str], bool] | None = None,
    skipped: dict[str, str] | None = None,
) -> list[ObjectEntry]:
    """Return all objects, sorted by name; only names after `start_after`.

    Objects whose keys no path can name are left out, with one warning that names them. Costs a
    request for each 1,000 objects.

    Args:
        store: the store.
        start_after: the name after which the listing begins.
        may_skip: returns True for the name of a folder whose objects may be left out, where an
            odd key keeps the store from listing them. Then names of hidden objects, except
            those of the pool, and objects deeper down may be left out, too. None: nothing may.
        skipped: receives the names of the folders that were left out, each with its odd key.

    Raises StorageError for such a key that the listing cannot pass over.
    """
    listing = _Listing(store, may_skip)
    offset = f"{store.prefix}{start_after}" if start_after else None
    entries = listing.entries_of(listing.objects_below(store.prefix, offset))
    if skipped is not None:
        skipped.update(listing.skipped)
    # Some stores ignore where a listing is to begin: Azurite does.
    return [each for each in entries if each.name > start_after]


def list_objects_beside_pool(
    store: ObjectStore, *, may_skip: Callable[[str], bool]
) -> list[ObjectEntry]:
    """Return all objects but those of the pool, sorted by name, as `list_objects` does.

    Folders that come before the pool are listed one by one, so its objects cost no request. Where
    an odd key keeps the store from naming the folders, those before the pool are left out.
    """
    after, children = together(
        lambda: list_objects(store, start_after=f"{POOL}0", may_skip=may_skip),
        partial(list_children, store),
    )
    listing = _Listing(store, may_skip)
    before: list[Any] = []
    for prefix in [f"{name}/" for name in children if f"{name}/" < f"{POOL}/"]:
        before += listing.objects_below(f"{store.prefix}{prefix}", None)
    return [*listing.entries_of(before), *after]


class _Listing:
    """A listing in progress, which goes around odd keys.

    Attributes:
        skipped: the names of the folders that were left out, each with its odd key.
    """

    def __init__(self, store: ObjectStore, may_skip: Callable[[str], bool] | None) -> None:
        self.skipped: dict[str, str] = {}
        self._store = store
        self._may_skip = may_skip
        self._odd: list[str] = []  # keys

    def entries_of(self, objects: Sequence[Any]) -> list[ObjectEntry]:
        """Return what was listed, sorted by name; warn of odd keys, which are left out."""
        prefix = self._store.prefix
        entries = [
            entry_of(each["path"].removeprefix(prefix), each, _listed_tag(self._store, each))
            for each in objects
            if each["path"].startswith(prefix)
        ]
        odd = [*self._odd, *[each.name for each in entries if is_odd(each.name)]]
        _warn_of(self._store, odd)
        return sorted([each for each in entries if not is_odd(each.name)])

    def objects_below(self, prefix: str, offset: str | None) -> list[Any]:
        """Return the objects below a prefix, and behind an offset."""
        store, may_skip = self._store, self._may_skip
        try:
            return _request_objects(store, prefix, offset)
        except StorageError as e:
            key = None if e.__cause__ is None else odd_key_of(e.__cause__)
            if key is None:
                raise
            self._odd.append(key)
            children = _children_below(store, prefix)
            if children is not None:
                folders, objects = children
                for folder in folders:
                    if offset is None or f"{folder}/" > offset or offset.startswith(f"{folder}/"):
                        objects += self.objects_below(f"{folder}/", None)
                return objects
            folder = prefix.removeprefix(store.prefix).rstrip("/")
            first, _, inner = folder.partition("/")
            # No index of a step lies deeper, and nothing else than an index is looked for there.
            if first and may_skip is not None and ((inner and first != POOL) or may_skip(first)):
                self.skipped[folder] = key
                return []
            behind = key_behind(key, prefix)
            if behind is None or may_skip is None or first or (offset or "") >= behind:
                raise odd_key_error(key, str(store.url)) from e
            objects = self.objects_below(prefix, max(behind, offset or ""))
            pool = f"{prefix}{POOL}/"
            if (offset or "") < pool < behind:
                objects += self.objects_below(pool, None)
            return objects


def _request_objects(store: ObjectStore, prefix: str, offset: str | None) -> list[Any]:
    import obstore

    async def collect(store: Any) -> list[Any]:
        stream = obstore.list(store, prefix.rstrip("/") or None, offset=offset)
        return list(await stream.collect_async())

    return _list(store, collect)


def _children_below(store: ObjectStore, prefix: str) -> tuple[list[str], list[Any]] | None:
    """Return the folders and the objects up to the first slash; None if one of them is odd."""
    import obstore

    async def collect(store: Any) -> list[Any]:
        answer = await obstore.list_with_delimiter_async(store, prefix.rstrip("/") or None)
        return [answer] if answer["common_prefixes"] or answer["objects"] else []

    try:
        answers = _list(store, collect)
    except StorageError as e:
        if e.__cause__ is None or odd_key_of(e.__cause__) is None:
            raise
        return None
    # "" stands for keys of a bucket that begin with a slash, of which none is listed below it.
    folders = [each for answer in answers for each in answer["common_prefixes"] if each]
    return folders, [each for answer in answers for each in answer["objects"]]


def _warn_of(store: ObjectStore, odd: Collection[str]) -> None:
    """Log a warning about keys that are passed over, once for each of them."""
    warned_of = store.experience.odd_keys
    new = [key for key in dict.fromkeys(odd) if key not in warned_of]
    if new:
        warned_of.update(new)
        log.warning(
            "%s: passed over %s: no path can name such a key",
            store.url,
            first_names([repr(key) for key in new], _MAX_SHOWN),
        )


def _listed_tag(store: ObjectStore, meta: Any) -> Tag:
    """Return the tag in a listing: Azure's has no quotes there, and has them elsewhere."""
    tag = tag_of(meta)
    if store.url.scheme == "az" and tag.e_tag and not tag.e_tag.endswith('"'):
        return tag._replace(e_tag=f'"{tag.e_tag}"')
    return tag


def object_names(store: ObjectStore) -> list[str]:
    """Return the names of all objects, sorted."""
    return [each.name for each in list_objects(store)]


def list_children(store: ObjectStore) -> list[str]:
    """Return the names up to their first slash, sorted; this lists no object behind one.

    Odd keys are left out as in `list_objects`.
    """
    prefix = store.prefix
    children = _children_below(store, prefix)
    if children is None:
        return sorted(
            {each.name.partition("/")[0] for each in list_objects(store, may_skip=lambda _: False)}
        )
    folders, objects = children
    keys = [*folders, *[each["path"] for each in objects]]
    names = {key.removeprefix(prefix).rstrip("/") for key in keys if key.startswith(prefix)}
    return sorted({name for name in names if name and not is_odd(name)})


def _list(store: ObjectStore, collect: Callable[[Any], Awaitable[list[T]]]) -> list[T]:
    """Return a listing; raise StorageError if the endpoint answers with a web page.

    A web page reads as an empty listing. So the first listing of a store is made together with
    another request, which shows that.
    """

    def listing() -> list[T]:
        return store.ask("", collect, doing="listing it", stoppable=True)

    if store.url.scheme != "s3" or store.experience.lists_objects:
        return listing()
    objects, problem = together(listing, partial(_problem_of_listings, store))
    if problem is not None and not objects:
        raise problem
    store.experience.lists_objects = True
    return objects


def _problem_of_listings(store: ObjectStore) -> Exception | None:
    """Return the reason why an empty listing says nothing; None: it says that it is empty."""
    try:
        entry = store.find(".cordwood")
    except PermissionError:
        return None
    except (OSError, CordwoodError) as e:
        return e
    if entry is not None and entry.tag == Tag(None):
        return StorageError(errno.EIO, NO_STORE, str(store.url))
    return None
