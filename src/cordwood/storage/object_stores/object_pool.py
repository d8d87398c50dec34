"""The pool of data objects that the steps of a run in an object store share.

The pool is the folder `.data` beside the steps, with a folder for each save. The index of a step
refers to objects by name, size and digest. An object is removed once no index refers to it.

There are no locks. Whoever removes objects first writes an object that lists them, and then reads
all indexes once more. A save that refers to objects of older steps looks for such lists after it
has replaced its index: so either it sees the list, and takes its index back, or its reference is
seen, and the objects stay. docs/design/0013-object-stores.md has the argument.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from cordwood.errors import CordwoodError
from cordwood.io.open_files import naming
from cordwood.storage.object_stores.list_objects import list_objects_beside_pool, object_names
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.stored_objects import ObjectEntry, Tag
from cordwood.storage.paths import POOL, new_save_id
from cordwood.storage.storage_protocol import NamingRules
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads, run_tasks

GRACE_SECONDS = 24 * 3600  # an older object without a reference is taken for a killed save's
MAX_LIST_BYTES = 1 << 30
_REMOVAL_LIST = re.compile(r"\.removed-[0-9a-f]{16}")
_CELLS = re.compile(r"cells-[0-9]{1,7}\.json")
_POOLED = re.compile(rf"\.\./({re.escape(POOL)}/[0-9a-f]{{16}}/([^/]+))")


class ObjectPool:
    """The pool below the root of a run.

    Args:
        store: the objects below the root.
        rules: the naming rules of the steps' format.
    """

    def __init__(self, store: ObjectStore, rules: NamingRules) -> None:
        self._store = store
        self._rules = rules
        self._cache: dict[str, tuple[Tag, frozenset[str]]] = {}  # of each index that was read

    def references(self, index: bytes | None) -> frozenset[str]:
        """Return the objects of the pool that an index refers to, by their names below the root.

        Raises as the format does for an index that it cannot read.
        """
        pooled = map(_POOLED.fullmatch, self._rules.kept_files(index))
        is_data_file = self._rules.is_data_file
        return frozenset([match[1] for match in pooled if match and is_data_file(match[2])])

    def is_no_step(self, folder: str) -> bool:
        """Return True if a folder below the root has no index, so that it refers to no object."""
        return folder != POOL and self._store.find(f"{folder}/{self._rules.index_name}") is None

    def all_references(self) -> frozenset[str]:
        """Return the objects of the pool that any index refers to.

        Only indexes that were not read before are read, several at once.

        Raises as reading an index does: then nothing may be removed.
        """
        index_name = self._rules.index_name
        indexes = {
            each.name: each.tag
            for each in list_objects_beside_pool(self._store, may_skip=self.is_no_step)
            if each.name.count("/") == 1 and each.name.endswith(f"/{index_name}")
        }
        cache = {name: self._cache[name] for name in indexes if name in self._cache}
        unread = [name for name in indexes if name not in cache or cache[name][0] != indexes[name]]

        def read(number: int) -> None:
            name = unread[number]
            stored = self._store.read(name, limit_bytes=self._rules.max_index_bytes)
            with naming(self._store.url_of(name)):
                references = self.references(stored.data or None)
            # One that was replaced after the listing is read again the next time.
            is_listed = stored.tag is not None and stored.tag.e_tag == indexes[name].e_tag
            cache[name] = indexes[name] if is_listed else Tag(None), references

        threads = reading_threads(latency_bound=True)
        run_tasks(len(unread), threads=threads, make_worker=lambda: read)
        self._cache = cache
        return frozenset().union(*[references for _, references in cache.values()])

    def remove(self, names: Collection[str]) -> list[str]:
        """Remove those objects of the pool that no index refers to; return their names.

        Raises OSError, and what reading an index raises; then some of them may remain.
        """
        unused = set(names) - self.all_references() if names else set()
        if not unused:
            return []
        lists = {}
        for folder, below in _by_folder(unused).items():
            lists[f"{folder}/.removed-{new_save_id()}"] = "\n".join(sorted(below)).encode()
        for name, data in lists.items():
            self._store.write(name, data)
        # A save that refers to one of them from now on sees the list, and fails.
        unused -= self.all_references()
        self._store.delete(sorted(unused))
        for folder in {name.rpartition("/")[0] for name in lists}:
            with suppress(OSError, CordwoodError):  # gc removes it
                self._store.delete(self._orphans(folder))
        self._store.delete(lists)
        return sorted(unused)

    def _orphans(self, folder: str) -> list[str]:
        """Return the lists of cells in a folder whose data objects are gone."""
        names = {*object_names(ObjectStore(self._store.url.child(folder)))}
        processes = {match[1] for name in names if (match := _DATA_PROCESS.fullmatch(name))}
        return [
            f"{folder}/{name}"
            for name in names
            if _CELLS.fullmatch(name) and name[len("cells-") : -len(".json")] not in processes
        ]

    def collect(
        self, entries: Iterable[ObjectEntry], *, dry_run: bool
    ) -> tuple[list[str], list[ObjectEntry]]:
        """Remove the objects of killed saves and interrupted deletions.

        Args:
            entries: all objects of the pool, by their names below the root.
            dry_run: remove nothing.

        Returns the names of what was removed, and the data objects that no index refers to and that
        are too young to be removed.
        """
        objects = {each.name: each for each in entries}
        data = {name for name in objects if self._rules.is_data_file(name.rpartition("/")[2])}
        unused = sorted(data - self.all_references()) if data else []
        young = [objects[name] for name in unused if not is_old(objects[name])]
        unused = [name for name in unused if is_old(objects[name])]
        if not dry_run:
            unused = self.remove(unused)
        used_folders = {name.rpartition("/")[0] for name in data - set(unused)}
        records = [
            name
            for name in objects
            if is_old(objects[name])
            and (
                _REMOVAL_LIST.fullmatch(name.rpartition("/")[2])
                or (
                    _CELLS.fullmatch(name.rpartition("/")[2])
                    and name.rpartition("/")[0] not in used_folders
                )
            )
        ]
        if not dry_run:
            self._store.delete(records)
        return sorted([*unused, *records]), young


_DATA_PROCESS = re.compile(r"data-[0-9a-f]{16}-([0-9]{1,7})-[0-9]{1,3}\.safetensors")


def is_old(entry: ObjectEntry) -> bool:
    """Return True for an object that was written longer ago than GRACE_SECONDS."""
    return time.time() - entry.written_seconds > GRACE_SECONDS


def _by_folder(names: Iterable[str]) -> Mapping[str, list[str]]:
    folders = defaultdict(list)
    for name in names:
        folders[name.rpartition("/")[0]].append(name)
    return folders


def missing_objects(root: ObjectStore, names: Collection[str]) -> list[str]:
    """Return those names in the pool that have no object, or are listed for removal.

    Costs a listing for each save that wrote some of them.

    Args:
        root: the objects below the root of the run.
        names: names below the root.
    """

    def missing_in(folder: str, below: Sequence[str]) -> list[str]:
        store = ObjectStore(root.url.child(folder))
        while True:
            check_stop()
            objects = {*object_names(store)}
            lists = [name for name in objects if _REMOVAL_LIST.fullmatch(name)]
            contents = [store.read(name, limit_bytes=MAX_LIST_BYTES).data for name in lists]
            if None not in contents:  # else a removal has ended meanwhile: list the names again
                break
        removed = {line for data in contents if data for line in data.decode().split("\n")}
        present = {f"{folder}/{name}" for name in objects} - removed
        return [name for name in below if name not in present]

    threads = reading_threads(latency_bound=True)
    results = map_in_threads(missing_in, [*_by_folder(names).items()], threads=threads)
    return sorted(chain.from_iterable(results))
