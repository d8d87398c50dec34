"""Storage in a directory of a local disk, or of a file system that several machines mount.

A data file is created under its final name, and locked until its save ends. The index is replaced
under a lock, and files that it no longer refers to are removed under the same lock; data files that
no index has referred to yet are removed only if their own lock is free. So concurrent saves do not
lose each other's data, and nothing that a running save has written is removed.

One file, because all operations depend on one order of locks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress

from cordwood.encoding.digests import digest_of
from cordwood.errors import CordwoodError, StorageError
from cordwood.index import HeaderDigest, Source
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import ReadableFile
from cordwood.io.page_cache import fits_page_cache
from cordwood.io.reopened_file import MAX_OPEN_FILES
from cordwood.plan.cells import FileSizes
from cordwood.storage import syscalls
from cordwood.storage.atomic_file import (
    SaveStep,
    WritableFile,
    creation_mode,
    limit_file,
    make_ancestors,
    remove_directories,
    remove_stale_temporaries,
    rights_of,
    sync_directory,
)
from cordwood.storage.directory_reader import (
    LocalDirectory,
    open_directory_files,
    read_small_file,
)
from cordwood.storage.entry_content import data_files_in
from cordwood.storage.file_locks import (
    is_locked,
    link_under_shared_lock,
    locked,
    remove_unlocked,
    unlock,
    wait_for_lock,
)
from cordwood.storage.locations import LocalPath
from cordwood.storage.paths import (
    stale_stages,
    temporary_of,
    temporary_path,
    temporary_pattern,
    temporary_prefix,
)
from cordwood.storage.staging_directory import collect_stages
from cordwood.storage.storage_protocol import (
    Garbage,
    IndexChange,
    MissingDataError,
    NamingRules,
    NewDataFile,
    SidecarsOf,
    wait_until_visible,
)
from cordwood.storage.syscalls import open_directory_fd
from cordwood.storage.write_files import fill_file
from cordwood.threads.stop_check import never_stop, stop_check

_ABANDON_SECONDS = 10.0  # the longest wait of a failed save for the lock, to remove its files
_ATTEMPTS = 100  # to create a file in a directory that other processes keep removing


class LocalStorage:
    """A directory, which need not exist yet, and the naming rules of its format."""

    has_links = True
    has_pool = False
    file_sizes = FileSizes(pack_bytes=1 << 30, max_packs=16, part_bytes=None)

    def __init__(self, path: str | os.PathLike[str], rules: NamingRules) -> None:
        self.name = os.fspath(path)
        self.location = LocalPath(self.name)
        self._path = os.path.realpath(path)
        self._rules = rules

    def read_index(self) -> bytes | None:
        return self.read_sidecar(self._rules.index_name)

    def read_sidecar(self, name: str) -> bytes | None:
        return read_small_file(self.name, name, limit_bytes=self._rules.max_index_bytes)

    def open(self, sources: Sequence[Source]) -> list[ReadableFile]:
        directory = LocalDirectory(self.name)
        if any(source.name.startswith("../") for source in sources):
            # A run that was copied from an object store as it is: its pool is beside the step.
            parent, name = os.path.split(os.path.realpath(self.name))
            directory = LocalDirectory(parent)
            paths = [os.path.normpath(f"{name}/{source.name}") for source in sources]
            sources = [
                source._replace(name=path) for source, path in zip(sources, paths, strict=True)
            ]
        if len(sources) > MAX_OPEN_FILES:
            return [directory.file(source.name, source.size_bytes) for source in sources]
        with directory:
            return open_directory_files(directory, sources)

    def missing(self, names: Collection[str]) -> list[str]:  # noqa: ARG002
        return []  # there is no pool

    def names(self) -> list[str]:
        with suppress(FileNotFoundError):
            return sorted(os.listdir(self._path))
        return []

    @contextmanager
    def transaction(
        self,
        *,
        others_commit: bool,
        timeout_seconds: float | None = None,
        page_cache: bool = False,
    ) -> Iterator[LocalTransaction]:
        save = LocalTransaction(
            self._path, self._rules, others_commit, timeout_seconds, page_cache=page_cache
        )
        if not others_commit and not os.path.lexists(f"{self._path}/{self._rules.index_name}"):
            with suppress(OSError):  # left by a killed first save in the zarr layout
                if stale_stages(self._path):
                    collect_stages(self._path, dry_run=False)
        try:
            with save.explain_errors(self.name, what="checkpoint"):
                yield save
            save.remove_probes()
        except BaseException:
            save.abandon()
            raise
        finally:
            save.close()

    def flush(self) -> None:
        sync_directory(self._path)

    def wait_for_commit(self, is_whole: Callable[[], bool]) -> None:
        del is_whole
        wait_for_lock(_lock_of(self._path, self._rules))

    def collect(self, *, dry_run: bool, sidecars_of: SidecarsOf | None = None) -> Garbage:
        if not os.path.isdir(self._path):
            what = "there is no directory that a save could have left files in"
            raise FileNotFoundError(errno.ENOENT, what, self.name)
        # One descriptor for everything, so that a link that replaces the directory is not followed.
        with (
            nullcontext() if dry_run else locked(_lock_of(self._path, self._rules)),
            open_directory_fd(self._path) as folder,
        ):
            # Before anything is removed, the index of a save that was killed becomes durable.
            committing = dry_run and is_locked(_lock_of(self._path, self._rules), even_shared=True)
            rewritten: tuple[str, ...] = ()
            if not dry_run:
                sync_directory(self._path)
            if sidecars_of is not None and not committing:
                rewritten = self._rewrite_sidecars(sidecars_of, folder, dry_run=dry_run)
            removed = self._collect(folder, dry_run=dry_run, committing=committing)
            return Garbage(removed, rewritten=rewritten)

    def _rewrite_sidecars(
        self, sidecars_of: SidecarsOf, folder: int, *, dry_run: bool
    ) -> tuple[str, ...]:
        """Write the sidecars that do not belong to the index; return their names."""
        index = _read_index(self._path, self._rules, folder)
        if index is None:
            return ()
        limit_bytes = self._rules.max_index_bytes
        differing = {
            name: data
            for name, data in sidecars_of(index).items()
            if data != read_small_file(self._path, name, limit_bytes=limit_bytes, folder=folder)
        }
        if differing and not dry_run:
            save = LocalTransaction(self._path, self._rules, False, None)
            try:
                with save.explain_errors(self.name, what="checkpoint"):
                    save.write_sidecars(differing)
            finally:
                save.close()
        return tuple(differing)

    def _collect(self, folder: int, *, dry_run: bool, committing: bool) -> list[str]:
        names = sorted(os.listdir(folder))
        # Read after the names, so it refers to all that are in use.
        index = _read_index(self._path, self._rules, folder)
        kept = self._rules.kept_files(index)
        if index is None:
            kept |= self._named_by_sidecars(folder)
        removed = []
        patterns = [temporary_pattern(name) for name in _small_names(self._rules)]
        if committing:
            patterns = []  # these may belong to the running commit, which does not lock them
        for name in names:
            stray = self._rules.is_data_file(name) and name not in kept
            stray = stray or any(pattern.fullmatch(name) for pattern in patterns)
            of_file = temporary_of(name)  # of a data file that was copied
            stray = stray or (of_file is not None and self._rules.is_data_file(of_file))
            if stray and remove_unlocked(name, folder=folder, dry_run=dry_run):
                removed.append(name)
        return removed

    def _named_by_sidecars(self, folder: int) -> set[str]:
        """Return the data files that other tools find by a sidecar alone, without the index."""
        limit_bytes = self._rules.max_index_bytes
        names: set[str] = set()
        for sidecar in self._rules.sidecars:
            text = read_small_file(self._path, sidecar, limit_bytes=limit_bytes, folder=folder)
            names.update(data_files_in(text or b"", self._rules))
        return names


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

    def create_probe(self) -> str:
        # It is named like a temporary file of the index, so a later save or gc removes it.
        name = os.path.basename(temporary_path(self._path, self._rules.index_name))
        self._create(name)
        self._probes.append(self._files.pop())
        return name

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool:
        path = f"{self._path}/{probe}"
        return wait_until_visible(
            lambda: os.path.lexists(path), path, timeout_seconds=timeout_seconds
        )

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

    def unlink_later(self, name: str) -> None:
        fd, self._links[name] = self._links[name], None
        if fd is not None:
            unlock(fd)

    def commit(self, update: Callable[[bytes | None], IndexChange]) -> None:
        self.doing = "creating its directory"
        make_ancestors(self._path, self._made)
        self.doing = "waiting for the lock of its directory"
        with locked(_lock_of(self._path, self._rules), timeout_seconds=self._timeout_seconds):
            self.doing = "reading the index"
            change = update(_read_index(self._path, self._rules))
            self.doing = "looking for what was written"
            self._require(change.added)
            if not change.added.keys() <= self._flushed:  # links, or files of another process
                self._flush_names(change.added)
            self._replace(change)
            with suppress(OSError):  # a later save, or gc, removes the rest
                self._clean(change)

    def _require(self, added: Mapping[str, int]) -> None:
        """Raise an error if files are missing: another save removes those of a dead process."""
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

    def _replace(self, change: IndexChange) -> None:
        """Put the index in place, then the sidecar files."""
        calls = syscalls.current()
        for name in _small_names(self._rules):
            self.doing = "removing what a killed save left"
            remove_stale_temporaries(self._path, name)
        index = self._rules.index_name
        is_first = not os.path.lexists(f"{self._path}/{index}")
        self._write_temporaries({index: change.new_index, **change.sidecars})
        self.doing = f"renaming {index} into place"
        self._perhaps_committed = True  # an interrupt may come before `in_place` is set
        calls.replace(self._small[0].path, f"{self._path}/{index}")
        self.in_place = True
        if is_first and len(self._small) > 1:
            # Alone, the sidecar would make the directory a checkpoint of another tool.
            self._flush_names([index])
        self._rename_sidecars(change.sidecars, self._small[1:])

    def write_sidecars(self, sidecars: Mapping[str, bytes | None]) -> None:
        """Replace sidecar files, under the lock of the directory; None removes one."""
        try:
            self._write_temporaries(sidecars)
            self._rename_sidecars(sidecars, self._small)
        except BaseException:
            for small in self._small:
                small.remove()
            raise

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
            if _read_index(self._path, self._rules, folder) != change.new_index:
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
                lock = _lock_of(self._path, self._rules)
                with locked(lock, timeout_seconds=_ABANDON_SECONDS):
                    self._remove_unreferenced(written)
        remove_directories(self._made)

    def _remove_unreferenced(self, written: Sequence[WritableFile]) -> None:
        with open_directory_fd(self._path) as folder:
            kept = self._rules.kept_files(_read_index(self._path, self._rules, folder))
            for file in written:
                name = os.path.basename(file.path)
                if name not in kept:
                    with suppress(OSError):
                        syscalls.current().unlink(name, folder)
            for name in self._links:
                self.unlink_later(name)
                if name not in kept:
                    remove_unlocked(name, folder=folder, without_locks=name in self._new_links)

    def close(self) -> None:
        """Close, and so unlock, all files."""
        for file in (*self._files, *self._small, *self._probes):
            file.close()
        for name in self._links:
            self.unlink_later(name)

    def remove_probes(self) -> None:
        """Remove the probe files."""
        for probe in self._probes:
            probe.remove()


def _lock_of(path: str, rules: NamingRules) -> str:
    return f"{path}/{temporary_prefix(rules.index_name)}lock"


def _small_names(rules: NamingRules) -> tuple[str, ...]:
    return (rules.index_name, *rules.sidecars)


def _read_index(path: str, rules: NamingRules, folder: int | None = None) -> bytes | None:
    limit_bytes = rules.max_index_bytes
    return read_small_file(path, rules.index_name, limit_bytes=limit_bytes, folder=folder)
