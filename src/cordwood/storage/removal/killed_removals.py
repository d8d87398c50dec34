"""Removals by `cordwood rm` that were killed: they are undone, or completed.

    .NAME.cordwood-ID.removed     what was at NAME
    .NAME.cordwood-ID.list        the names in it of all that goes

What is to be removed is first renamed. The list is written, and flushed, once it is certain that
nothing else is in it. Until then it gets its name again; from then on exactly what the list names
is removed, and the list goes last. The renames, and the list, are made under the lock of the
directory: what has no list there belongs to no running call.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from cordwood.errors import CordwoodError, NotACheckpointError
from cordwood.storage import syscalls
from cordwood.storage.atomic_file import WritableFile, finish_file
from cordwood.storage.directories import list_names, may_remove, sync_directory
from cordwood.storage.locks.lock_files import locked
from cordwood.storage.open_beneath import open_beneath
from cordwood.storage.paths import LOCK_NAME, temporary_path, temporary_pattern
from cordwood.storage.read_small_file import read_small_file
from cordwood.storage.syscalls import open_directory_fd
from cordwood.threads.log import log

_REMOVED, _LIST = "removed", "list"
_ANY = re.compile(rf"\.(.+)\.cordwood-[0-9a-f]{{16}}\.(?:{_REMOVED}|{_LIST})", re.DOTALL)
_MAX_LIST_BYTES = 1 << 30
_CANNOT_TELL = (errno.ENOSYS, errno.EINVAL)  # of file systems without such a rename


class RemovedNames(NamedTuple):
    """The names below a directory that are removed with it.

    Attributes:
        files: the files; the only one of a single file is "".
        folders: the directories; parents come before what is in them.
    """

    files: Sequence[str]
    folders: Sequence[str]


def hidden_path(folder: str, name: str) -> str:
    """Return the path to which something is renamed to be removed."""
    return temporary_path(folder, name, _REMOVED)


def write_list(away: str, names: RemovedNames) -> None:
    """Write the list of what was renamed to `away`, durably. Raises OSError."""
    data = json.dumps(names._asdict(), separators=(",", ":")).encode()
    file = WritableFile(_list_of(away))
    try:
        file.open(0o600)
        file.write(memoryview(data), 0)
        syscalls.current().fsync(file.fd)
        sync_directory(os.path.dirname(away))
    except BaseException:
        file.remove()
        raise
    finally:
        file.close()


def remove_listed_names(away: str, names: RemovedNames) -> None:
    """Remove what a list names, as far as possible, and then the list."""
    with suppress(OSError):
        remove_names(away, names)
    if not os.path.lexists(away):
        with suppress(OSError):
            sync_directory(os.path.dirname(away))  # without its list it would get its name again
            syscalls.current().unlink(_list_of(away))


def remove_names(away: str, names: RemovedNames) -> None:
    """Remove files, and then directories, as far as possible. Raises OSError."""
    calls = syscalls.current()
    if "" in names.files:
        calls.unlink(away)
        return
    with open_directory_fd(away) as root:
        for name in names.files:
            _remove_below(root, name, is_folder=False)
        for name in reversed(names.folders):
            _remove_below(root, name, is_folder=True)
    calls.rmdir(away)


def _remove_below(root: int, name: str, *, is_folder: bool) -> None:
    """Remove a file or an empty directory below an open one; no symbolic link is followed."""
    parent, _, last = name.rpartition("/")
    calls = syscalls.current()
    with suppress(OSError, ValueError):
        folder = open_beneath(root, parent, directory=True) if parent else os.dup(root)
        try:
            (calls.rmdir if is_folder else calls.unlink)(last, folder)
        finally:
            os.close(folder)


def finish_removals(folder: str, *, name: str | None = None, dry_run: bool = False) -> list[str]:
    """Complete the removals in a directory that were killed, and undo those that had not begun.

    Args:
        folder: the directory.
        name: what was to be removed; None: anything.
        dry_run: True to change nothing.

    Returns the paths of what was completed, or would be, if this user may remove it. Raises OSError
    as a lock does.
    """
    if dry_run:
        return [f"{folder}/{each}" for each in confirmed_removals(folder, name=name)]
    if not _hidden_names(folder, name):
        return []
    removed = []
    with locked(f"{folder}/{LOCK_NAME}"):
        for each in _hidden_names(folder, name):
            _undo(folder, each, name)
        for each, names in confirmed_removals(folder, name=name).items():
            away = f"{folder}/{each}"
            with suppress(OSError):  # the next call tries again
                finish_file(_list_of(away))  # the killed call may not have flushed it
                remove_listed_names(away, names)
            if not os.path.lexists(away):
                removed.append(away)
    return removed


def undo_removals(folder: str, *, name: str | None = None) -> None:
    """Give what was renamed to be removed its name again, where its removal had not begun.

    Args:
        folder: the directory that it is in.
        name: its name; None: anything.
    """
    hidden = _hidden_names(folder, name)
    if len(hidden) > len(confirmed_removals(folder, name=name)):
        with locked(f"{folder}/{LOCK_NAME}"):
            for each in hidden:
                _undo(folder, each, name)


def confirmed_removals(folder: str, *, name: str | None = None) -> dict[str, RemovedNames]:
    """Return what killed removals have still to remove, by the hidden names of the directories."""
    result = {}
    for each in _hidden_names(folder, name):
        with suppress(OSError, CordwoodError):  # another user's
            names = _names_in(folder, each)
            if names is not None and may_remove(_list_of(f"{folder}/{each}")):
                result[each] = names
    return result


def files_of_killed_removals(folder: str) -> set[str]:
    """Return the relative paths of all that killed removals have still to remove in a directory."""
    files = set()
    for hidden, names in confirmed_removals(folder).items():
        files.add(os.path.basename(_list_of(hidden)))
        files.update(f"{hidden}/{name}" if name else hidden for name in names.files)
    return files


def rename_back(away: str, path: str) -> None:
    """Give a file or directory its name again. Raises NotACheckpointError if that is taken."""
    try:
        syscalls.current().rename_to_free_name(away, path)
    except OSError as e:
        if e.errno not in (errno.EEXIST, *_CANNOT_TELL):
            raise
        if e.errno != errno.EEXIST and not os.path.lexists(path):
            syscalls.current().replace(away, path)
            return
        aside = temporary_path(*os.path.split(path), "kept")  # no later call removes that
        syscalls.current().replace(away, aside)
        raise NotACheckpointError(
            f"{path}: it has been saved again meanwhile, and nothing was removed; what was there "
            f"before had changed since it was shown, and lies at {aside}"
        ) from e


def _undo(folder: str, hidden: str, name: str | None) -> None:
    """Give it its name again, unless it has a list."""
    away = f"{folder}/{hidden}"
    match = _ANY.fullmatch(hidden)
    with suppress(OSError, CordwoodError):  # the next call tries again
        if match is None or _names_in(folder, hidden) is not None:
            return
        if os.path.lexists(away):
            path = f"{folder}/{name or match[1]}"
            try:
                rename_back(away, path)
            except NotACheckpointError as e:
                log.warning("a removal was killed before it had begun: %s", e)
            else:
                log.warning("%s is there again: its removal was killed before it began", path)
            sync_directory(folder)
        syscalls.current().unlink(_list_of(away))  # a part of one


def _hidden_names(folder: str, name: str | None) -> list[str]:
    """Return the hidden names of removals in a directory, also of those of which only a list is."""
    pattern = _ANY if name is None else temporary_pattern(name, f"(?:{_REMOVED}|{_LIST})")
    names = filter(pattern.fullmatch, list_names(folder))
    return sorted({f"{each.rpartition('.')[0]}.{_REMOVED}" for each in names})


def _names_in(folder: str, hidden: str) -> RemovedNames | None:
    """Return what the list of a removal says; None if there is none, or only a part of one.

    Raises OSError, and CordwoodError for a list that is no file or too large.
    """
    list_name = os.path.basename(_list_of(f"{folder}/{hidden}"))
    data = read_small_file(folder, list_name, limit_bytes=_MAX_LIST_BYTES)
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        members = json.loads(data or b"")
        names = RemovedNames(members["files"], members["folders"])
        if all(type(each) is str for part in names for each in part):
            return names
    return None


def _list_of(away: str) -> str:
    return f"{away.removesuffix(_REMOVED)}{_LIST}"
