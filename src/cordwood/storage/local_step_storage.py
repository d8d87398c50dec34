"""Storage of the steps of a run in a local directory.

A deleted step first stops being a step, atomically and durably, and only then its files are
removed: so whenever a deletion is interrupted, every remaining step is whole. A local directory is
renamed; where others have put files into the directory, the index is deleted first.
`remove_leftovers` removes the files that interrupted deletions have left.

Only what cordwood wrote is ever removed: `storage.entry_content` decides that, file by file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress

from cordwood.errors import CordwoodError
from cordwood.storage import syscalls
from cordwood.storage.directories import may_remove, scan_directory, sync_directory
from cordwood.storage.entry_content import (
    EntryContent,
    is_written_beside_index,
    refers_only_to_data,
    split_content,
)
from cordwood.storage.entry_kinds import is_removed, leads_to_directory, leads_to_file
from cordwood.storage.local_transaction import flush_with_sidecars
from cordwood.storage.locations import LocalPath
from cordwood.storage.locks.file_locks import is_locked
from cordwood.storage.locks.lock_files import locked
from cordwood.storage.optional_sidecars import expand_folders, remove_optional_sidecars
from cordwood.storage.paths import LOCK_NAME, temporary_path
from cordwood.storage.read_small_file import read_small_file
from cordwood.storage.removal.killed_removals import finish_removals
from cordwood.storage.staging.collect_stages import collect_stages_of_packs
from cordwood.storage.step_pins import pin_directory
from cordwood.storage.step_storage import Removal, StepEntry, StoredRecord, refusal_text
from cordwood.storage.storage_protocol import NamingRules
from cordwood.storage.syscalls import open_directory_fd
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import run_in_worker

_AWAY = re.compile(r"\.(.+)\.cordwood-[0-9a-f]{16}\.(deleted|damaged)")


class LocalStepStorage:
    """The steps in a local directory, which need not exist yet."""

    def __init__(
        self, root: LocalPath, rules: NamingRules, *, timeout_seconds: float | None = None
    ) -> None:
        self._root = os.path.abspath(root)
        self._rules = rules
        self._index_name = rules.index_name
        self._timeout_seconds = timeout_seconds
        self._warned: set[str] = set()  # paths of leftovers that cannot be removed

    def _locked(self) -> AbstractContextManager[None]:
        """Hold the lock of the root, for renames and pins."""
        return locked(f"{self._root}/{LOCK_NAME}", timeout_seconds=self._timeout_seconds)

    @property
    def location(self) -> LocalPath:
        return LocalPath(self._root)

    def location_of(self, entry: str) -> LocalPath:
        return self.location.child(entry)

    def _path_of(self, entry: str) -> str:
        return f"{self._root}/{entry}"

    def entries(self, matches: Callable[[str], bool]) -> Mapping[str, StepEntry]:
        result = {}
        for each in scan_directory(self._root):
            if each.name.startswith(".") or not matches(each.name):
                continue
            if leads_to_directory(each):
                result[each.name] = StepEntry(self.stamp(each.name), is_link=each.is_symlink())
            elif leads_to_file(each):
                result[each.name] = StepEntry(None, is_file=True, is_link=each.is_symlink())
        return result

    def stamp(self, entry: str) -> Hashable | None:
        return _stamp(f"{self._path_of(entry)}/{self._index_name}")

    def directory(self, entry: str) -> None:
        """Return None."""

    def flush(self, entry: str) -> None:
        flush_with_sidecars(self._path_of(entry), self._rules)

    def read_records(self) -> Mapping[str, StoredRecord]:
        return {}  # reading an index of a disk costs nothing

    def write_records(self, records: Mapping[str, StoredRecord]) -> None:
        """Do nothing."""

    def remove(self, entries: Iterable[str], *, partly: bool = False) -> Removal:
        names = list(entries)
        result = Removal.empty()
        if not names:
            return result

        def remove() -> None:
            with self._locked():
                renamed = self._rename_away(names, result, partly=partly)
            for entry in result.remaining:
                self._remove_written(self._path_of(entry))
            for entry, path in renamed.items():
                self._discard(path, back_to=entry)

        run_in_worker(remove)
        result.removed.sort(key=names.index)
        return result

    def _rename_away(
        self, names: list[str], result: Removal, *, partly: bool, why: str = "deleted"
    ) -> dict[str, str]:
        """Rename entries to hidden names, which are returned, or remove the index in place.

        Args:
            names: the entries.
            result: gets what was done with each.
            partly: as in `remove`.
            why: the kind of the hidden name.
        """
        renamed: dict[str, str] = {}
        try:
            for entry in names:
                if self.in_use(entry):
                    result.in_use.append(entry)
                    continue
                try:
                    self._remove_entry(entry, result, renamed, partly=partly, why=why)
                except FileNotFoundError:  # another manager has already removed it
                    continue
                except OSError as e:
                    result.failed[entry] = e
        finally:
            if renamed:
                sync_directory(self._root)  # before any of their files is removed
        return renamed

    def _remove_entry(
        self, entry: str, result: Removal, renamed: dict[str, str], *, partly: bool, why: str
    ) -> None:
        path = self._path_of(entry)
        mode = os.lstat(path).st_mode
        finished = self.stamp(entry) is not None
        if stat.S_ISDIR(mode):
            content = self._content_of(path)
            if content.foreign and not (partly and finished):
                result.refused[entry] = refusal_text(content)
                return
            if not content.foreign and not content.written:
                return  # anybody may have made it
            if content.foreign:
                if content.sidecars:  # without the index nothing says that they are cordwood's
                    remove_optional_sidecars(path, content.sidecars)
                with open_directory_fd(path) as folder:
                    syscalls.current().unlink(self._index_name, folder)
                sync_directory(path)  # before any of the files that the index names is removed
                result.remaining[entry] = content.foreign_text
                result.removed.append(entry)
                return
        elif not (stat.S_ISLNK(mode) and finished):
            result.refused[entry] = "it is no directory that cordwood wrote"
            return
        away = temporary_path(self._root, entry, why)
        syscalls.current().replace(path, away)
        renamed[entry] = away
        result.removed.append(entry)

    def _content_of(self, path: str, folder: int | None = None) -> EntryContent:
        """Return the names in a directory, which `folder` is a descriptor of, if it is open."""
        files: list[str] = []
        others: list[str] = []
        for each in scan_directory(path if folder is None else folder):
            if each.is_file(follow_symlinks=False):
                files.append(each.name)
            elif not is_removed(each):
                others.append(each.name)
        optional: frozenset[str] = frozenset()
        empty: list[str] = []
        with suppress(OSError, CordwoodError):
            limit = self._rules.max_index_bytes
            index = read_small_file(path, self._index_name, limit_bytes=limit, folder=folder)
            if index is not None:
                optional = self._rules.optional_sidecars(index)
                others, empty = expand_folders(path, others, optional)
        has_own_sidecars = self._index_name in files or all(
            self._refers_only_to_data(path, name, folder)
            for name in self._rules.sidecars
            if name in files
        )
        content = split_content(
            files, others, self._rules, has_own_sidecars=has_own_sidecars, optional=optional
        )
        # None is there, but the removal of them, by a call that was killed, may not be durable.
        return content._replace(sidecars=(*content.sidecars, *empty) or tuple(sorted(optional)))

    def _refers_only_to_data(self, path: str, name: str, folder: int | None) -> bool:
        limit = self._rules.max_index_bytes
        with suppress(OSError, CordwoodError):
            data = read_small_file(path, name, limit_bytes=limit, folder=folder)
            # None: the next save's `remove_leftovers` is removing the same directory.
            return data is None or refers_only_to_data(data, self._rules)
        return False

    def _remove_written(self, path: str) -> tuple[str, ...]:
        """Remove the files that cordwood wrote from a directory; return the names of the others.

        All names are relative to one descriptor: no link that replaces the directory is followed.
        """
        with open_directory_fd(path) as folder:
            content = self._content_of(path, folder)
            if content.sidecars:
                remove_optional_sidecars(path, content.sidecars)
            for name in content.written:
                with suppress(OSError):  # the next save tries again
                    syscalls.current().unlink(name, folder)
        return content.foreign

    def _discard(self, path: str, *, back_to: str | None = None) -> None:
        """Remove what was renamed to be deleted: a directory, or a symbolic link.

        Args:
            path: the hidden name.
            back_to: the entry that it was just now. If somebody has put a file into it meanwhile,
                it gets that name again. None: such a file stays where it is, with a warning.
        """
        with suppress(OSError):  # the next save tries again
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                syscalls.current().unlink(path)
                return
            foreign = self._remove_written(path)
            if not foreign:
                syscalls.current().rmdir(path)
                return
            if back_to is not None:
                with self._locked():
                    if not os.path.lexists(self._path_of(back_to)):
                        syscalls.current().replace(path, self._path_of(back_to))
                        return
            if path not in self._warned:
                self._warned.add(path)
                content = EntryContent((), foreign)
                log.warning("%s: %s: it stays; move it away", path, refusal_text(content))

    def set_aside(self, entry: str) -> str:
        result = Removal.empty()

        def rename() -> None:
            with self._locked():
                self._rename_away([entry], result, partly=False, why="damaged")

        run_in_worker(rename)
        for error in result.failed.values():
            raise error
        return result.refused.get(entry, "")

    def in_use(self, entry: str) -> bool:
        # A save holds a lock on each of its data files or on the temporary index; a pin is such a
        # temporary file. On a linked file a save has a shared lock, which is seen in all finished
        # steps with that file; so in finished steps shared locks do not count. The stamp comes
        # first: a save that commits after it counts as in use.
        unfinished = self.stamp(entry) is None
        files = scan_directory(self._path_of(entry))
        return any(is_locked(each.path, even_shared=unfinished) for each in files)

    def has_temporaries(self, entry: str) -> bool:
        names = [each.name for each in scan_directory(self._path_of(entry))]
        return any(name.startswith(".") and ".cordwood-" in name for name in names)

    def pin(self, entry: str) -> AbstractContextManager[None]:
        return pin_directory(self._path_of(entry), self._index_name, root_lock=self._locked())

    def remove_leftovers(self, *, spared: str = "") -> None:
        paths = [each.path for each in scan_directory(self._root) if self._is_left(each.name)]

        def discard() -> None:
            with suppress(OSError):
                sync_directory(self._root)  # the renames of an interrupted deletion
                for path in paths:
                    with suppress(OSError):  # removed meanwhile
                        if may_remove(path):
                            self._discard(path)

        if paths:
            run_in_worker(discard)
        with suppress(OSError, CordwoodError):
            is_data_file = self._rules.is_data_file
            run_in_worker(
                lambda: collect_stages_of_packs(
                    self._root, is_data_file, dry_run=False, spared=spared
                )
            )
        with suppress(OSError, CordwoodError):
            run_in_worker(lambda: finish_removals(self._root))

    def _is_left(self, name: str) -> bool:
        """Return True for the name of a deleted entry, or of a damaged one that was saved again."""
        away = _AWAY.fullmatch(name)
        return away is not None and (away[2] == "deleted" or self.stamp(away[1]) is not None)

    def remove_empty(self, entry: str) -> bool:
        try:
            syscalls.current().rmdir(self._path_of(entry))
        except OSError:  # it is not empty, or does not exist
            return False
        return True

    def has_leftovers(self, entry: str) -> bool:
        names = [each.name for each in scan_directory(self._path_of(entry))]
        return any(is_written_beside_index(name, self._rules) for name in names)


def _stamp(path: str) -> Hashable | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
