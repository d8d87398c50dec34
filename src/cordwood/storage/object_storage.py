"""Storage in an object store: data objects and an index below one URL.

There are no locks. Data objects have unique names and are written whole; the index is replaced by a
conditional write, which is repeated until no other writer comes first. A save removes only the
objects that its own replacement of the index has left without a reference: other objects without a
reference may belong to a save that is still writing. Only `collect` removes such objects, if their
save began longer than GRACE_SECONDS ago. Clocks may be wrong, so `collect` first writes an object
that lists what it is going to remove, and a save looks for such lists after it has replaced the
index. docs/design/0002-directories.md has the argument.

Byte ranges of an object are read by concurrent requests.

One file, because what a save writes and what `collect` removes follow one rule.
"""

from __future__ import annotations

import errno
import io
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

import numpy as np

from cordwood.encoding.cordwood_metadata import digest_of, digests_of
from cordwood.errors import CordwoodError, CorruptionError, StorageError, TruncatedError
from cordwood.index import HeaderDigest, Source
from cordwood.io.leaves_to_write import FileContents, Leaves
from cordwood.io.open_files import Closable, ReadableFile
from cordwood.io.threads import check_stop
from cordwood.message_text import first_names
from cordwood.plan.assign_to_files import FileSizes
from cordwood.plan.file_plan import FilePlan, build_header, segment_offsets
from cordwood.storage.object_store_client import (
    ObjectStore,
    Request,
    StoredObject,
    replace_object,
    require_conditional_writes,
    write_if_unchanged,
)
from cordwood.storage.paths import Url, new_save_id, start_seconds_of
from cordwood.storage.storage_protocol import (
    IndexChange,
    NamingRules,
    NewDataFile,
    wait_until_visible,
)

_PART_BYTES = 4 << 20  # the size of one request
_READS_IN_FLIGHT = 8  # the most concurrent requests of one call
IN_FLIGHT_BYTES = 256 << 20  # the most bytes in concurrent requests of one call that writes


