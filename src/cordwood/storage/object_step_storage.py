"""Storage of the steps of a run below a URL of an object store.

A deleted step first loses its index, and then its objects.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CordwoodError, UnsupportedFormatError
from cordwood.storage.object_pool import ObjectPool
from cordwood.storage.object_store_client import ObjectStore
from cordwood.storage.paths import POOL, Url
from cordwood.storage.step_storage import StepEntry, StoredRecord
from cordwood.storage.storage_protocol import NamingRules

_log = logging.getLogger("cordwood")

_RECORDS = f"{POOL}/steps.json"


class ObjectStepStorage:
    """The steps below a URL of an object store."""

    def __init__(self, url: Url, rules: NamingRules) -> None:
        self.name = str(url)
        self._store = ObjectStore(url)
        self._pool = ObjectPool(self._store, rules)
        self._rules = rules
        self._index_name = rules.index_name

    def path_of(self, entry: str) -> str:
        return f"{self.name}/{entry}"

    def entries(self, matches: Callable[[str], bool]) -> Mapping[str, StepEntry]:
        result = {}
        for each in self._store.entries(start_after=f"{POOL}0"):
            entry, slash, inner = each.name.partition("/")
            if not matches(entry):
                continue
            if inner == self._index_name and each.size_bytes:
                result[entry] = StepEntry(each.tag.e_tag or each.tag.version)
            else:
                result.setdefault(entry, StepEntry(None, is_file=not slash))
        return result

    def stamp(self, entry: str) -> Hashable | None:
        found = self._store.find(f"{entry}/{self._index_name}")
        return found.tag.e_tag or found.tag.version if found and found.size_bytes else None

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

    def remove(self, entries: Iterable[str]) -> list[str]:
        removed = list(entries)
        if not removed:
            return []
        shared = frozenset().union(*map(self._references, removed))
        self._store.delete([f"{entry}/{self._index_name}" for entry in removed])
        objects = self._store.entries(start_after=f"{POOL}0")
        below = [each.name for each in objects if each.name.partition("/")[0] in removed]
        self._store.delete([name for name in below if "/" in name])
        try:
            self._pool.remove(shared)
        except (OSError, CordwoodError) as e:
            _log.warning(
                "%s: the objects that only deleted steps refer to were not removed; gc does it "
                "later: %s",
                self.name,
                e,
            )
        return removed

    def _references(self, entry: str) -> frozenset[str]:
        """Return the objects of the pool that an entry refers to; none if that cannot be read."""
        limit_bytes = self._rules.max_index_bytes
        with suppress(CordwoodError):  # `gc` removes what only it has used
            data = self._store.read(f"{entry}/{self._index_name}", limit_bytes=limit_bytes).data
            return self._pool.references(data or None)
        return frozenset()

    def set_aside(self, entry: str) -> None:
        self._store.delete([f"{entry}/{self._index_name}"])  # objects cannot be renamed

    def in_use(self, entry: str) -> bool:  # noqa: ARG002
        return False

    def has_temporaries(self, entry: str) -> bool:  # noqa: ARG002
        return False

    @contextmanager
    def pin(self, entry: str) -> Iterator[None]:
        raise UnsupportedFormatError(
            f"{self.path_of(entry)}: there are no locks in an object store to pin a step by: "
            "copy it, or keep it by a policy"
        )
        yield

    def remove_leftovers(self) -> None:
        """Do nothing: entries without an index count as unfinished, and are removed as such."""

    def remove_empty(self, entry: str) -> None:
        """Do nothing: there are no directories."""
