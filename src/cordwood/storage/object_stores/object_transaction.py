"""A save to an object store: data objects, then a conditional write of the index.

Data objects have unique names and are written whole; the index is replaced by a conditional write,
which is repeated until no other writer comes first. A save removes only the objects that its own
replacement of the index has left without a reference: other objects without a reference may belong
to a save that is still writing.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TypeAlias, TypeVar

from cordwood.errors import CordwoodError, StorageError
from cordwood.index import HeaderDigest, Source
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import ReadableFile
from cordwood.message_text import first_names
from cordwood.storage.locations import Url
from cordwood.storage.object_stores.conditional_writes import (
    replace_object,
    require_conditional_writes,
)
from cordwood.storage.object_stores.list_objects import object_names
from cordwood.storage.object_stores.object_pool import missing_objects
from cordwood.storage.object_stores.object_sidecars import (
    PROBE,
    REMOVAL_LIST,
    is_beside,
    name_beside,
    read_removal_list,
    write_sidecar,
)
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_uploads import upload_objects
from cordwood.storage.object_stores.request_loop import POLL_SECONDS, call_in_thread
from cordwood.storage.object_stores.stored_objects import StoredObject
from cordwood.storage.storage_protocol import (
    IndexChange,
    MissingDataError,
    NamingRules,
    NewDataFile,
    wait_until_visible,
)
from cordwood.threads.log import log
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_pool import together

T = TypeVar("T")

# The index, and its sidecars by name, or why one could not be read.
_Before: TypeAlias = tuple[StoredObject, dict[str, StoredObject | Exception]]


class _IndexReplacedError(StorageError):
    """Another save has replaced the index since this one wrote it."""


class ObjectTransaction:
    """A save in progress."""

    def __init__(self, store: ObjectStore, rules: NamingRules, *, others_commit: bool) -> None:
        self._store = store
        self._rules = rules
        self._others_commit = others_commit
        self._perhaps_committed = False
        self._written: list[str] = []
        self._probes: list[str] = []
        # Asked while the leaves are hashed and sent; no object is complete before the conditions.
        self._conditions: Future[None] | None = None
        self._before: Future[_Before] | None = None
        if not others_commit:
            self._conditions = _begin(
                partial(require_conditional_writes, self._store, rules.index_name)
            )
            self._before = _begin(self._read_before)

    @property
    def place(self) -> Url:
        return self._store.url

    def create_probe(self) -> str:
        name = name_beside(self._rules, PROBE)
        self._probes.append(name)
        self._store.write(name, b"")
        return name

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool:
        def probe_exists() -> bool:
            return self._store.read(probe, limit_bytes=1).data is not None

        return wait_until_visible(probe_exists, probe, timeout_seconds=timeout_seconds)

    def list_replaced(self, names: Sequence[str]) -> str:
        """Write the list of objects that go after the commit, for `collect`; return its name."""
        name = name_beside(self._rules, REMOVAL_LIST)
        self._written.append(name)
        self._store.write(name, "\n".join(names).encode())
        return name

    def write(self, files: Sequence[NewDataFile], leaves: Leaves) -> list[HeaderDigest]:
        self._written += [file.name for file in files]
        header_digests = upload_objects(self._store, files, leaves, ready=self._require_conditions)
        self._perhaps_committed = self._others_commit  # once the caller has reported it
        return header_digests

    def _require_conditions(self) -> None:
        """Raise UnsupportedFormatError if the store has no conditional writes."""
        if self._conditions is not None:
            _wait(self._conditions)

    def link(self, folder: str, name: str) -> bool:  # noqa: ARG002
        return False

    def open_linked(self, source: Source) -> ReadableFile:
        raise FileNotFoundError(errno.ENOENT, "object stores have no links", source.name)

    def unlink_later(self, name: str) -> None:
        """Do nothing: there are no links."""

    def commit(self, update: Callable[[bytes | None], IndexChange]) -> None:
        rules, store = self._rules, self._store
        self._require_conditions()
        assert self._before is not None
        index, sidecars = _wait(self._before)
        # Readers of an index that is there must not get one whose data is gone already. Where there
        # is none yet, `_confirm` is enough.
        missing_written = self._missing_objects(self._written) if index.data else []
        old: bytes | None = None
        change: IndexChange | None = None
        dropped: set[str] = set()

        def new_index(data: bytes | None) -> bytes:
            nonlocal old, change
            old, change = data, update(data)
            dropped.update(change.dropped)
            self._require(change.added, missing_written)
            self._perhaps_committed = True  # the answer to the write may be lost
            return change.new_index

        limit_bytes = rules.max_index_bytes
        tag = replace_object(
            store, rules.index_name, new_index, limit_bytes=limit_bytes, stored=index
        )
        assert change is not None
        again: StoredObject | Exception | None = None
        if all(
            data is None and _is_absent(sidecars.get(name))
            for name, data in change.sidecars.items()
        ):
            self._confirm(change, old)
        else:
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
                write_sidecar(store, rules, name, data, tag, sidecar, again)
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

    def _read_before(self) -> _Before:
        """Return the index and the sidecars that this save replaces."""
        return together(partial(self._read, self._rules.index_name), self._read_sidecars)

    def _require(self, added: Mapping[str, int], missing_written: Sequence[str]) -> None:
        """Raise an error if `collect` has removed, or will remove, what was written.

        Args:
            added: the objects that the index refers to from now on.
            missing_written: those that this process has written and that are missing.
        """
        others = set(added).difference(self._written)
        missing = [*added.keys() & missing_written, *self._missing_objects(others)]
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
                "data for a killed save's; verify tells: %s",
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
            names = object_names(self._store)
            lists = [name for name in names if is_beside(self._rules, REMOVAL_LIST, name)]
            contents = [read_removal_list(self._store, name) for name in lists]
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


def _is_absent(stored: StoredObject | Exception | None) -> bool:
    return isinstance(stored, StoredObject) and stored.tag is None


def _begin(call: Callable[[], T]) -> Future[T]:
    """Call a function in a thread of its own; `_wait` returns its result."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as e:  # noqa: BLE001  (raised by `_wait`)
            result.set_exception(e)

    context = copy_context()

    def run_in_context() -> None:
        context.run(run)

    if call_in_thread(run_in_context) is None:
        run_in_context()
    return result


def _wait(future: Future[T]) -> T:
    while not wait([future], timeout=POLL_SECONDS).done:
        check_stop()
    return future.result()
