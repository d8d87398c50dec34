"""Where the steps of a run lie: directories in one directory, or below one URL.

A step that is to go is first made no step, at once and for good, and only then removed file by
file: so whenever that is interrupted, every step that is there is whole. A local directory is
renamed; in an object store the index goes first. What is left of one that was interrupted is
removed by `sweep`.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NamedTuple, Protocol

from cordwood.errors import UnsupportedFormatError
from cordwood.io.uninterruptible import StopCheck, run_uninterruptible
from cordwood.storage import syscalls
from cordwood.storage.directories import may_remove, remove_tree, scan_directory
from cordwood.storage.file_locks import NO_LOCK_ERRORS, is_locked, locked, unlock
from cordwood.storage.file_transaction import (
    WritableFile,
    sync_directory,
    temporary_path,
    temporary_prefix,
)
from cordwood.storage.urls import expand_home, parse_url

_RANDOM_BYTES = 8
_AWAY = re.compile(rf"\.(.+)\.cordwood-[0-9a-f]{{{2 * _RANDOM_BYTES}}}\.(deleted|damaged)")
_LOCK_NAME = f"{temporary_prefix('steps')}lock"


class StepEntry(NamedTuple):
    """A directory or a file that lies there."""

    stamp: Hashable | None  # of a directory: None, or, with an index, what changes with that
    is_file: bool = False
    is_link: bool = False  # a symbolic link to either


UNREAD_STAMP = "unasked"  # the stamp of a directory with an index, where nobody has looked at that


class StepStorage(Protocol):
    """A directory of directories, each of which holds a checkpoint or will."""

    @property
    def name(self) -> str: ...

    def path_of(self, entry: str) -> str:
        """The path or URL of an entry."""
        ...

    def entries(
        self, wanted: Callable[[str], bool], *, stamps: bool = True
    ) -> Mapping[str, StepEntry]:
        """Return what lies there, of the names that are wanted; no other is looked at.

        Args:
            wanted: tells by its name what is looked at.
            stamps: False: the stamp of what has an index may be UNREAD_STAMP; a store is then asked
                for a listing and nothing else.
        """
        ...

    def stamp(self, entry: str) -> Hashable | None:
        """Return the stamp of a directory, as in its Entry."""
        ...

    def remove(self, entries: Iterable[str]) -> list[str]:
        """Remove entries. When this returns, a power cut brings none back that is not whole.

        Of a symbolic link nothing goes but the link. Returns those that are gone; one that is in
        use stays. Raises OSError.
        """
        ...

    def set_aside(self, entry: str) -> None:
        """Have an entry whose index cannot be read be no entry, so that it can be saved anew.

        What it held lies beside it, out of sight, until `sweep` finds it saved. Raises OSError.
        """
        ...

    def in_use(self, entry: str) -> bool:
        """Whether somebody saves it, or has pinned it, as far as that can be told."""
        ...

    def has_temporaries(self, entry: str) -> bool:
        """Whether a save that goes on, or was killed, has temporary files or a lock in it."""
        ...

    def pin(self, entry: str) -> AbstractContextManager[None]:
        """Have an entry be in use in the block.

        Raises FileNotFoundError where there is none, UnsupportedFormatError where there are no
        locks to do it by.
        """
        ...

    def remove_leftovers(self) -> None:
        """Remove what removals that were interrupted have left, if it is this user's to remove."""
        ...

    def remove_empty(self, entry: str) -> None:
        """Remove an entry that holds nothing, where that is something."""
        ...


def open_step_storage(
    root: str | os.PathLike[str], index_name: str, *, timeout_seconds: float | None = None
) -> StepStorage:
    """Return the steps below a path or URL.

    Args:
        root: the path or URL.
        index_name: of the file by which a directory is a finished step.
        timeout_seconds: how long to wait for the lock of the root; None: for ever.

    Raises UnsupportedFormatError for an unknown URL.
    """
    root = expand_home(root)
    url = parse_url(root)
    if url is None:
        return LocalStepStorage(os.fspath(root), index_name, timeout_seconds=timeout_seconds)
    if url.scheme == "file":
        return LocalStepStorage(url.key, index_name, timeout_seconds=timeout_seconds)
    return ObjectStepStorage(str(url), index_name)


