"""A save to a directory of a local disk: data files, then the index, under a lock.

A data file is created under its final name, and locked until its save ends. The index is replaced
under a lock, and files that it no longer refers to are removed under the same lock; data files that
no index has referred to yet are removed only if their own lock is free. So concurrent saves do not
lose each other's data, and nothing that a running save has written is removed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from cordwood.encoding.digests import digest_of
from cordwood.errors import CordwoodError, StorageError
from cordwood.index import HeaderDigest, Source
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import ReadableFile
from cordwood.io.page_cache import fits_page_cache
from cordwood.storage import syscalls
from cordwood.storage.atomic_file import SaveStep, WritableFile, remove_stale_temporaries
from cordwood.storage.directories import (
    make_ancestors,
    remove_directories,
    sync_directory,
    sync_parent,
)
from cordwood.storage.file_rights import creation_mode, limit_file, rights_of
from cordwood.storage.local_directory import LocalDirectory, open_directory_files
from cordwood.storage.locations import LocalPath
from cordwood.storage.locks.file_locks import link_under_shared_lock, remove_unlocked, unlock
from cordwood.storage.locks.lock_files import locked
from cordwood.storage.optional_sidecars import (
    flush_folders,
    read_optional_sidecar,
    remove_optional_sidecars,
    require_free_paths,
    write_optional_sidecars,
)
from cordwood.storage.paths import temporary_path, temporary_pattern, temporary_prefix
from cordwood.storage.read_small_file import read_small_file
from cordwood.storage.removal.list_tree import Listing
from cordwood.storage.staging.collect_stages import remove_unused
from cordwood.storage.staging.staging_directory import StagingDirectory
from cordwood.storage.storage_protocol import (
    IndexChange,
    MissingDataError,
    NamingRules,
    NewDataFile,
    Sidecar,
    wait_until_visible,
)
from cordwood.storage.syscalls import open_directory_fd
from cordwood.storage.write_files import fill_file
from cordwood.threads.stop_check import never_stop, stop_check

_ABANDON_SECONDS = 10.0  # the longest wait of a failed save for the lock, to remove its files
_ATTEMPTS = 100  # to create a file in a directory that other processes keep removing


class LocalTransaction(SaveStep):
    """A save in progress."""

    def __init__(
        self,
        path: str,
        rules: NamingRules,
        others_commit: bool,
        timeout_seconds: float | None,
        *,
        page_cache: bool = False,
    ) -> None:
        self._page_cache = page_cache
        self._timeout_seconds = timeout_seconds
        self._path = path
        self._rules = rules
        self._others_commit = others_commit
        self._perhaps_committed = False
        self._made: list[str] = []
        self._files: list[WritableFile] = []
        self._small: list[WritableFile] = []
        self._links: dict[str, int | None] = {}  # with the descriptors that hold their locks
        self._new_links: set[str] = set()  # the names of links that did not exist before
        self._flushed: set[str] = set()  # the names in the directory that are durable
        self._probes: list[WritableFile] = []
        self._stage: StagingDirectory | None = None
        self._is_complete = False  # True once the staging directory may have an index
        self._replaces: Listing | None = None

    def begin_stage(self, replaces: Listing | None, *, resumes: str) -> None:
        """Write to a new directory, which gets its name at the commit, with all that is in it.

        `replaces` is what has that name until then, and is removed; None: nothing has it. `resumes`
        is as in `StagingDirectory`.
        """
        self._replaces = replaces
        self._enter_stage(
            StagingDirectory(self._path, timeout_seconds=self._timeout_seconds, resumes=resumes)
        )

    def _enter_stage(self, stage: StagingDirectory, *, probe: str = "") -> None:
        self._stage = stage
        self.doing = "creating a directory beside it"
        if probe:
            stage.sees_probe(probe, timeout_seconds=0)
        else:
            stage.begin()
        self._path = stage.path

    @property
    def place(self) -> LocalPath:
        return LocalPath(self._path)

    def create_probe(self) -> str:
        if self._stage is not None:
            return os.path.basename(self._stage.path)
        # It is named like a temporary file of the index, so a later save or gc removes it.
        name = os.path.basename(temporary_path(self._path, self._rules.index_name))
        self._create(name)
        self._probes.append(self._files.pop())
        return name

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool:
        parent, name = os.path.split(self._path)
        is_stage = temporary_pattern(name, "stage").fullmatch(probe) is not None
        path = f"{parent if is_stage else self._path}/{probe}"
        seen = wait_until_visible(
            lambda: os.path.lexists(path), path, timeout_seconds=timeout_seconds
        )
        if seen and is_stage:  # process 0 has begun one
            self._enter_stage(StagingDirectory(self._path), probe=probe)
        return seen

    def write(self, files: Sequence[NewDataFile], leaves: Leaves) -> list[HeaderDigest]:
        calls = syscalls.current()
        sealed = []
        size_bytes = sum([plan.size_bytes for _, plan in files])
        direct = not (self._page_cache and fits_page_cache(size_bytes))
        for name, plan in files:
            file = self._create(name)
            try:
                header = fill_file(file, plan, leaves, direct=direct)
                # Never retried: see `storage.atomic_file.atomic_file`.
                file.doing = "flushing it to the disk"
                calls.fsync(file.fd)
            except OSError:
                self.doing = f"{file.doing} ({name})"
                raise
            sealed.append(HeaderDigest(len(header), digest_of(header)))
        if sealed or self._links:
            self._flush_names([file.name for file in files] + [*self._links])
        self._perhaps_committed = self._others_commit  # once the caller has reported it
        return sealed

    def _flush_names(self, names: Iterable[str]) -> None:
        self.doing = "flushing its directory to the disk"
        sync_directory(self._path)
        self._flushed.update(names)

    def _create(self, name: str) -> WritableFile:
        """Create a new file of that name, and lock it."""
        for _ in range(_ATTEMPTS):
            self.doing = "creating its directory"
            make_ancestors(self._path, self._made)
            self.doing = f"creating {name}"
            file = WritableFile(f"{self._path}/{name}")
            self._files.append(file)
            try:
                file.open()
                if file.lock():
                    file.doing = "writing"
                    return file
                file.close()
            except FileNotFoundError:
                pass  # a failed save has removed the directory that it had made
            self._files.pop()
        raise StorageError(errno.EBUSY, f"other processes keep removing {name}", self._path)

    def link(self, folder: str, name: str) -> bool:
        path = f"{self._path}/{name}"
        self._links[name] = None
        for _ in range(_ATTEMPTS):
            self.doing = "creating its directory"
            make_ancestors(self._path, self._made)
            self.doing = f"linking {name}"
            is_new = not os.path.lexists(path)
            try:
                self._links[name] = link_under_shared_lock(f"{folder}/{name}", path)
            except FileNotFoundError:  # the file was deleted; or this directory, still empty
                if not os.path.isdir(self._path):
                    continue
            except OSError:
                pass  # no hard links here, or too many of this file
            break
        linked = self._links[name] is not None
        if linked and is_new:
            self._new_links.add(name)
        return linked

    def open_linked(self, source: Source) -> ReadableFile:
        with LocalDirectory(self._path) as directory:
            (file,) = open_directory_files(directory, [source])
        return file

    def unlink_later(self, name: str) -> None:
        fd, self._links[name] = self._links[name], None
        if fd is not None:
            unlock(fd)

    def commit(self, update: Callable[[bytes | None], IndexChange]) -> None:
        if self._stage is not None and self._commit_stage(self._stage, update):
            return
        self.doing = "creating its directory"
        make_ancestors(self._path, self._made)
        self.doing = "waiting for the lock of its directory"
        with locked(lock_of(self._path, self._rules), timeout_seconds=self._timeout_seconds):
            self.doing = "reading the index"
            old = read_local_index(self._path, self._rules)
            change = update(old)
            self._require(change.added)
            if old is not None:
                sync_parent(self._path)  # it has its name by a rename, and that save may be dead
            self._replace(change, old)
            with suppress(OSError):  # a later save, or gc, removes the rest
                self._clean(change)

    def _require(self, added: Mapping[str, int]) -> None:
        """Raise an error if files are missing: another save removes those of a dead process.

        Make durable that the others are there.
        """
        self.doing = "looking for what was written"
        for name, size_bytes in added.items():
            path = f"{self._path}/{name}"
            try:
                size = os.stat(path, follow_symlinks=False).st_size
            except FileNotFoundError:
                size = -1
            if size != size_bytes:
                what = "nothing" if size < 0 else f"{size} bytes"
                raise MissingDataError(
                    errno.EIO,
                    f"expected {size_bytes} bytes in {name}, found {what}: the process that wrote "
                    "it died, or does not write to this file system; what was there before is "
                    "untouched",
                    self._path,
                )
        if not added.keys() <= self._flushed:  # links, or files of another process
            self._flush_names(added)

    def _commit_stage(
        self, stage: StagingDirectory, update: Callable[[bytes | None], IndexChange]
    ) -> bool:
        """Complete the staging directory and give it its name.

        Returns False if there is another directory of that name by now, which is not empty: the
        data files were moved there, and are to be committed there.
        """
        self.doing = "waiting for the lock of its parent directory"
        with locked(stage.naming_lock, timeout_seconds=self._timeout_seconds):
            old = read_local_index(self._path, self._rules)  # of a copy that was killed
            change = update(old)
            self._require(change.added)
            self._is_complete = True
            self._replace(change, old)
            if not self._links.keys() <= change.kept:  # links that were given up
                with suppress(OSError):
                    self._clean(change)
                sync_directory(self._path)
            self.doing = "renaming its directory into place"
            replaced = None if self._replaces is None else stage.put_over(self._replaces)
            self.in_place = replaced is not None or stage.put_new()
            if self.in_place:
                self.doing = "flushing its parent directory to the disk"
                sync_directory(os.path.dirname(stage.target))
        if self.in_place:
            if replaced is not None:
                remove_unused(replaced, replaced=True)
            return True
        update(read_local_index(stage.target, self._rules))  # may refuse it
        for small in self._small:
            small.close()
        self._small.clear()
        self._flushed.clear()
        self.doing = "moving its data files into the directory that others have made"
        for name in change.added:
            syscalls.current().replace(f"{stage.path}/{name}", f"{stage.target}/{name}")
        for file in self._files:
            file.path = f"{stage.target}/{os.path.basename(file.path)}"
        self._path, self._stage = stage.target, None
        stage.abandon()
        return False

    def _replace(self, change: IndexChange, old: bytes | None) -> None:
        """Put the index in place, then the sidecar files.

        Optional sidecars that change are removed before, so that none is ever of an older index.
        """
        calls = syscalls.current()
        optional = change.optional_sidecars
        folders = [name for name, sidecar in optional.items() if sidecar is not None]
        before = self._rules.optional_sidecars(old) if old is not None else frozenset()
        require_free_paths(self._path, optional.keys() - before)
        optional = self._differing(optional)
        if not optional.keys().isdisjoint(before):
            self.doing = "removing the index of another tool"
            remove_optional_sidecars(self._path, optional)
        for name in small_names(self._rules):
            self.doing = "removing what a killed save left"
            remove_stale_temporaries(self._path, name)
        index = self._rules.index_name
        is_first = not os.path.lexists(f"{self._path}/{index}")
        self._write_temporaries({index: change.new_index, **change.sidecars})
        self.doing = f"renaming {index} into place"
        self._perhaps_committed = True  # an interrupt may come before `in_place` is set
        calls.replace(self._small[0].path, f"{self._path}/{index}")
        self.in_place = self._stage is None
        if (is_first and len(self._small) > 1) or optional:
            # Alone, the sidecars would make the directory a checkpoint of another tool.
            self._flush_names([index])
        self._rename_sidecars(change.sidecars, self._small[1:])
        self._write_optional(optional)
        if folders:  # also where a save that was killed has written all of them
            flush_folders(self._path, folders)

    def write_sidecars(
        self, sidecars: Mapping[str, bytes | None], optional: Mapping[str, Sidecar | None]
    ) -> None:
        """Replace sidecar files, under the lock of the directory; None removes one."""
        try:
            self._write_temporaries(sidecars)
            self._rename_sidecars(sidecars, self._small)
            if optional:
                remove_optional_sidecars(self._path, optional)
                self._write_optional(optional)
                flush_folders(self._path, optional)
        except BaseException:
            for small in self._small:
                small.remove()
            raise

    def _differing(self, sidecars: Mapping[str, Sidecar | None]) -> dict[str, Sidecar | None]:
        limit_bytes = self._rules.max_index_bytes
        return {
            name: sidecar
            for name, sidecar in sidecars.items()
            if sidecar != read_optional_sidecar(self._path, name, limit_bytes=limit_bytes)
        }

    def _write_optional(self, sidecars: Mapping[str, Sidecar | None]) -> None:
        self.doing = "writing the index of another tool"
        new = {name: sidecar for name, sidecar in sidecars.items() if sidecar is not None}
        if new:
            write_optional_sidecars(self._path, new, self._rules.index_name, self._small)

    def _write_temporaries(self, files: Mapping[str, bytes | None]) -> None:
        """Write temporary files for those that are not None, and flush them."""
        for name, data in files.items():
            if data is None:
                continue
            self.doing = f"writing {name}"
            small = WritableFile(temporary_path(self._path, name))
            self._small.append(small)
            old = rights_of(f"{self._path}/{name}")
            small.open(creation_mode(old, self._path))  # protected by the lock of the directory
            small.write(memoryview(data), 0)
            limit_file(small.fd, old, self._path)
            syscalls.current().fsync(small.fd)

    def _rename_sidecars(
        self, sidecars: Mapping[str, bytes | None], written: Iterable[WritableFile]
    ) -> None:
        """Put the sidecar files in place, and flush the directory."""
        calls = syscalls.current()
        temporaries = iter(written)
        for name, data in sidecars.items():
            if data is not None:
                self.doing = f"renaming {name} into place"
                calls.replace(next(temporaries).path, f"{self._path}/{name}")
            elif os.path.lexists(f"{self._path}/{name}"):
                self.doing = f"removing {name}"
                with open_directory_fd(self._path) as folder:  # follows no link in its place
                    calls.unlink(name, folder)
        self._flush_names(sidecars)

    def _clean(self, change: IndexChange) -> None:
        """Remove data files that the index does not refer to, as far as possible."""
        with open_directory_fd(self._path) as folder:
            names = os.listdir(folder)
            if read_local_index(self._path, self._rules, folder) != change.new_index:
                return  # the file system has no locks, and another save has replaced the index
            for name in names:
                if not self._rules.is_data_file(name) or name in change.kept:
                    continue
                if name in change.dropped:  # its save has ended, so it has no lock
                    with suppress(OSError):
                        syscalls.current().unlink(name, folder)
                else:
                    remove_unlocked(name, folder=folder, without_locks=name in self._new_links)

    def abandon(self) -> None:
        """Remove the files of this save, unless an index refers to them."""
        for small in (*self._small, *self._probes):
            small.remove()
        if self.in_place:
            return
        written = self._files
        if not self._perhaps_committed:
            for file in written:
                file.remove()
            written = []
        if written or self._links:  # other saves of this directory may use the same links
            with suppress(OSError, CordwoodError), stop_check(never_stop):
                lock = lock_of(self._path, self._rules)
                if self._stage is not None:
                    lock = self._stage.naming_lock
                with locked(lock, timeout_seconds=_ABANDON_SECONDS):
                    self._remove_unreferenced(written)
        remove_directories(self._made)
        if self._stage is not None:
            if self._is_complete:
                self._stage.abandon()
            else:  # another process may still write to it
                self._stage.remove_empty()

    def _remove_unreferenced(self, written: Sequence[WritableFile]) -> None:
        with open_directory_fd(self._path) as folder:
            referenced = self._rules.kept_files(read_local_index(self._path, self._rules, folder))
            for file in written:
                name = os.path.basename(file.path)
                if name not in referenced:
                    with suppress(OSError):
                        syscalls.current().unlink(name, folder)
            for name in self._links:
                self.unlink_later(name)
                if name not in referenced:
                    remove_unlocked(name, folder=folder, without_locks=name in self._new_links)

    def close(self) -> None:
        """Close, and so unlock, all files."""
        for file in (*self._files, *self._small, *self._probes):
            file.close()
        if self._stage is not None:
            self._stage.close()
        for name in self._links:
            self.unlink_later(name)

    def remove_probes(self) -> None:
        """Remove the probe files."""
        for probe in self._probes:
            probe.remove()


def lock_of(path: str, rules: NamingRules) -> str:
    """Return the path of the lock of a directory."""
    return f"{path}/{temporary_prefix(rules.index_name)}lock"


def flush_with_sidecars(path: str, rules: NamingRules) -> None:
    """Make durable what a directory holds; a save that was killed may not have done it."""
    sync_parent(path)  # its name may be new
    names: frozenset[str] = frozenset()
    with suppress(OSError, CordwoodError):
        index = read_local_index(path, rules)
        names = frozenset() if index is None else rules.optional_sidecars(index)
    flush_folders(path, names)


def small_names(rules: NamingRules) -> tuple[str, ...]:
    """Return the names of the index and its sidecars."""
    return (rules.index_name, *rules.sidecars)


def read_local_index(path: str, rules: NamingRules, folder: int | None = None) -> bytes | None:
    """Return the index of a directory; None if there is none."""
    limit_bytes = rules.max_index_bytes
    return read_small_file(path, rules.index_name, limit_bytes=limit_bytes, folder=folder)
