"""Storage in a directory of a local disk, or of a file system that several machines mount."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

from cordwood.index import Source
from cordwood.io.open_files import ReadableFile
from cordwood.io.reopened_file import MAX_OPEN_FILES
from cordwood.plan.cells import FileSizes
from cordwood.storage.entry_content import data_files_in
from cordwood.storage.local_directory import LocalDirectory, open_directory_files
from cordwood.storage.local_transaction import (
    LocalTransaction,
    flush_with_sidecars,
    lock_of,
    read_local_index,
    small_names,
)
from cordwood.storage.locations import LocalPath
from cordwood.storage.locks.file_locks import is_locked, remove_unlocked, wait_for_lock
from cordwood.storage.locks.lock_files import locked
from cordwood.storage.optional_sidecars import read_optional_sidecar
from cordwood.storage.paths import (
    stage_path,
    stale_stages,
    temporary_of,
    temporary_pattern,
)
from cordwood.storage.read_small_file import read_small_file
from cordwood.storage.removal.list_tree import Listing
from cordwood.storage.staging.collect_stages import collect_stages
from cordwood.storage.storage_protocol import (
    Garbage,
    NamingRules,
    OptionalSidecarsOf,
    Sidecar,
    SidecarsOf,
)
from cordwood.storage.syscalls import open_directory_fd


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
        return read_local_index(self.name, self._rules)

    def read_sidecar(self, name: str) -> bytes | None:
        return read_small_file(self.name, name, limit_bytes=self._rules.max_index_bytes)

    def read_optional_sidecar(self, name: str) -> Sidecar | None:
        limit_bytes = self._rules.max_index_bytes
        return read_optional_sidecar(self.name, name, limit_bytes=limit_bytes)

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
        staged: bool = False,
        replaces: Listing | None = None,
        resumes: str = "",
    ) -> Iterator[LocalTransaction]:
        save = LocalTransaction(
            self._path, self._rules, others_commit, timeout_seconds, page_cache=page_cache
        )
        if not others_commit:
            with suppress(OSError):  # of killed saves that made or replaced the directory
                if stale_stages(self._path):
                    spared = stage_path(self._path, resumes) if resumes else ""
                    collect_stages(self._path, dry_run=False, spared=spared)
        try:
            with save.explain_errors(self.name, what="checkpoint"):
                staged = staged and not os.path.lexists(self._path)
                if (staged or replaces is not None) and not others_commit:
                    save.begin_stage(replaces, resumes=resumes)
                yield save
            save.remove_probes()
        except BaseException:
            save.abandon()
            raise
        finally:
            save.close()

    def flush(self) -> None:
        flush_with_sidecars(self._path, self._rules)

    def wait_for_commit(self, is_whole: Callable[[], bool]) -> None:
        del is_whole
        wait_for_lock(lock_of(self._path, self._rules))

    def collect(
        self,
        *,
        dry_run: bool,
        sidecars_of: SidecarsOf | None = None,
        optional_sidecars_of: OptionalSidecarsOf | None = None,
    ) -> Garbage:
        if not os.path.isdir(self._path):
            what = "there is no directory that a save could have left files in"
            raise FileNotFoundError(errno.ENOENT, what, self.name)
        # One descriptor for everything, so that a link that replaces the directory is not followed.
        with (
            nullcontext() if dry_run else locked(lock_of(self._path, self._rules)),
            open_directory_fd(self._path) as folder,
        ):
            # Before anything is removed, the index of a save that was killed becomes durable.
            committing = dry_run and is_locked(lock_of(self._path, self._rules), even_shared=True)
            rewritten: tuple[str, ...] = ()
            if not dry_run:
                self.flush()
            if sidecars_of is not None and not committing:
                rewritten = self._rewrite_sidecars(
                    sidecars_of, optional_sidecars_of, folder, dry_run=dry_run
                )
            removed = self._collect(folder, dry_run=dry_run, committing=committing)
            return Garbage(removed, rewritten=rewritten)

    def _rewrite_sidecars(
        self,
        sidecars_of: SidecarsOf,
        optional_sidecars_of: OptionalSidecarsOf | None,
        folder: int,
        *,
        dry_run: bool,
    ) -> tuple[str, ...]:
        """Write the sidecars that do not belong to the index; return their names."""
        index = read_local_index(self._path, self._rules, folder)
        if index is None:
            return ()
        limit_bytes = self._rules.max_index_bytes
        differing = {
            name: data
            for name, data in sidecars_of(index).items()
            if data != read_small_file(self._path, name, limit_bytes=limit_bytes, folder=folder)
        }
        optional = {}
        if optional_sidecars_of is not None:
            optional = {
                name: sidecar
                for name, sidecar in optional_sidecars_of(index).items()
                if sidecar != self.read_optional_sidecar(name)
            }
        if (differing or optional) and not dry_run:
            save = LocalTransaction(self._path, self._rules, False, None)
            try:
                with save.explain_errors(self.name, what="checkpoint"):
                    save.write_sidecars(differing, optional)
            finally:
                save.close()
        return (*differing, *optional)

    def _collect(self, folder: int, *, dry_run: bool, committing: bool) -> list[str]:
        names = sorted(os.listdir(folder))
        # Read after the names, so it refers to all that are in use.
        index = read_local_index(self._path, self._rules, folder)
        referenced = self._rules.kept_files(index)
        if index is None:
            referenced |= self._named_by_sidecars(folder)
        removed = []
        patterns = [temporary_pattern(name) for name in small_names(self._rules)]
        if committing:
            patterns = []  # these may belong to the running commit, which does not lock them
        for name in names:
            stray = self._rules.is_data_file(name) and name not in referenced
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
