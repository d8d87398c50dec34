"""Storage in an object store: data objects and an index below one URL.

There are no locks. Data objects have unique names and are written whole; the index is replaced by a
conditional write, which is repeated until no other writer comes first. A save removes only the
objects that its own replacement of the index has left without a reference: other objects without a
reference may belong to a save that is still writing. Only `collect` removes such objects, if they
were written longer than GRACE_SECONDS ago. A save may take longer, and clocks may be wrong, so
`collect` first writes an object that lists what it is going to remove, and a save looks for such
lists after it has replaced the index. docs/design/0002-directories.md has the argument.

One file, because what a save writes and what `collect` removes follow one rule.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial

from cordwood.errors import CordwoodError, StorageError, UnsupportedFormatError
from cordwood.index import HeaderDigest, Source
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import ReadableFile
from cordwood.message_text import first_names
from cordwood.plan.cells import FileSizes
from cordwood.storage.conditional_writes import replace_object, require_conditional_writes
from cordwood.storage.entry_content import refers_only_to_data
from cordwood.storage.locations import Url
from cordwood.storage.object_file import ObjectFile
from cordwood.storage.object_pool import (
    GRACE_SECONDS,
    MAX_LIST_BYTES,
    ObjectPool,
    is_old,
    missing_objects,
)
from cordwood.storage.object_store_client import ObjectEntry, ObjectStore, StoredObject, Tag
from cordwood.storage.object_uploads import upload_objects
from cordwood.storage.paths import POOL, new_save_id
from cordwood.storage.request_loop import call_in_thread
from cordwood.storage.storage_protocol import (
    Garbage,
    IndexChange,
    MissingDataError,
    NamingRules,
    NewDataFile,
    SidecarsOf,
    wait_until_visible,
)
from cordwood.threads.log import log
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_pool import together

_POLL_SECONDS = 0.5
_COMMIT_SECONDS = 5  # between the writes of the index and of a sidecar of one commit
_PROBE, _REMOVAL_LIST = "tmp", "gc"  # the kinds of temporary objects, by the end of their names


class _IndexReplacedError(StorageError):
    """Another save has replaced the index since this one wrote it."""


class ObjectStorage:
    """All objects below a URL, and the naming rules of their format."""

    has_links = False
    has_pool = True
    # Several are hashed and sent at once, so a small tree has a few; a large one few for its size.
    file_sizes = FileSizes(
        pack_bytes=64 << 20,
        max_packs=64,
        part_bytes=16 << 30,
        few_packs=4,
        large_pack_bytes=2 << 30,
    )

    def __init__(self, url: Url, rules: NamingRules) -> None:
        self.name = url.address
        self.location = url.plain
        self._store = ObjectStore(url)
        self._rules = rules

    def read_index(self) -> bytes | None:
        return self.read_sidecar(self._rules.index_name)

    def read_sidecar(self, name: str) -> bytes | None:
        # An empty object is one that was removed: stores have no conditional deletion.
        return self._store.read(name, limit_bytes=self._rules.max_index_bytes).data or None

    def open(self, sources: Sequence[Source]) -> list[ReadableFile]:
        return [ObjectFile(self._store, source.name, source.size_bytes) for source in sources]

    def missing(self, names: Collection[str]) -> list[str]:
        pooled = [name for name in names if name.startswith("../")]
        root = ObjectStore(self._store.url.child("../"))
        return [f"../{name}" for name in missing_objects(root, [name[3:] for name in pooled])]

    def names(self) -> list[str]:
        if self._store.url.is_web:  # web servers list nothing
            small = (self._rules.index_name, *self._rules.sidecars)
            return sorted([name for name in small if self._store.find(name)])
        return self._store.children()

    @contextmanager
    def transaction(
        self,
        *,
        others_commit: bool,
        timeout_seconds: float | None = None,  # noqa: ARG002  (there are no locks to wait for)
        page_cache: bool = False,  # noqa: ARG002  (nothing is written to a disk)
    ) -> Iterator[ObjectTransaction]:
        save = ObjectTransaction(self._store, self._rules, others_commit=others_commit)
        try:
            yield save
        except BaseException:
            save.abandon()
            raise
        finally:
            save.release()

    def flush(self) -> None:
        """Do nothing: what a store has confirmed is durable."""

    def wait_for_commit(self, is_whole: Callable[[], bool]) -> None:
        """Look again for some seconds: without locks a commit in progress cannot be noticed."""
        deadline = time.monotonic() + _COMMIT_SECONDS
        while not is_whole() and time.monotonic() < deadline:
            check_stop()
            time.sleep(_POLL_SECONDS)

    def collect(self, *, dry_run: bool, sidecars_of: SidecarsOf | None = None) -> Garbage:
        store, rules = self._store, self._rules
        if POOL in store.url.key.split("/"):
            raise UnsupportedFormatError(
                f"{self.name}: the objects there belong to the steps of a run; gc its root"
            )
        pool = ObjectPool(store, rules)
        entries = store.entries(may_skip=pool.is_no_step)
        if not entries:
            raise FileNotFoundError(errno.ENOENT, "there is nothing there", self.name)
        in_pool = [each for each in entries if each.name.startswith(f"{POOL}/")]
        rewritten: tuple[str, ...] = ()
        if sidecars_of is not None and any(each.name == rules.index_name for each in entries):
            rewritten = self._rewrite_sidecars(sidecars_of, dry_run=dry_run)
        pooled, young = pool.collect(in_pool, dry_run=dry_run)
        objects = {each.name: each for each in entries if not each.name.startswith(f"{POOL}/")}
        unreferenced = self._unreferenced([*filter(self._is_temporary, objects)])
        young += [objects[name] for name in unreferenced if not is_old(objects[name])]
        removed = [name for name in unreferenced if is_old(objects[name])]
        if removed and not dry_run:
            list_name = _name_beside(rules, _REMOVAL_LIST)
            store.write(list_name, "\n".join(removed).encode())
            # A save that replaces the index after this sees the list, and fails.
            removed = self._unreferenced(removed)
            store.delete(removed)
            store.delete([list_name])
        others = [each for name, each in objects.items() if name not in removed]
        removed += self._collect_remains(others, dry_run=dry_run)
        return Garbage(
            pooled + removed,
            len(young),
            sum([each.size_bytes for each in young]),
            max([each.written_seconds + GRACE_SECONDS for each in young], default=None),
            rewritten,
        )

    def _rewrite_sidecars(self, sidecars_of: SidecarsOf, *, dry_run: bool) -> tuple[str, ...]:
        """Write the sidecars that do not belong to the index; return their names."""
        store, limit_bytes = self._store, self._rules.max_index_bytes
        rewritten = []
        index = store.read(self._rules.index_name, limit_bytes=limit_bytes)
        for name, data in sidecars_of(index.data).items() if index.data else ():
            sidecar = store.read(name, limit_bytes=limit_bytes)
            if (sidecar.data or None) != data:
                rewritten.append(name)
                if not dry_run:
                    _write_sidecar(store, self._rules, name, data, index.tag, sidecar)
        return tuple(rewritten)

    def _is_temporary(self, name: str) -> bool:
        """Return True for names of data and probes, which a save that died may have left."""
        return self._rules.is_data_file(name) or _is_beside(self._rules, _PROBE, name)

    def _unreferenced(self, names: Sequence[str]) -> list[str]:
        kept = self._rules.kept_files(self.read_index())
        return [name for name in names if name not in kept]

    def _collect_remains(self, entries: Sequence[ObjectEntry], *, dry_run: bool) -> list[str]:
        """Remove the small objects that interrupted deletions have left."""
        store, rules = self._store, self._rules
        names = [each.name for each in entries]
        lists = [name for name in names if _is_beside(rules, _REMOVAL_LIST, name)]
        removable = [
            name for name in lists if not set(_read_removal_list(store, name) or [""]) & set(names)
        ]
        remains = [each for each in entries if each.name not in removable]
        if {each.name for each in remains} <= set(rules.sidecars):
            for name in [each.name for each in remains if is_old(each)]:
                stored = store.read(name, limit_bytes=rules.max_index_bytes)
                if not refers_only_to_data(stored.data or b"", rules):
                    continue
                if dry_run or self._empty(name, stored.tag):
                    removable.append(name)
        if not dry_run:
            store.delete(removable)
        return removable

    def _empty(self, name: str, tag: Tag | None) -> bool:
        """Remove the bytes of an object that still has a tag; return False if it has another."""
        with suppress(UnsupportedFormatError):  # without conditions nothing is removed
            require_conditional_writes(self._store, self._rules.index_name)
            return self._store.write_if(name, b"", tag) is not None
        return False


class ObjectTransaction:
    """A save in progress."""

    def __init__(self, store: ObjectStore, rules: NamingRules, *, others_commit: bool) -> None:
        self._store = store
        self._rules = rules
        self._others_commit = others_commit
        self._perhaps_committed = False
        self._written: list[str] = []
        self._probes: list[str] = []
        # Tried while the leaves are hashed and sent; no object is complete before the answer.
        self._conditions: Future[None] | None = None
        if not others_commit:
            self._conditions = Future()
            try_conditions = partial(self._try_conditions, self._conditions)
            target = partial(copy_context().run, try_conditions)
            if call_in_thread(target) is None:
                target()

    def create_probe(self) -> str:
        name = _name_beside(self._rules, _PROBE)
        self._probes.append(name)
        self._store.write(name, b"")
        return name

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool:
        def probe_exists() -> bool:
            return self._store.read(probe, limit_bytes=1).data is not None

        return wait_until_visible(probe_exists, probe, timeout_seconds=timeout_seconds)

    def write(self, files: Sequence[NewDataFile], leaves: Leaves) -> list[HeaderDigest]:
        self._written += [file.name for file in files]
        header_digests = upload_objects(self._store, files, leaves, ready=self._require_conditions)
        self._perhaps_committed = self._others_commit  # once the caller has reported it
        return header_digests

    def _try_conditions(self, result: Future[None]) -> None:
        try:
            require_conditional_writes(self._store, self._rules.index_name)
        except BaseException as e:  # noqa: BLE001  (raised by `_require_conditions`)
            result.set_exception(e)
        else:
            result.set_result(None)

    def _require_conditions(self) -> None:
        """Raise UnsupportedFormatError if the store has no conditional writes."""
        if self._conditions is None:
            return
        while not wait([self._conditions], timeout=_POLL_SECONDS).done:
            check_stop()
        self._conditions.result()

    def link(self, folder: str, name: str) -> bool:  # noqa: ARG002
        return False

    def unlink_later(self, name: str) -> None:
        """Do nothing: there are no links."""

    def commit(self, update: Callable[[bytes | None], IndexChange]) -> None:
        rules, store = self._rules, self._store
        self._require_conditions()
        (index, sidecars), gone = together(
            lambda: together(lambda: self._read(rules.index_name), self._read_sidecars),
            lambda: self._missing_objects(self._written),
        )
        old: bytes | None = None
        change: IndexChange | None = None
        dropped: set[str] = set()

        def new_index(data: bytes | None) -> bytes:
            nonlocal old, change
            old, change = data, update(data)
            dropped.update(change.dropped)
            self._require(change.added, gone)
            self._perhaps_committed = True  # the answer to the write may be lost
            return change.new_index

        limit_bytes = rules.max_index_bytes
        tag = replace_object(
            store, rules.index_name, new_index, limit_bytes=limit_bytes, stored=index
        )
        assert change is not None
        _, again = together(
            partial(self._confirm, change, old), partial(self._try_read, rules.index_name)
        )
        # Tools that read a sidecar of before need the objects that it names; `gc` removes those.
        needed: list[bytes] = []
        is_known = True
        for name, data in change.sidecars.items():
            try:
                sidecar = sidecars[name]
                if isinstance(sidecar, Exception):
                    raise sidecar
                _write_sidecar(store, rules, name, data, tag, sidecar, again)
            except Exception as e:  # noqa: BLE001  (the tree is saved)
                stored = sidecars.get(name)
                if isinstance(stored, StoredObject):
                    needed.append(stored.data or b"")
                else:
                    is_known = False
                log.warning(
                    "%s is saved, but %s was not brought in line with it, and tools that read that "
                    "find the tree before, or none; gc writes it again: %s",
                    store.url,
                    name,
                    e,
                )
        if not is_known:
            return
        # Other steps may refer to objects of the pool; `gc` removes those that none refers to.
        unreferenced = sorted(
            [
                each
                for each in dropped - change.kept
                if not each.startswith("../") and not any(each.encode() in data for data in needed)
            ]
        )
        try:
            store.delete(unreferenced)
        except Exception as e:  # noqa: BLE001  (the tree is saved)
            log.warning(
                "%s is saved, but not all of %d objects that it replaces were deleted; gc removes "
                "them a day after they were saved: %s",
                store.url,
                len(unreferenced),
                e,
            )

    def _read(self, name: str) -> StoredObject:
        return self._store.read(name, limit_bytes=self._rules.max_index_bytes)

    def _try_read(self, name: str) -> StoredObject | Exception:
        """Return an object, or the error of reading it: only a sidecar depends on that."""
        try:
            return self._read(name)
        except (OSError, CordwoodError) as e:
            return e

    def _read_sidecars(self) -> dict[str, StoredObject | Exception]:
        return {name: self._try_read(name) for name in self._rules.sidecars}

    def _require(self, added: Mapping[str, int], gone: Sequence[str]) -> None:
        """Raise an error if `collect` has removed, or will remove, what was written.

        Args:
            added: the objects that the index refers to from now on.
            gone: those that this process has written and that are missing.
        """
        others = set(added).difference(self._written)
        missing = [*added.keys() & gone, *self._missing_objects(others)]
        if missing:
            raise self._error(missing, "what was there before is untouched")

    def _confirm(self, change: IndexChange, old: bytes | None) -> None:
        """Check again, now that the index refers to what was written.

        A `collect` that read the index before the replacement has written its list before it.
        """
        try:
            missing = self._missing_objects(change.added)
        except (OSError, CordwoodError) as e:
            shared = sorted(name for name in change.added if name.startswith("../"))
            if shared:  # another process may have deleted the step that they were of
                self._put_back(change.new_index, old)
                self._perhaps_committed = False
                raise
            log.warning(
                "%s is saved, but it could not be looked whether a gc at the same time took its "
                "data for a dead save's; verify tells: %s",
                self._store.url,
                e,
            )
            return
        if not missing:
            return
        try:
            self._put_back(change.new_index, old)
        except _IndexReplacedError:
            return  # by a later save, which has dropped what this one wrote: the last save wins
        except (OSError, CordwoodError) as e:
            state = "the index refers to it; save again"
            raise self._error(missing, state, StorageError) from e
        self._perhaps_committed = False
        raise self._error(missing, "what was there before is there again")

    def _put_back(self, new: bytes, old: bytes | None) -> None:
        """Restore the old index. Raises StorageError if another save has replaced it."""

        def update(data: bytes | None) -> bytes | None:
            if data not in (new, old):
                if data is None:
                    raise StorageError(errno.EBUSY, "the index was deleted meanwhile")
                text = "another save has replaced the index meanwhile"
                raise _IndexReplacedError(errno.EBUSY, text)
            return old

        limit = self._rules.max_index_bytes
        replace_object(self._store, self._rules.index_name, update, limit_bytes=limit)

    def _missing_objects(self, added: Collection[str]) -> list[str]:
        """Return the names of data objects that were removed, or are listed for removal."""
        pooled = {name for name in added if name.startswith("../")}
        root = ObjectStore(self._store.url.child("../"))
        missing = missing_objects(root, [name[3:] for name in pooled])
        added = set(added) - pooled
        if not added:
            return missing
        while True:
            names = self._store.names()
            lists = [name for name in names if _is_beside(self._rules, _REMOVAL_LIST, name)]
            contents = [_read_removal_list(self._store, name) for name in lists]
            if None not in contents:  # else a `collect` has ended meanwhile: list the names again
                condemned = {name for listed in contents for name in listed or ()}
                return sorted([*missing, *(added - (set(names) - condemned))])

    def _error(
        self, missing: Sequence[str], state: str, kind: type[StorageError] = MissingDataError
    ) -> StorageError:
        return kind(
            errno.EIO,
            f"expected {first_names(missing, 1)}, found nothing: the process that wrote it died, "
            "does not write to this store, or took longer than gc allows (a day after it wrote "
            "it); or the older step that it was of has just been deleted: save again; "
            f"{state}",
            str(self._store.url),
        )

    def abandon(self) -> None:
        """Remove what was written, if no index can refer to it.

        If the index may have been replaced, its data is left to `collect`.
        """
        if not self._perhaps_committed:
            with suppress(OSError, CordwoodError):  # `collect` does it
                self._store.delete(self._written)

    def release(self) -> None:
        """Remove the probes."""
        with suppress(OSError, CordwoodError):  # `collect` does it
            self._store.delete(self._probes)


def _name_beside(rules: NamingRules, kind: str) -> str:
    return f".{rules.index_name}.cordwood-{new_save_id()}.{kind}"


def _is_beside(rules: NamingRules, kind: str, name: str) -> bool:
    pattern = rf"\.{re.escape(rules.index_name)}\.cordwood-[0-9a-f]{{16}}\.{kind}"
    return re.fullmatch(pattern, name) is not None


def _read_removal_list(store: ObjectStore, name: str) -> list[str] | None:
    """Return the names in the list of a `collect`; None if the list is gone: it has ended."""
    data = store.read(name, limit_bytes=MAX_LIST_BYTES).data
    return None if data is None else data.decode("utf-8", "replace").split("\n")


def _write_sidecar(
    store: ObjectStore,
    rules: NamingRules,
    name: str,
    data: bytes | None,
    tag: Tag | None,
    sidecar: StoredObject,
    index: StoredObject | Exception | None = None,
) -> None:
    """Update a sidecar object to match the index, unless a later save has replaced the index.

    The index is checked between the read of the object and its conditional replacement. So of two
    saves the one that replaced the index last also writes the sidecar last.

    Args:
        store: the store.
        rules: the naming rules.
        name: the object.
        data: what it has to contain; None: there is to be none.
        tag: the tag of the index that it belongs to.
        sidecar: the object, as it was read before the index.
        index: the index, as it was read after that, or why it was not; None: it is read now.
    """
    if isinstance(index, Exception):
        raise index
    limit_bytes = rules.max_index_bytes
    first = index

    class Overtaken(Exception):
        pass

    def update(_: bytes | None) -> bytes | None:
        nonlocal first
        current, first = first or store.read(rules.index_name, limit_bytes=limit_bytes), None
        if current.tag is None or tag is None or current.tag.e_tag != tag.e_tag:
            raise Overtaken
        return data

    with suppress(Overtaken):
        if data is not None:
            replace_object(store, name, update, limit_bytes=limit_bytes, stored=sidecar)
        elif sidecar.tag is not None:
            update(None)
            store.delete([name])  # without a condition: it may be absent at any time