class ObjectFile(Closable):
    """An object of known size, as a file.

    The size is given by the index, and checked before the first read.

    Raises CorruptionError and TruncatedError if the object is missing or has another size.
    """

    name: str
    size_bytes: int
    latency_bound = True
    _checked = False

    def __init__(self, store: ObjectStore, name: str, size_bytes: int) -> None:
        self.name = store.url_of(name)
        self.size_bytes = size_bytes
        self._store = store
        self._key = name

    def read(self, offset: int, length: int) -> bytes:
        whole = bytearray(length)
        self.read_into(offset, [memoryview(whole)])
        return bytes(whole)

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        total = sum(map(len, views))
        self._require(offset, total)
        end = offset + total
        started: deque[Request[StoredObject]] = deque()
        unfilled = deque(views)
        for start in range(offset, end, _PART_BYTES):
            if len(started) == _READS_IN_FLIGHT:
                _scatter(self._finish(started.popleft()), unfilled)
            stop, doing = min(start + _PART_BYTES, end), f"reading it at byte {start}"
            started.append(self._store.start_read(self._key, start, stop, doing=doing))
        for request in started:
            _scatter(self._finish(request), unfilled)

    def map(self) -> NoReturn:
        raise io.UnsupportedOperation(
            f"{self.name}: an object in a store cannot be mapped; load it without mmap=True"
        )

    def _require(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0:
            raise ValueError(f"{self.name}: cannot read {length} bytes at offset {offset}")
        if offset + length > self.size_bytes:
            raise TruncatedError(
                f"{self.name}: expected {length} bytes at offset {offset}, found "
                f"{max(0, self.size_bytes - offset)}: it is shorter than what it promises"
            )
        if not self._checked:
            self._check_size()
            self._checked = True

    def _check_size(self) -> None:
        has_byte_at = self._store.has_byte_at
        longer = has_byte_at(self._key, self.size_bytes)
        if longer is None:
            raise self._missing()
        if longer or (self.size_bytes and not has_byte_at(self._key, self.size_bytes - 1)):
            kind = CorruptionError if longer else TruncatedError
            raise kind(
                f"{self.name}: expected {self.size_bytes} bytes, found "
                f"{'more' if longer else 'fewer'}: it is damaged or belongs to another checkpoint; "
                "copy or save it again"
            )

    def _missing(self) -> CorruptionError:
        return CorruptionError(
            f"{self.name} is missing: the checkpoint is incomplete; copy or save it again"
        )

    def _finish(self, request: Request[StoredObject]) -> bytes:
        data = request.result().data
        if data is None:
            raise self._missing()
        return data


def _scatter(data: bytes, unfilled: deque[memoryview]) -> None:
    """Fill byte views one after another, and remove them from the queue as they are full."""
    source = np.frombuffer(data, np.uint8)
    while len(source):
        view = unfilled.popleft()
        count = min(len(view), len(source))
        np.copyto(np.frombuffer(view[:count], np.uint8), source[:count])
        source = source[count:]
        if count < len(view):
            unfilled.appendleft(view[count:])


def write_objects(
    store: ObjectStore, files: Iterable[NewDataFile], leaves: Leaves
) -> list[HeaderDigest]:
    """Write objects with several concurrent requests; all are stored when this returns.

    At most IN_FLIGHT_BYTES, or one object, are in flight. While an object is passed to TensorStore,
    which copies it, it is in memory three times. After an exception no more requests are started,
    and those in flight are waited for, so that the caller can delete all objects.

    Returns the digests of their headers.
    """
    started: deque[tuple[int, Request[bytes | None]]] = deque()
    header_digests: list[HeaderDigest] = []
    failure: BaseException | None = None
    bytes_in_flight = 0

    def finish_oldest() -> None:
        nonlocal bytes_in_flight
        size, request = started.popleft()
        bytes_in_flight -= size
        request.result()

    try:
        for name, plan in files:
            while started and bytes_in_flight + plan.size_bytes > IN_FLIGHT_BYTES:
                finish_oldest()
            data = build_object(plan, leaves)
            header = memoryview(data)[: plan.header_bytes]
            header_digests.append(HeaderDigest(plan.header_bytes, digest_of(header)))
            started.append((len(data), store.start_write(name, data)))
            bytes_in_flight += len(data)
            del data, header
    except BaseException as e:  # noqa: BLE001  (raised below, once no request is in flight)
        failure = e
    while started:
        try:
            finish_oldest()
        except BaseException as e:  # noqa: BLE001
            failure = failure or e
    if failure is not None:
        raise failure
    return header_digests


def build_object(plan: FilePlan, leaves: Leaves) -> bytes:
    """Return the bytes of an object: filled with the leaves, hashed and sealed.

    Raises ValueError for a plan whose sizes disagree with each other or with the leaves.
    """
    ends = segment_offsets(plan)
    whole = io.BytesIO()  # `getvalue` returns its memory as bytes, without a copy
    if plan.size_bytes:
        whole.seek(plan.size_bytes - 1)
        whole.write(b"\0")
    with whole.getbuffer() as view:
        if len(view) > plan.header_bytes:
            FileContents(plan.segments, ends, leaves.part).fill(view[plan.header_bytes :], 0, 0)
        if plan.make_header is not None:
            digests = digests_of(view[plan.header_bytes :], start=plan.header_bytes)
            view[: plan.header_bytes] = build_header(plan, digests)
    return whole.getvalue()


_log = logging.getLogger("cordwood")

GRACE_SECONDS = 24 * 3600  # an older save that has not ended is taken for dead
_MAX_LIST_BYTES = 1 << 30


class ObjectStorage:
    """All objects below a URL, and the naming rules of their format."""

    has_links = False
    # An object is written whole, from memory.
    file_sizes = FileSizes(pack_bytes=64 << 20, max_packs=512, part_bytes=256 << 20)

    def __init__(self, url: Url, rules: NamingRules) -> None:
        self.name = str(url)
        self._store = ObjectStore(url)
        self._rules = rules

    def read_index(self) -> bytes | None:
        return self.read_sidecar(self._rules.index_name)

    def read_sidecar(self, name: str) -> bytes | None:
        return self._store.read(name, limit_bytes=self._rules.max_index_bytes).data

    def open(self, sources: Sequence[Source]) -> list[ReadableFile]:
        return [ObjectFile(self._store, source.name, source.size_bytes) for source in sources]

    def names(self) -> list[str]:
        return sorted({name.split("/")[0] for name in self._store.names()} - {""})

    @contextmanager
    def transaction(
        self,
        *,
        others_commit: bool,
        timeout_seconds: float | None = None,  # noqa: ARG002  (there are no locks to wait for)
    ) -> Iterator[ObjectTransaction]:
        if not others_commit:
            require_conditional_writes(self._store, self._rules.index_name)
        save = ObjectTransaction(self._store, self._rules, others_commit=others_commit)
        try:
            yield save
        except BaseException:
            save.abandon()
            raise
        finally:
            save.release()

    def wait_for_commit(self) -> None:
        """Do nothing: without locks a commit in progress cannot be noticed."""

    def collect(self, *, dry_run: bool) -> list[str]:
        store, rules = self._store, self._rules
        names = store.names()
        if not names:
            raise FileNotFoundError(errno.ENOENT, "there is nothing there", self.name)
        old = [name for name in names if self._is_old(name)]
        removed = self._unreferenced(old)
        if removed and not dry_run:
            list_name = _name_beside(rules, _REMOVAL_LIST)
            store.write(list_name, "\n".join(removed).encode())
            # A save that replaces the index after this sees the list, and fails.
            removed = self._unreferenced(removed)
            store.delete(removed)
            store.delete([list_name])
        others = [name for name in names if name not in removed]
        return removed + self._collect_remains(others, dry_run=dry_run)

    def _is_old(self, name: str) -> bool:
        """Return True for data and probes of saves that began longer than GRACE_SECONDS ago."""
        if not self._rules.is_data_file(name) and not _is_beside(self._rules, _PROBE, name):
            return False
        began = start_seconds_of(name)
        return began is not None and time.time() - began > GRACE_SECONDS

    def _unreferenced(self, names: Sequence[str]) -> list[str]:
        kept = self._rules.kept_files(self.read_index())
        return [name for name in names if name not in kept]

    def _collect_remains(self, names: Sequence[str], *, dry_run: bool) -> list[str]:
        """Remove the small objects that interrupted deletions have left."""
        store, rules = self._store, self._rules
        lists = [name for name in names if _is_beside(rules, _REMOVAL_LIST, name)]
        gone = [name for name in lists if not set(_listed(store, name) or [""]) & set(names)]
        remains = [name for name in names if name not in gone]
        if set(remains) <= set(rules.sidecars):
            for name in remains:
                stored = store.read(name, limit_bytes=rules.max_index_bytes)
                if not _is_map_of_old_data(stored.data or b"", rules):
                    continue
                if dry_run or write_if_unchanged(store, name, None, stored.generation) is not None:
                    gone.append(name)
        if not dry_run:
            store.delete([name for name in gone if name in lists])
        return gone


class ObjectTransaction:
    """A save in progress."""

    def __init__(self, store: ObjectStore, rules: NamingRules, *, others_commit: bool) -> None:
        self._store = store
        self._rules = rules
        self._others_commit = others_commit
        self._perhaps_committed = False
        self._written: list[str] = []
        self._marks: list[str] = []

    def create_probe(self) -> str:
        name = _name_beside(self._rules, _PROBE)
        self._marks.append(name)
        self._store.write(name, b"")
        return name

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool:
        def is_there() -> bool:
            return self._store.read(probe, limit_bytes=1).data is not None

        return wait_until_visible(is_there, probe, timeout_seconds=timeout_seconds)

    def write(self, files: Sequence[NewDataFile], leaves: Leaves) -> list[HeaderDigest]:
        header_digests = write_objects(self._store, self._record_names(files), leaves)
        self._perhaps_committed = self._others_commit  # once the caller has reported it
        return header_digests

    def _record_names(self, files: Sequence[NewDataFile]) -> Iterator[NewDataFile]:
        for file in files:
            check_stop()
            self._written.append(file.name)
            yield file

    def link(self, folder: str, name: str) -> bool:  # noqa: ARG002
        return False

    def unlink_later(self, name: str) -> None:
        """Do nothing: there are no links."""

    def commit(self, update: Callable[[bytes | None], IndexChange]) -> None:
        rules, store = self._rules, self._store
        old: bytes | None = None
        change: IndexChange | None = None
        dropped: set[str] = set()

        def new_index(data: bytes | None) -> bytes:
            nonlocal old, change
            old, change = data, update(data)
            dropped.update(change.dropped)
            self._require(change.added)
            self._perhaps_committed = True  # the answer to the write may be lost
            return change.new_index

        generation = replace_object(
            store, rules.index_name, new_index, limit_bytes=rules.max_index_bytes
        )
        assert change is not None
        self._confirm(change, old)
        for name, data in change.sidecars.items():
            try:
                self._write_sidecar(name, data, generation)
            except Exception as e:  # noqa: BLE001  (the tree is saved)
                _log.warning(
                    "%s is saved, but %s was not brought in line with it, and tools that read that "
                    "find the tree before, or none: %s",
                    store.url,
                    name,
                    e,
                )
        unreferenced = sorted(dropped - change.kept)
        try:
            store.delete(unreferenced)
        except Exception as e:  # noqa: BLE001  (the tree is saved)
            _log.warning(
                "%s is saved, but not all of %d objects that it replaces were deleted; gc removes "
                "them a day after they were saved: %s",
                store.url,
                len(unreferenced),
                e,
            )

    def _require(self, added: Mapping[str, int]) -> None:
        """Raise StorageError if `collect` has removed, or will remove, what was written."""
        missing = self._taken(added)
        if missing:
            raise self._error(missing, "what was there before is untouched")

    def _confirm(self, change: IndexChange, old: bytes | None) -> None:
        """Check again, now that the index refers to what was written.

        A `collect` that read the index before the replacement has written its list before it.
        """
        try:
            taken = self._taken(change.added)
        except (OSError, CordwoodError) as e:
            _log.warning(
                "%s is saved, but it could not be looked whether a gc at the same time took its "
                "data for a dead save's; verify tells: %s",
                self._store.url,
                e,
            )
            return
        if not taken:
            return
        try:
            self._put_back(change.new_index, old)
        except (OSError, CordwoodError) as e:
            raise self._error(taken, "the index refers to it; save again") from e
        self._perhaps_committed = False
        raise self._error(taken, "what was there before is there again")

    def _put_back(self, new: bytes, old: bytes | None) -> None:
        """Restore the old index. Raises StorageError if another save has replaced it."""

        def update(data: bytes | None) -> bytes | None:
            if data not in (new, old):
                raise StorageError(errno.EBUSY, "another save has replaced the index meanwhile")
            return old

        limit = self._rules.max_index_bytes
        replace_object(self._store, self._rules.index_name, update, limit_bytes=limit)

    def _taken(self, added: Collection[str]) -> list[str]:
        """Return the names of data objects that were removed, or are listed for removal."""
        while True:
            names = self._store.names()
            lists = [name for name in names if _is_beside(self._rules, _REMOVAL_LIST, name)]
            contents = [_listed(self._store, name) for name in lists]
            if None not in contents:  # else a `collect` has ended meanwhile: list the names again
                condemned = {name for listed in contents for name in listed or ()}
                return sorted(set(added) - (set(names) - condemned))

    def _error(self, taken: Sequence[str], state: str) -> StorageError:
        return StorageError(
            errno.EIO,
            f"expected {first_names(taken, 1)}, found nothing: the process that wrote it died, "
            "does not write to this store, or took longer than gc allows (a day, also by a clock "
            f"that is wrong); {state}",
            str(self._store.url),
        )

    def _write_sidecar(self, name: str, data: bytes | None, generation: bytes) -> None:
        """Update a sidecar object to match the index, unless a later save has replaced the index.

        The index is checked between the read of the object and its conditional replacement. So of
        two saves the one that replaced the index last also writes the sidecar last.
        """

        class Overtaken(Exception):
            pass

        def update(_: bytes | None) -> bytes | None:
            if self._store.generation(self._rules.index_name) != generation:
                raise Overtaken
            return data

        with suppress(Overtaken):
            replace_object(self._store, name, update, limit_bytes=self._rules.max_index_bytes)

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
            self._store.delete(self._marks)


_PROBE, _REMOVAL_LIST = "tmp", "gc"  # the kinds of temporary objects, by the end of their names


def _name_beside(rules: NamingRules, kind: str) -> str:
    return f".{rules.index_name}.cordwood-{new_save_id()}.{kind}"


def _is_beside(rules: NamingRules, kind: str, name: str) -> bool:
    pattern = rf"\.{re.escape(rules.index_name)}\.cordwood-[0-9a-f]{{16}}\.{kind}"
    return re.fullmatch(pattern, name) is not None


def _listed(store: ObjectStore, name: str) -> list[str] | None:
    """Return the names in the list of a `collect`; None if the list is gone: it has ended."""
    data = store.read(name, limit_bytes=_MAX_LIST_BYTES).data
    return None if data is None else data.decode("utf-8", "replace").split("\n")


def _is_map_of_old_data(text: bytes, rules: NamingRules) -> bool:
    """Return True if a sidecar file refers to old data only."""
    names = [each.decode() for each in re.findall(rb'"([!-~]+\.safetensors)"', text)]
    began = [start_seconds_of(name) if rules.is_data_file(name) else None for name in names]
    return bool(began) and all(
        each is not None and time.time() - each > GRACE_SECONDS for each in began
    )
