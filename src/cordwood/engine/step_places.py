"""Where the steps of a run lie: directories in one directory, or below one URL.

A step that is to go is first made no step, at once and for good, and only then removed file by
file: so whenever that is interrupted, every step that is there is whole. A local directory is
renamed; in an object store the index goes first. What is left of one that was interrupted is
removed by `sweep`.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol

from cordwood.engine import system
from cordwood.engine.apart import Check, run_apart
from cordwood.engine.commit import Temporary, sync_directory, temporary_path, temporary_stem
from cordwood.engine.folders import entries_of, remove_tree
from cordwood.engine.locks import locked, remove_unlocked, unlock
from cordwood.engine.urls import parse_url
from cordwood.errors import UnsupportedFormatError

__all__ = ["LocalSteps", "ObjectSteps", "StepPlace", "steps_at"]

_RANDOM_BYTES = 8
_DELETED = re.compile(rf"\..+\.cordwood-[0-9a-f]{{{2 * _RANDOM_BYTES}}}\.deleted")
_LOCK_NAME = f"{temporary_stem('steps')}lock"


class StepPlace(Protocol):
    """A directory of directories, each of which holds a checkpoint or will."""

    @property
    def name(self) -> str: ...

    def path_of(self, entry: str) -> str:
        """The path or URL of an entry."""
        ...

    def entries(self) -> Mapping[str, Hashable | None]:
        """The directories that lie there, by name: None, or, where there is an index, what changes
        when that is replaced. {} where there is nothing.
        """
        ...

    def files(self) -> list[str]:
        """The names of files that lie beside them."""
        ...

    def remove(self, entries: Iterable[str]) -> list[str]:
        """Remove entries. When this returns, a power cut brings none back that is not whole.

        Returns those that are gone; one that is in use stays. Raises OSError.
        """
        ...

    def in_use(self, entry: str) -> bool:
        """Whether somebody saves it, or has pinned it, as far as that can be told."""
        ...

    def pin(self, entry: str) -> AbstractContextManager[None]:
        """Have an entry be in use in the block.

        Raises FileNotFoundError where there is none, UnsupportedFormatError where there are no
        locks to do it by.
        """
        ...

    def sweep(self) -> None:
        """Remove what removals that were interrupted have left."""
        ...

    def remove_empty(self, entry: str) -> None:
        """Remove an entry that holds nothing, where that is something."""
        ...


def steps_at(root: str | os.PathLike[str], index_name: str) -> StepPlace:
    """The steps below a path or URL. Raises UnsupportedFormatError for an unknown URL."""
    url = parse_url(root)
    if url is None:
        return LocalSteps(os.fspath(root), index_name)
    if url.scheme == "file":
        return LocalSteps(url.key, index_name)
    return ObjectSteps(str(url), index_name)


class LocalSteps:
    """A directory, which need not exist yet."""

    def __init__(self, root: str, index_name: str) -> None:
        self.name = os.path.abspath(root)
        self._index_name = index_name

    def path_of(self, entry: str) -> str:
        return f"{self.name}/{entry}"

    def entries(self) -> Mapping[str, Hashable | None]:
        return {
            entry: _stamp(f"{self.name}/{entry}/{self._index_name}")
            for entry, is_folder in entries_of(self.name).items()
            if is_folder and not entry.startswith(".")
        }

    def files(self) -> list[str]:
        return [entry for entry, is_folder in entries_of(self.name).items() if not is_folder]

    def remove(self, entries: Iterable[str]) -> list[str]:
        wanted = list(entries)
        if not wanted:
            return []

        def rename(check: Check) -> dict[str, str]:
            with locked(f"{self.name}/{_LOCK_NAME}", check):
                return self._rename_away(wanted)

        renamed = run_apart(rename)
        for path in renamed.values():
            _discard(path)
        return list(renamed)

    def _rename_away(self, entries: list[str]) -> dict[str, str]:
        renamed = {}
        try:
            for entry in entries:
                if self.in_use(entry):
                    continue
                random = secrets.token_hex(_RANDOM_BYTES)
                away = f"{self.name}/{temporary_stem(entry)}{random}.deleted"
                with suppress(FileNotFoundError):  # another manager was quicker
                    system.current().replace(self.path_of(entry), away)
                    renamed[entry] = away
        finally:
            if renamed:
                sync_directory(self.name)  # before any file of theirs goes
        return renamed

    def in_use(self, entry: str) -> bool:
        folder = self.path_of(entry)
        return any(
            not remove_unlocked(f"{folder}/{name}", dry_run=True)
            and os.path.lexists(f"{folder}/{name}")
            for name in entries_of(folder)
            if name.startswith(".") and name.endswith(".tmp") and ".cordwood-" in name
        )

    @contextmanager
    def pin(self, entry: str) -> Iterator[None]:
        # Like a temporary of the index that a living save holds: what becomes of one is known.
        held = Temporary(temporary_path(self.path_of(entry), self._index_name))

        def take(check: Check) -> None:
            with locked(f"{self.name}/{_LOCK_NAME}", check):
                held.open()
                held.lock()

        try:
            run_apart(take)
            yield
        finally:
            if held.opened:
                held.remove()
                unlock(held.opened)

    def sweep(self) -> None:
        for entry in entries_of(self.name):
            if _DELETED.fullmatch(entry):
                _discard(f"{self.name}/{entry}")

    def remove_empty(self, entry: str) -> None:
        with suppress(OSError):  # it is not empty, or gone
            system.current().rmdir(self.path_of(entry))


class ObjectSteps:
    """What lies below a URL of an object store."""

    def __init__(self, url: str, index_name: str) -> None:
        from cordwood.engine.kvstore import ObjectStore

        found = parse_url(url)
        assert found is not None
        self.name = url
        self._store = ObjectStore(found)
        self._index_name = index_name

    def path_of(self, entry: str) -> str:
        return f"{self.name}/{entry}"

    def entries(self) -> Mapping[str, Hashable | None]:
        names = self._store.names()
        found: dict[str, Hashable | None] = {
            name.split("/")[0]: None for name in names if "/" in name
        }
        indexes = [name for name in names if name.split("/")[1:] == [self._index_name]]
        for name, generation in self._store.generations(indexes).items():
            found[name.split("/")[0]] = generation
        return found

    def files(self) -> list[str]:
        return [name for name in self._store.names() if "/" not in name]

    def remove(self, entries: Iterable[str]) -> list[str]:
        wanted = list(entries)
        self._store.delete([f"{entry}/{self._index_name}" for entry in wanted])
        every = self._store.names()
        self._store.delete([name for name in every if name.split("/")[0] in wanted and "/" in name])
        return wanted

    def in_use(self, entry: str) -> bool:  # noqa: ARG002
        return False

    @contextmanager
    def pin(self, entry: str) -> Iterator[None]:
        raise UnsupportedFormatError(
            f"{self.path_of(entry)}: there are no locks in an object store to pin a step by: "
            "copy it, or keep it by a policy"
        )
        yield

    def sweep(self) -> None:
        """What lost its index is found among the unfinished entries."""

    def remove_empty(self, entry: str) -> None:
        """There are no directories."""


def _discard(path: str) -> None:
    """Remove what was renamed away, a directory or a file, as far as that can be done."""
    if os.path.isdir(path):
        remove_tree(path)
        return
    with suppress(OSError):  # the next save tries again
        system.current().unlink(path)


def _stamp(path: str) -> Hashable | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
