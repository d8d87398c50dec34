"""A directory of data objects and an index in an object store.

There are no locks here. Data objects have names of their own and are written whole; the index is
replaced by a conditional write, again and again until nobody else has come first. Each save
removes what its own replacement of the index has left without a reference, and nothing else: what
lies there without one may be of a save that still writes. Only `collect` removes such objects,
once their save began longer than GRACE_SECONDS ago.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from cordwood.engine.apart import Check, go_on
from cordwood.engine.files import ReadableFile
from cordwood.engine.kvstore import ObjectStore
from cordwood.engine.marks import comes_in_sight
from cordwood.engine.objects import ObjectFile, write_objects
from cordwood.engine.save_ids import began_seconds, new_save_id
from cordwood.engine.stores import Change, NewFile, Rules
from cordwood.engine.urls import Url
from cordwood.errors import CordwoodError, StorageError
from cordwood.index import Sealed, Source
from cordwood.plan.shares import FileSizes

__all__ = ["GRACE_SECONDS", "ObjectDirectory", "ObjectSave"]

GRACE_SECONDS = 24 * 3600  # a save that has not ended by then has died


class ObjectDirectory:
    """All objects below a URL, and the rules of the format they hold."""

    has_links = False
    # An object is written whole, from memory.
    file_sizes = FileSizes(pack_bytes=64 << 20, max_packs=512, part_bytes=256 << 20)

    def __init__(self, url: Url, rules: Rules) -> None:
        self.name = str(url)
        self._store = ObjectStore(url)
        self._rules = rules

    def read_index(self) -> bytes | None:
        return self.read_beside(self._rules.index_name)

    def read_beside(self, name: str) -> bytes | None:
        return self._store.read(name, limit_bytes=self._rules.max_index_bytes).data

    def open(self, sources: Sequence[Source]) -> list[ReadableFile]:
        return [ObjectFile(self._store, source.name, source.size_bytes) for source in sources]

    def names(self) -> list[str]:
        return sorted({name.split("/")[0] for name in self._store.names()} - {""})

    @contextmanager
    def saving(self, *, others_commit: bool) -> Iterator[ObjectSave]:
        save = ObjectSave(self._store, self._rules, others_commit=others_commit)
        try:
            yield save
        except BaseException:
            save.abandon()
            raise
        finally:
            save.release()

    def settle(self) -> None:
        """There are no locks by which to tell."""

    def collect(self, *, dry_run: bool) -> list[str]:
        rules = self._rules
        names = self._store.names()
        data = self.read_index()  # after the names: what was committed since is referred to
        if data is None and not names:
            raise FileNotFoundError(errno.ENOENT, "there is nothing there", self.name)
        kept = frozenset() if data is None else rules.referenced(data)
        mark = re.compile(rf"\.{re.escape(rules.index_name)}\.cordwood-[0-9a-f]{{16}}\.tmp")
        now = time.time()
        found = [
            name
            for name in names
            if name not in kept
            and (rules.is_data(name) or mark.fullmatch(name))
            and (began := began_seconds(name)) is not None
            and now - began > GRACE_SECONDS
        ]
        if not dry_run:
            self._store.delete(found)
        return found


class ObjectSave:
    """A save under way."""

    def __init__(self, store: ObjectStore, rules: Rules, *, others_commit: bool) -> None:
        self._store = store
        self._rules = rules
        self._others_commit = others_commit
        self._perhaps_committed = False
        self._written: list[str] = []
        self._marks: list[str] = []

    def mark(self) -> str:
        name = f".{self._rules.index_name}.cordwood-{new_save_id()}.tmp"
        self._marks.append(name)
        self._store.replace(name, lambda _: b"", limit_bytes=1)
        return name

    def sees(self, mark: str, *, timeout_seconds: float) -> bool:
        def is_there() -> bool:
            return self._store.read(mark, limit_bytes=1).data is not None

        return comes_in_sight(is_there, timeout_seconds=timeout_seconds)

    def write(self, files: Iterable[NewFile], check: Check = go_on) -> list[Sealed]:
        sealed = write_objects(self._store, self._noted(files, check))
        self._perhaps_committed = self._others_commit  # as soon as the caller has reported it
        return sealed

    def _noted(self, files: Iterable[NewFile], check: Check) -> Iterator[NewFile]:
        for file in files:
            check()
            self._written.append(file.name)
            yield file

    def link(self, folder: str, name: str, check: Check = go_on) -> bool:  # noqa: ARG002
        return False

    def forgo(self, name: str) -> None:
        """There are none."""

    def commit(self, update: Callable[[bytes | None], Change]) -> None:
        rules, store = self._rules, self._store
        change: Change | None = None

        def replaced(data: bytes | None) -> bytes:
            nonlocal change
            change = update(data)
            self._require(change.added)
            self._perhaps_committed = True  # an answer may be lost on the way
            return change.new_index

        generation = store.replace(rules.index_name, replaced, limit_bytes=rules.max_index_bytes)
        assert change is not None
        for name, data in change.beside.items():
            self._write_beside(name, data, generation)
        with suppress(OSError):  # `collect` does it
            store.delete(sorted(change.dropped))

    def _require(self, added: Mapping[str, int]) -> None:
        """What was written is gone if `collect` took it for a dead save's."""
        missing = sorted(set(added).difference(self._store.names()))
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise StorageError(
                errno.EIO,
                f"expected {missing[0]}{more}, found nothing: the process that wrote it died, does "
                "not write to this store, or took longer than gc allows; what was there before is "
                "untouched",
                str(self._store.url),
            )

    def _write_beside(self, name: str, data: bytes | None, generation: bytes) -> None:
        """Bring a small object in line with the index, unless a later save has the say by now.

        The look at the index comes between the look at the object and its conditional
        replacement: so of two saves the one that replaced the index last prevails here too.
        """

        class Overtaken(Exception):
            pass

        def update(_: bytes | None) -> bytes | None:
            if self._store.generation(self._rules.index_name) != generation:
                raise Overtaken
            return data

        with suppress(Overtaken):
            self._store.replace(name, update, limit_bytes=self._rules.max_index_bytes)

    def abandon(self) -> None:
        """Remove what was written, if no index can refer to it.

        One that is on its way can: what it would refer to is left to `collect`.
        """
        if not self._perhaps_committed:
            with suppress(OSError, CordwoodError):  # `collect` does it
                self._store.delete(self._written)

    def release(self) -> None:
        """Remove the marks."""
        with suppress(OSError):
            self._store.delete(self._marks)
