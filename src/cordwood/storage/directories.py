"""Whole directories: creation, listing, counting, sizes, flushing and removal."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from cordwood.storage import syscalls
from cordwood.storage.entry_kinds import leads_to_directory
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.open_beneath import open_beneath
from cordwood.storage.syscalls import open_directory_fd, opened_fd
from cordwood.threads.stop_check import check_stop


def remove_tree(path: str) -> None:
    """Remove a directory and everything in it, as far as possible.

    Everything is removed relative to a descriptor of the directory. So nothing outside of it is
    removed, even if another process replaces it, or a directory in it, by a symbolic link.

    Args:
        path: the directory. Nothing happens if it is a symbolic link.

    Raises what `check_stop` raises: then the rest stays.
    """
    with suppress(OSError):  # the next save tries again
        with suppress(OSError), open_directory_fd(path) as fd:
            _empty(fd)
        syscalls.current().rmdir(path)


def _empty(root: int) -> None:
    """Remove everything in an open directory."""
    calls = syscalls.current()
    folders = [""]
    for folder in folders:  # the loop appends to this list
        check_stop()
        with suppress(OSError), _opened(root, folder) as fd:
            for name, is_folder in list_entries(fd).items():
                if is_folder:
                    folders.append(f"{folder}/{name}" if folder else name)
                    continue
                with suppress(OSError):
                    calls.unlink(name, fd)
    for folder in reversed(folders[1:]):
        check_stop()
        parent, _, name = folder.rpartition("/")
        with suppress(OSError), _opened(root, parent) as fd:
            calls.rmdir(name, fd)


@contextmanager
def _opened(root: int, path: str) -> Iterator[int]:
    """Open a directory below an open one; no symbolic link is followed."""
    fd = open_beneath(root, path, directory=True) if path else os.dup(root)
    try:
        yield fd
    finally:
        os.close(fd)


def list_entries(folder: str | int) -> dict[str, bool]:
    """Return the names in a directory, with True for directories; {} if there is no directory.

    Args:
        folder: the directory, by path or by descriptor.
    """
    return {entry.name: entry.is_dir(follow_symlinks=False) for entry in scan_directory(folder)}


def may_remove(path: str) -> bool:
    """Return True if this user may remove the leftovers of a killed process at `path`.

    That is so if they belong to this user, or to the owner of the directory that they are in (some
    file systems give all files the same owner). The superuser may always remove them.
    """
    user = os.geteuid()
    owner = os.lstat(path).st_uid
    return user in (0, owner) or owner == os.stat(os.path.dirname(path)).st_uid


def list_names(folder: str) -> list[str]:
    """Return the names in a directory, sorted; [] if there is none, or it was just removed."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(folder))
    return []


def list_subdirectories(folder: str) -> set[str]:
    """Return the names of the directories in a directory, with symbolic links to directories.

    A directory that does not exist, or has just been removed, has none.
    """
    return {entry.name for entry in scan_directory(folder) if leads_to_directory(entry)}


def file_sizes(folder: str) -> dict[str, int]:
    """Return the sizes of the files in a directory, at any depth, by their paths in it.

    Symbolic links to files are followed; broken ones are left out.
    """
    sizes = {}
    for above, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(above, name)
            with suppress(FileNotFoundError):
                sizes[os.path.relpath(path, folder)] = os.stat(path).st_size
    return sizes


def scan_directory(folder: str | int) -> list[os.DirEntry[str]]:
    """Return the entries of a directory without stat calls; [] if there is no directory."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return list(entries)
    return []


def contains_file(folder: str, name: str, *, at_most: int) -> bool:
    """Return True if a directory holds a file of that name, at any depth.

    The search ends after the directory in which it has seen more than `at_most` entries. It follows
    no symlinks and skips directories that it may not read, such as lost+found.
    """
    folders = [folder]
    seen = 0
    while folders and seen <= at_most:
        each = folders.pop()
        try:
            entries = list_entries(each)
        except PermissionError:
            if each == folder:
                raise
            continue
        if entries.get(name) is False:
            return True
        seen += len(entries)
        folders += [f"{each}/{inner}" for inner, is_folder in entries.items() if is_folder]
    return False


def count_files(folder: str, *, at_most: int) -> int:
    """Return the number of files in a directory, at any depth, but at most `at_most` + 1.

    That many directories count as too many files as well.
    """
    count = 0
    folders = [folder]
    for each in folders:  # the loop appends to this list
        for name, is_folder in list_entries(each).items():
            if is_folder:
                folders.append(f"{each}/{name}")
            else:
                count += 1
            if max(count, len(folders)) > at_most:
                return at_most + 1
    return count


def size_on_disk(location: Location) -> int:
    """Return the total size of all files at a path; 0 for a URL, or if there is nothing."""
    status = _local_status(location)
    if status is None:
        return 0
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size
    return sum(each.st_size for each in _files_in(str(location)))


def linked_bytes(paths: Sequence[str]) -> list[int]:
    """Return for each of several directories the size of its files that are in an earlier one too.

    A file is in two directories if both have a hard link to it.
    """
    seen: set[tuple[int, int]] = set()
    sizes = []
    for path in paths:
        files = {(each.st_dev, each.st_ino): each.st_size for each in _files_in(path)}
        sizes.append(sum(size for file, size in files.items() if file in seen))
        seen.update(files)
    return sizes


def _files_in(path: str | os.PathLike[str]) -> Iterator[os.stat_result]:
    """Yield the status of each file in a directory, at any depth, as far as it can be read."""
    folders = [os.fspath(path)]
    for folder in folders:  # the loop appends to this list
        entries: list[os.DirEntry[str]] = []
        with suppress(OSError):  # this user may not read it; or it is too deep for a path
            entries = scan_directory(folder)
        for entry in entries:
            with suppress(OSError):  # a save has just removed it
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False)


def modified_seconds(location: Location) -> float | None:
    """Return the modification time of a path, in seconds since 1970; None for a URL."""
    status = _local_status(location)
    return None if status is None else status.st_mtime


def _local_status(location: Location) -> os.stat_result | None:
    if isinstance(location, LocalPath):
        with suppress(OSError):
            return os.stat(location)
    return None


def make_ancestors(folder: str, made: list[str]) -> None:
    """Make a directory and its missing parents durably, and append their paths to `made`.

    An empty directory may be that of a process that died before it flushed the entry.
    """
    missing: list[str] = []
    while not os.path.isdir(folder):
        missing.append(folder)
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    for each in reversed(missing):
        try:
            syscalls.current().mkdir(each)
            made.append(each)
        except FileExistsError:
            if not os.path.isdir(each):
                raise
        sync_directory(os.path.dirname(each))  # also if another process has just made it
    if missing or _is_empty(folder):
        # The process that made the first existing parent may not have flushed its entry.
        sync_parent(folder)


def _is_empty(folder: str) -> bool:
    with suppress(PermissionError), os.scandir(folder) as entries:
        return next(entries, None) is None
    return False


def remove_directories(made: list[str]) -> None:
    """Remove the directories that `make_ancestors` made, as far as they are empty."""
    for folder in reversed(made):
        with suppress(OSError):  # not empty: another process uses it
            syscalls.current().rmdir(folder)


def sync_parent(path: str) -> None:
    """Flush the entry of a directory in its parent, as far as this user may open the parent."""
    with suppress(PermissionError):
        sync_directory(os.path.dirname(path))


def sync_directory(folder: str) -> None:
    """Flush a directory to the disk, if the file system supports it (some FUSE and SMB do not)."""
    try:
        with opened_fd(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:
            syscalls.current().fsync(fd)
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
