"""Storage in an object store: data objects and an index below one URL.

There are no locks. Only `collect` removes objects that no save has referred to, if they were
written longer than GRACE_SECONDS ago. A save may take longer, and clocks may be wrong, so
`collect` first writes an object that lists what it is going to remove, and a save looks for such
lists after it has replaced the index. docs/design/0002-directories.md has the argument.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from cordwood.errors import CordwoodError, UnsupportedFormatError
from cordwood.index import Source
from cordwood.io.open_files import ReadableFile
from cordwood.plan.cells import FileSizes
from cordwood.storage.entry_content import is_written_beside_index, refers_only_to_data
from cordwood.storage.locations import Url
from cordwood.storage.object_stores.conditional_writes import require_conditional_writes
from cordwood.storage.object_stores.list_objects import list_children, list_objects
from cordwood.storage.object_stores.object_file import ObjectFile
from cordwood.storage.object_stores.object_pool import (
    GRACE_SECONDS,
    ObjectPool,
    is_old,
    missing_objects,
)
from cordwood.storage.object_stores.object_sidecars import (
    PROBE,
    REMOVAL_LIST,
    is_beside,
    name_beside,
    read_removal_list,
    write_sidecar,
)
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_transaction import ObjectTransaction
from cordwood.storage.object_stores.request_loop import POLL_SECONDS
from cordwood.storage.object_stores.stored_objects import ObjectEntry, Tag
from cordwood.storage.paths import POOL
from cordwood.storage.removal.list_tree import Listing
from cordwood.storage.storage_protocol import (
    Garbage,
    NamingRules,
    OptionalSidecarsOf,
    SidecarsOf,
)
from cordwood.threads.log import log
from cordwood.threads.stop_check import check_stop

_COMMIT_SECONDS = 5  # between the writes of the index and of a sidecar of one commit


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

    def read_optional_sidecar(self, name: str) -> bytes | None:
        return self.read_sidecar(name)

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
        return list_children(self._store)

    @contextmanager
    def transaction(
        self,
        *,
        others_commit: bool,
        timeout_seconds: float | None = None,  # noqa: ARG002  (there are no locks to wait for)
        page_cache: bool = False,  # noqa: ARG002  (nothing is written to a disk)
        staged: bool = False,  # noqa: ARG002  (a store has no directories)
        replaces: Listing | None = None,
        resumes: str = "",  # noqa: ARG002
    ) -> Iterator[ObjectTransaction]:
        save = ObjectTransaction(self._store, self._rules, others_commit=others_commit)
        stamps = {} if replaces is None else replaces.stamps
        replaced = {name: tag for name, tag in stamps.items() if self._is_foreign(name)}
        try:
            removal_list = save.list_replaced([*replaced]) if replaced else ""
            yield save
            if replaced:
                self._delete_replaced(replaced, removal_list)
        except BaseException:
            save.abandon()
            raise
        finally:
            save.release()

    def _is_foreign(self, name: str) -> bool:
        """Return True for the name of an object that no save of this format writes."""
        small = (self._rules.index_name, *self._rules.sidecars)
        return name not in small and not is_written_beside_index(name, self._rules)

    def _delete_replaced(self, replaced: Mapping[str, Hashable], removal_list: str) -> None:
        """Delete the objects of another tool that a checkpoint has replaced, if still the same.

        Args:
            replaced: their names and tags.
            removal_list: the object that lists them, which goes last.
        """
        try:
            tags = {each.name: each.tag for each in list_objects(self._store)}
            self._store.delete(
                sorted(name for name in replaced if tags.get(name) == replaced[name])
            )
            self._store.delete([removal_list])
        except (OSError, CordwoodError) as e:  # the tree is saved
            log.warning(
                "%s is saved, but not all of the objects that it replaces were deleted; gc deletes "
                "them: %s",
                self.name,
                e,
            )

    def _finish_replacement(self, names: Collection[str], *, dry_run: bool) -> list[str]:
        """Delete what a save that was killed after its commit has replaced; return the names."""
        lists = [name for name in names if is_beside(self._rules, REMOVAL_LIST, name)]
        if not lists or self.read_index() is None:
            return []
        listed = {name for each in lists for name in read_removal_list(self._store, each) or ()}
        replaced = sorted(filter(self._is_foreign, listed.intersection(names)))
        if not dry_run:
            self._store.delete(replaced)
        return replaced

    def flush(self) -> None:
        """Do nothing: what a store has confirmed is durable."""

    def wait_for_commit(self, is_whole: Callable[[], bool]) -> None:
        """Look again for some seconds: without locks a commit in progress cannot be noticed."""
        deadline = time.monotonic() + _COMMIT_SECONDS
        while not is_whole() and time.monotonic() < deadline:
            check_stop()
            time.sleep(POLL_SECONDS)

    def collect(
        self,
        *,
        dry_run: bool,
        sidecars_of: SidecarsOf | None = None,
        optional_sidecars_of: OptionalSidecarsOf | None = None,  # noqa: ARG002  (there are no links)
    ) -> Garbage:
        store, rules = self._store, self._rules
        if POOL in store.url.key.split("/"):
            raise UnsupportedFormatError(
                f"{self.name}: the objects there belong to the steps of a run; gc its root"
            )
        pool = ObjectPool(store, rules)
        entries = list_objects(store, may_skip=pool.is_no_step)
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
            list_name = name_beside(rules, REMOVAL_LIST)
            store.write(list_name, "\n".join(removed).encode())
            # A save that replaces the index after this sees the list, and fails.
            removed = self._unreferenced(removed)
            store.delete(removed)
            store.delete([list_name])
        removed += self._finish_replacement(objects, dry_run=dry_run)
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
                    write_sidecar(store, self._rules, name, data, index.tag, sidecar)
        return tuple(rewritten)

    def _is_temporary(self, name: str) -> bool:
        """Return True for names of data and probes, which a save that died may have left."""
        return self._rules.is_data_file(name) or is_beside(self._rules, PROBE, name)

    def _unreferenced(self, names: Sequence[str]) -> list[str]:
        kept = self._rules.kept_files(self.read_index())
        return [name for name in names if name not in kept]

    def _collect_remains(self, entries: Sequence[ObjectEntry], *, dry_run: bool) -> list[str]:
        """Remove the small objects that interrupted deletions have left."""
        store, rules = self._store, self._rules
        names = [each.name for each in entries]
        lists = [name for name in names if is_beside(rules, REMOVAL_LIST, name)]
        removable = [
            name for name in lists if not set(read_removal_list(store, name) or [""]) & set(names)
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
