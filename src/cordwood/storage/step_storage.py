"""Storage of the steps of a run: directories in one directory, or below one URL.

A deleted step first stops being a step, atomically and durably, and only then its files are
removed: so whenever a deletion is interrupted, every remaining step is whole. A local directory is
renamed; in an object store the index is deleted first. `remove_leftovers` removes the files that
interrupted deletions have left.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NamedTuple, Protocol

from cordwood.errors import UnsupportedFormatError
from cordwood.io.threads import run_in_worker
from cordwood.storage import syscalls
from cordwood.storage.atomic_file import WritableFile, sync_directory
from cordwood.storage.directories import may_remove, remove_tree, scan_directory
from cordwood.storage.file_locks import NO_LOCK_ERRORS, is_locked, locked, unlock
from cordwood.storage.paths import (
    local_or_url,
    parse_url,
    temporary_path,
    temporary_prefix,
)
from cordwood.storage.storage_protocol import NamingRules

_AWAY = re.compile(r"\.(.+)\.cordwood-[0-9a-f]{16}\.(deleted|damaged)")
_LOCK_NAME = f"{temporary_prefix('steps')}lock"


class StepEntry(NamedTuple):
    """A directory or a file of a run."""

    stamp: Hashable | None  # of a directory with an index: a value that changes with it; else None
    is_file: bool = False
    is_link: bool = False  # a symbolic link to either


class StoredRecord(NamedTuple):
    """A copy of what the index of an entry says for listings."""

    stamp: Hashable  # of the index
    text: str
    data_bytes: int  # the size of the data files


class StepStorage(Protocol):
    """A directory of entries, each of which is a checkpoint or will become one."""

    @property
    def name(self) -> str: ...

    def path_of(self, entry: str) -> str:
        """Return the path or URL of an entry."""
        ...

    def entries(self, matches: Callable[[str], bool]) -> Mapping[str, StepEntry]:
        """Return the entries with certain names; no others are looked at.

        Args:
            matches: returns True for the names of these entries.
        """
        ...

    def stamp(self, entry: str) -> Hashable | None:
        """Return the stamp of a directory, as in its Entry."""
        ...

    def read_records(self) -> Mapping[str, StoredRecord]:
        """Return the records by entry that `write_records` has stored.

        An aid for listings of object stores: any record may be missing, or be of an older index.
        """
        ...

    def write_records(self, records: Mapping[str, StoredRecord]) -> None:
        """Store a record for each entry. Raises OSError."""
        ...

    def remove(self, entries: Iterable[str]) -> list[str]:
        """Remove entries. When this returns, a power cut cannot restore an incomplete one.

        Of a symbolic link only the link is removed. Returns the removed entries; an entry in use
        stays. Raises OSError.
        """
        ...

    def set_aside(self, entry: str) -> None:
        """Move away an entry whose index cannot be read, so that it can be saved again.

        Its files stay under a hidden name until `remove_leftovers` finds the entry saved again.
        Raises OSError.
        """
        ...

    def in_use(self, entry: str) -> bool:
        """Return True if an entry is known to be pinned, or to be written by a save."""
        ...

    def has_temporaries(self, entry: str) -> bool:
        """Return True if a running or killed save has temporary files or a lock in an entry."""
        ...

    def pin(self, entry: str) -> AbstractContextManager[None]:
        """Mark an entry as in use during the block.

        Raises FileNotFoundError if there is none, UnsupportedFormatError if there are no locks.
        """
        ...

    def remove_leftovers(self) -> None:
        """Remove what interrupted deletions have left, if this user may remove it."""
        ...

    def remove_empty(self, entry: str) -> None:
        """Remove an entry that is an empty directory."""
        ...


def open_step_storage(
    root: str | os.PathLike[str], rules: NamingRules, *, timeout_seconds: float | None = None
) -> StepStorage:
    """Return the storage of the steps below a path or URL.

    Args:
        root: the path or URL.
        rules: the naming rules of their format; its index makes a directory a finished step.
        timeout_seconds: the longest wait for the lock of the root; None: no limit.

    Raises UnsupportedFormatError for an unknown URL, or that of a web server.
    """
    root = local_or_url(root)
    url = parse_url(root)
    if url is None:
        return LocalStepStorage(root, rules, timeout_seconds=timeout_seconds)
    if url.is_web:
        raise UnsupportedFormatError(
            f"{url}: a web server lists no steps and can only be read: expected a path, or a URL "
            "of s3://, gs:// or az://; or load one step by its whole URL: "
            f"cordwood.load('{url}/100')"
        )
    from cordwood.storage.object_step_storage import ObjectStepStorage

    return ObjectStepStorage(url, rules)


class LocalStepStorage:
    """The steps in a local directory, which need not exist yet."""

    def __init__(
        self, root: str, rules: NamingRules, *, timeout_seconds: float | None = None
    ) -> None:
        self.name = os.path.abspath(root)
        self._index_name = rules.index_name
        self._timeout_seconds = timeout_seconds

    def _locked(self) -> AbstractContextManager[None]:
        """Hold the lock of the root, for renames and pins."""
        return locked(f"{self.name}/{_LOCK_NAME}", timeout_seconds=self._timeout_seconds)

    def path_of(self, entry: str) -> str:
        return f"{self.name}/{entry}"

    def entries(self, matches: Callable[[str], bool]) -> Mapping[str, StepEntry]:
        result = {}
        for each in scan_directory(self.name):
            if each.name.startswith(".") or not matches(each.name):
                continue
            if each.is_dir():
                result[each.name] = StepEntry(self.stamp(each.name), is_link=each.is_symlink())
            elif each.is_file():
                result[each.name] = StepEntry(None, is_file=True, is_link=each.is_symlink())
        return result

    def stamp(self, entry: str) -> Hashable | None:
        return _stamp(f"{self.path_of(entry)}/{self._index_name}")

    def read_records(self) -> Mapping[str, StoredRecord]:
        return {}  # reading an index of a disk costs nothing

    def write_records(self, records: Mapping[str, StoredRecord]) -> None:
        """Do nothing."""

    def remove(self, entries: Iterable[str]) -> list[str]:
        names = list(entries)
        if not names:
            return []

        def remove() -> list[str]:
            with self._locked():
                renamed = self._rename_away(names, "deleted")
            for path in renamed.values():
                _discard(path)
            return list(renamed)

        return run_in_worker(remove)

    def set_aside(self, entry: str) -> None:
        def rename() -> None:
            with self._locked():
                self._rename_away([entry], "damaged")

        run_in_worker(rename)

    def _rename_away(self, entries: list[str], why: str) -> dict[str, str]:
        renamed = {}
        try:
            for entry in entries:
                if self.in_use(entry):
                    continue
                away = temporary_path(self.name, entry, why)
                with suppress(FileNotFoundError):  # another manager has already removed it
                    syscalls.current().replace(self.path_of(entry), away)
                    renamed[entry] = away
        finally:
            if renamed:
                sync_directory(self.name)  # before any of their files is removed
        return renamed

    def in_use(self, entry: str) -> bool:
        # A save holds a lock on each of its data files or on the temporary index; a pin is such a
        # temporary file. On a linked file a save has a shared lock, which is seen in all finished
        # steps with that file; so in finished steps shared locks do not count. The stamp comes
        # first: a save that commits after it counts as in use.
        unfinished = self.stamp(entry) is None
        files = scan_directory(self.path_of(entry))
        return any(is_locked(each.path, even_shared=unfinished) for each in files)

    def has_temporaries(self, entry: str) -> bool:
        names = [each.name for each in scan_directory(self.path_of(entry))]
        return any(name.startswith(".") and ".cordwood-" in name for name in names)

    @contextmanager
    def pin(self, entry: str) -> Iterator[None]:
        # It looks like a temporary index file of a running save: leftover ones are removed.
        held = WritableFile(temporary_path(self.path_of(entry), self._index_name))

        def take() -> None:
            with self._locked():
                held.open()
                try:
                    syscalls.current().flock(held.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:  # another process tests if it belongs to a running save
                    held.lock()
                except OSError as e:
                    if e.errno not in NO_LOCK_ERRORS:
                        raise
                    raise UnsupportedFormatError(
                        f"{self.path_of(entry)}: the file system has no locks to pin a step by "
                        f"({os.strerror(e.errno)}): copy it, or keep it by a policy"
                    ) from e

        def release() -> None:
            held.remove()
            unlock(held.fd)

        try:
            run_in_worker(take)
            yield
        finally:
            if held.fd >= 0:
                run_in_worker(release)

    def remove_leftovers(self) -> None:
        paths = [each.path for each in scan_directory(self.name) if self._is_left(each.name)]

        def discard() -> None:
            for path in paths:
                with suppress(OSError):  # removed meanwhile
                    if may_remove(path):
                        _discard(path)

        if paths:
            run_in_worker(discard)

    def _is_left(self, name: str) -> bool:
        """Return True for the name of a deleted entry, or of a damaged one that was saved again."""
        away = _AWAY.fullmatch(name)
        return away is not None and (away[2] == "deleted" or self.stamp(away[1]) is not None)

    def remove_empty(self, entry: str) -> None:
        with suppress(OSError):  # it is not empty, or does not exist
            syscalls.current().rmdir(self.path_of(entry))


def _discard(path: str) -> None:
    """Remove a directory, a file or a link, as far as possible."""
    with suppress(OSError):  # the next save tries again
        if stat.S_ISDIR(os.lstat(path).st_mode):
            remove_tree(path)
        else:
            syscalls.current().unlink(path)


def _stamp(path: str) -> Hashable | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
