"""Storage of the steps of a run below a URL of an object store.

A deleted step first loses its index, and then its objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CordwoodError
from cordwood.storage.entry_content import EntryContent, refers_only_to_data, split_content
from cordwood.storage.locations import Url
from cordwood.storage.object_stores.list_objects import list_objects, list_objects_beside_pool
from cordwood.storage.object_stores.object_directory import ObjectDirectory, below
from cordwood.storage.object_stores.object_pool import ObjectPool
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.paths import POOL
from cordwood.storage.step_pins import no_pins_error
from cordwood.storage.step_storage import Removal, StepEntry, StoredRecord, refusal_text
from cordwood.storage.storage_protocol import NamingRules
from cordwood.threads.log import log

_RECORDS = f"{POOL}/steps.json"


class ObjectStepStorage:
    """The steps below a URL of an object store."""

    def __init__(self, url: Url, rules: NamingRules) -> None:
        self.location = url.plain
        self._store = ObjectStore(url)
        self._pool = ObjectPool(self._store, rules)
        self._rules = rules
        self._index_name = rules.index_name
        # By entry without an index: its objects and their sizes, as they were listed last.
        self._objects: dict[str, dict[str, int]] = {}
        self._skipped: dict[str, str] = {}  # folders that the last listing left out

    def location_of(self, entry: str) -> Url:
        return self.location.child(entry)

    def entries(self, matches: Callable[[str], bool]) -> Mapping[str, StepEntry]:
        result: dict[str, StepEntry] = {}
        objects: dict[str, dict[str, int]] = {}
        skipped: dict[str, str] = {}
        listed = list_objects(
            self._store,
            start_after=f"{POOL}0",
            may_skip=lambda name: not matches(name),
            skipped=skipped,
        )
        for folder in skipped:
            entry = folder.partition("/")[0]
            if matches(entry):
                result[entry] = StepEntry(None)
                objects[entry] = {}
        self._skipped = skipped
        for each in listed:
            entry, slash, inner = each.name.partition("/")
            if not matches(entry):
                continue
            if inner == self._index_name and each.size_bytes:
                result[entry] = StepEntry(each.tag.e_tag or each.tag.version)
            else:
                result.setdefault(entry, StepEntry(None, is_file=not slash))
                if slash:
                    objects.setdefault(entry, {})[inner] = each.size_bytes
        self._objects.update(
            {entry: objects[entry] for entry in objects if result[entry].stamp is None}
        )
        return result

    def directory(self, entry: str) -> ObjectDirectory | None:
        sizes = self._objects.get(entry)
        if sizes is None:
            return None
        skipped = below(f"{entry}/", self._skipped)
        return ObjectDirectory(self.location_of(entry), sizes, skipped)

    def stamp(self, entry: str) -> Hashable | None:
        found = self._store.find(f"{entry}/{self._index_name}")
        return found.tag.e_tag or found.tag.version if found and found.size_bytes else None

    def flush(self, entry: str) -> None:
        """Do nothing: an object that can be read is durable."""

    def read_records(self) -> Mapping[str, StoredRecord]:
        with suppress(OSError, CordwoodError, ValueError, TypeError, AttributeError):
            data = self._store.read(_RECORDS, limit_bytes=self._rules.max_index_bytes).data
            rows = parse_json(data or b"{}", _RECORDS)
            return {
                entry: StoredRecord(stamp, text, size)
                for entry, (stamp, text, size) in rows.items()
                if type(stamp) is str and type(text) is str and type(size) is int
            }
        return {}

    def write_records(self, records: Mapping[str, StoredRecord]) -> None:
        self._store.write(_RECORDS, json.dumps(records, separators=(",", ":")).encode())

    def remove(self, entries: Iterable[str], *, partly: bool = False) -> Removal:
        names = list(entries)
        result = Removal.empty()
        if not names:
            return result
        contents = self._contents_of(names)
        for entry in names:
            content = contents[entry]
            if content.foreign and not (partly and self._index_name in content.written):
                result.refused[entry] = refusal_text(content)
            elif content.written:
                result.removed.append(entry)
                if content.foreign:
                    result.remaining[entry] = content.foreign_text
        removed = result.removed
        shared = frozenset().union(*map(self._references, removed))
        self._store.delete([f"{entry}/{self._index_name}" for entry in removed])
        self._store.delete(
            [
                f"{entry}/{name}"
                for entry in removed
                for name in contents[entry].written
                if name != self._index_name
            ]
        )
        try:
            self._pool.remove(shared)
        except (OSError, CordwoodError) as e:
            log.warning(
                "%s: the objects that only deleted steps refer to were not removed; gc does it "
                "later: %s",
                self.location,
                e,
            )
        return result

    def _contents_of(self, entries: Collection[str]) -> Mapping[str, EntryContent]:
        """Return the names below each of some entries, up to their first slash."""
        files: dict[str, list[str]] = {entry: [] for entry in entries}
        others: dict[str, set[str]] = {entry: set() for entry in entries}
        objects = list_objects_beside_pool(self._store, may_skip=lambda name: name not in files)
        for each in objects:
            entry, slash, name = each.name.partition("/")
            if entry not in files or not slash:
                continue
            first, slash, _ = name.partition("/")
            if slash:
                others[entry].add(f"{first}/")
            else:
                files[entry].append(name)
        return {
            entry: split_content(
                files[entry],
                others[entry],
                self._rules,
                has_own_sidecars=self._has_own_sidecars(entry, files[entry]),
            )
            for entry in files
        }

    def _has_own_sidecars(self, entry: str, files: Collection[str]) -> bool:
        if self._index_name in files:
            return True
        sidecars = [name for name in self._rules.sidecars if name in files]
        return all(self._refers_only_to_data(f"{entry}/{name}") for name in sidecars)

    def _refers_only_to_data(self, name: str) -> bool:
        with suppress(OSError, CordwoodError):
            data = self._store.read(name, limit_bytes=self._rules.max_index_bytes).data
            return data is None or refers_only_to_data(data, self._rules)  # None: removed meanwhile
        return False

    def _references(self, entry: str) -> frozenset[str]:
        """Return the objects of the pool that an entry refers to; none if that cannot be read."""
        limit_bytes = self._rules.max_index_bytes
        with suppress(CordwoodError):  # `gc` removes what only it has used
            data = self._store.read(f"{entry}/{self._index_name}", limit_bytes=limit_bytes).data
            return self._pool.references(data or None)
        return frozenset()

    def set_aside(self, entry: str) -> str:
        self._store.delete([f"{entry}/{self._index_name}"])  # objects cannot be renamed
        return ""

    def in_use(self, entry: str) -> bool:  # noqa: ARG002
        return False

    def has_temporaries(self, entry: str) -> bool:  # noqa: ARG002
        return False

    @contextmanager
    def pin(self, entry: str) -> Iterator[None]:
        raise no_pins_error(self.location_of(entry))
        yield

    def remove_leftovers(self, *, spared: str = "") -> None:
        """Do nothing: entries without an index count as unfinished, and are removed as such."""

    def remove_empty(self, entry: str) -> bool:  # noqa: ARG002
        return False  # there are no directories

    def has_leftovers(self, entry: str) -> bool:  # noqa: ARG002
        return True