class LocalStepStorage:
    """A directory, which need not exist yet."""

    def __init__(self, root: str, index_name: str, *, timeout_seconds: float | None = None) -> None:
        self.name = os.path.abspath(root)
        self._index_name = index_name
        self._timeout_seconds = timeout_seconds

    def _locked(self, check: StopCheck) -> AbstractContextManager[None]:
        """Hold the lock of the root, for renames and pins."""
        return locked(f"{self.name}/{_LOCK_NAME}", check, timeout_seconds=self._timeout_seconds)

    def path_of(self, entry: str) -> str:
        return f"{self.name}/{entry}"

    def entries(
        self,
        wanted: Callable[[str], bool],
        *,
        stamps: bool = True,  # noqa: ARG002  (they cost nothing here)
    ) -> Mapping[str, StepEntry]:
        found = {}
        for each in scan_directory(self.name):
            if each.name.startswith(".") or not wanted(each.name):
                continue
            if each.is_dir():
                stamp = _stamp(f"{each.path}/{self._index_name}")
                found[each.name] = StepEntry(stamp, is_link=each.is_symlink())
            elif each.is_file():
                found[each.name] = StepEntry(None, is_file=True, is_link=each.is_symlink())
        return found

    def stamp(self, entry: str) -> Hashable | None:
        return _stamp(f"{self.path_of(entry)}/{self._index_name}")

    def remove(self, entries: Iterable[str]) -> list[str]:
        wanted = list(entries)
        if not wanted:
            return []

        def remove(check: StopCheck) -> list[str]:
            with self._locked(check):
                renamed = self._rename_away(wanted, "deleted")
            for path in renamed.values():
                _discard(path, check)
            return list(renamed)

        return run_uninterruptible(remove)

    def set_aside(self, entry: str) -> None:
        def rename(check: StopCheck) -> None:
            with self._locked(check):
                self._rename_away([entry], "damaged")

        run_uninterruptible(rename)

    def _rename_away(self, entries: list[str], why: str) -> dict[str, str]:
        renamed = {}
        try:
            for entry in entries:
                if self.in_use(entry):
                    continue
                random = secrets.token_hex(_RANDOM_BYTES)
                away = f"{self.name}/{temporary_prefix(entry)}{random}.{why}"
                with suppress(FileNotFoundError):  # another manager was quicker
                    syscalls.current().replace(self.path_of(entry), away)
                    renamed[entry] = away
        finally:
            if renamed:
                sync_directory(self.name)  # before any file of theirs goes
        return renamed

    def in_use(self, entry: str) -> bool:
        # A save holds a lock on each of its data files, or on the index's; a pin is such a file. It
        # shares that of a file that it has linked: with all finished steps that have it, too.
        folder = self.path_of(entry)
        unfinished = _stamp(f"{folder}/{self._index_name}") is None
        return any(is_locked(each.path, even_shared=unfinished) for each in scan_directory(folder))

    def has_temporaries(self, entry: str) -> bool:
        names = [each.name for each in scan_directory(self.path_of(entry))]
        return any(name.startswith(".") and ".cordwood-" in name for name in names)

    @contextmanager
    def pin(self, entry: str) -> Iterator[None]:
        # Like a temporary of the index that a living save holds: what becomes of one is known.
        held = WritableFile(temporary_path(self.path_of(entry), self._index_name))

        def take(check: StopCheck) -> None:
            with self._locked(check):
                held.open()
                try:
                    syscalls.current().flock(held.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:  # somebody looks whether it is a living save's
                    held.lock(check)
                except OSError as e:
                    if e.errno not in NO_LOCK_ERRORS:
                        raise
                    raise UnsupportedFormatError(
                        f"{self.path_of(entry)}: the file system has no locks to pin a step by "
                        f"({os.strerror(e.errno)}): copy it, or keep it by a policy"
                    ) from e

        try:
            run_uninterruptible(take)
            yield
        finally:
            if held.opened:
                held.remove()
                unlock(held.opened)

    def remove_leftovers(self) -> None:
        paths = [each.path for each in scan_directory(self.name) if self._is_left(each.name)]

        def discard(check: StopCheck) -> None:
            for path in paths:
                with suppress(OSError):  # it has gone meanwhile
                    if may_remove(path):
                        _discard(path, check)

        if paths:
            run_uninterruptible(discard)

    def _is_left(self, name: str) -> bool:
        """Return whether a name is that of an entry that was removed, or replaced since."""
        away = _AWAY.fullmatch(name)
        if away is None:
            return False
        if away[2] == "deleted":
            return True
        return _stamp(f"{self.name}/{away[1]}/{self._index_name}") is not None

    def remove_empty(self, entry: str) -> None:
        with suppress(OSError):  # it is not empty, or gone
            syscalls.current().rmdir(self.path_of(entry))


class ObjectStepStorage:
    """What lies below a URL of an object store."""

    def __init__(self, url: str, index_name: str) -> None:
        from cordwood.storage.object_store_client import ObjectStore

        found = parse_url(url)
        assert found is not None
        self.name = url
        self._store = ObjectStore(found)
        self._index_name = index_name

    def path_of(self, entry: str) -> str:
        return f"{self.name}/{entry}"

    def entries(
        self, wanted: Callable[[str], bool], *, stamps: bool = True
    ) -> Mapping[str, StepEntry]:
        found = {}
        indexes = []
        for name in self._store.names():
            entry, slash, inner = name.partition("/")
            if wanted(entry):
                found[entry] = StepEntry(None, is_file=not slash)
                indexes += [name] if inner == self._index_name else []
        if not stamps:
            return {
                **found,
                **{name.partition("/")[0]: StepEntry(UNREAD_STAMP) for name in indexes},
            }
        for name, generation in self._store.generations(indexes).items():
            found[name.partition("/")[0]] = StepEntry(generation)
        return found

    def stamp(self, entry: str) -> Hashable | None:
        return self._store.generation(f"{entry}/{self._index_name}")

    def remove(self, entries: Iterable[str]) -> list[str]:
        wanted = list(entries)
        self._store.delete([f"{entry}/{self._index_name}" for entry in wanted])
        every = self._store.names()
        self._store.delete([name for name in every if name.split("/")[0] in wanted and "/" in name])
        return wanted

    def set_aside(self, entry: str) -> None:
        self._store.delete([f"{entry}/{self._index_name}"])  # there is no renaming here

    def in_use(self, entry: str) -> bool:  # noqa: ARG002
        return False

    def has_temporaries(self, entry: str) -> bool:  # noqa: ARG002
        return False

    @contextmanager
    def pin(self, entry: str) -> Iterator[None]:
        raise UnsupportedFormatError(
            f"{self.path_of(entry)}: there are no locks in an object store to pin a step by: "
            "copy it, or keep it by a policy"
        )
        yield

    def remove_leftovers(self) -> None:
        """What lost its index is found among the unfinished entries."""

    def remove_empty(self, entry: str) -> None:
        """There are no directories."""


def _discard(path: str, check: StopCheck) -> None:
    """Remove a directory, a file or a link, as far as that can be done."""
    with suppress(OSError):  # the next save tries again
        if stat.S_ISDIR(os.lstat(path).st_mode):
            remove_tree(path, check)
        else:
            syscalls.current().unlink(path)


def _stamp(path: str) -> Hashable | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
