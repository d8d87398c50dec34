"""Sidecars that only some indexes have: small files and links, also in directories.

They are there for another tool. A directory of them is made and removed with them. No symbolic link
is followed on the way to one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate

from cordwood.errors import NotACheckpointError
from cordwood.message_text import first_names
from cordwood.storage import syscalls
from cordwood.storage.atomic_file import WritableFile
from cordwood.storage.directories import make_ancestors, scan_directory, sync_directory
from cordwood.storage.entry_kinds import is_removed
from cordwood.storage.file_rights import creation_mode
from cordwood.storage.open_beneath import open_beneath
from cordwood.storage.paths import temporary_path
from cordwood.storage.read_small_file import read_small_file, symlink_error
from cordwood.storage.storage_protocol import LinkTo, Sidecar
from cordwood.storage.syscalls import open_directory_fd

_MAX_SHOWN = 3


def read_optional_sidecar(path: str, name: str, *, limit_bytes: int) -> Sidecar | None:
    """Return a file or link below a directory; None if there is none. Raises as `read_small_file`.

    Args:
        path: the directory.
        name: the path of the sidecar, relative to it.
        limit_bytes: the most bytes that a file may have.
    """
    try:
        with _parent(path, name) as (folder, base):
            if stat.S_ISLNK(os.lstat(base, dir_fd=folder).st_mode):
                return LinkTo(os.readlink(base, dir_fd=folder))
            return read_small_file(path, base, limit_bytes=limit_bytes, folder=folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise symlink_error(f"{path}/{name}") from e
        raise


def require_free_paths(path: str, names: Collection[str]) -> None:
    """Raise NotACheckpointError if there is anything by one of these names below a directory."""
    present = [name for name in sorted(names) if os.path.lexists(f"{path}/{name}")]
    if present:
        raise NotACheckpointError(
            errno.EEXIST,
            f"{first_names(present, _MAX_SHOWN)}: the index for Orbax would be there, and cordwood "
            "did not write that; move it away",
            path,
        )


def write_optional_sidecars(
    path: str, sidecars: Mapping[str, Sidecar], temporary_name: str, written: list[WritableFile]
) -> None:
    """Write sidecars below a directory, under its lock; `flush_folders` makes them durable.

    Args:
        path: the directory.
        sidecars: files and links that are not there yet.
        temporary_name: the file in the directory by which temporary files are named.
        written: gets the temporary files, which are closed by the caller.

    Raises OSError.
    """
    calls = syscalls.current()
    for folder in sorted(_folders_of(sidecars)):
        make_ancestors(f"{path}/{folder}", [])
    for name, sidecar in sidecars.items():
        if isinstance(sidecar, LinkTo):
            calls.symlink(sidecar.target, f"{path}/{name}")
            continue
        file = WritableFile(temporary_path(path, temporary_name))
        written.append(file)
        file.open(creation_mode(None, path))
        file.write(memoryview(sidecar), 0)
        calls.fsync(file.fd)
        calls.replace(file.path, f"{path}/{name}")


def remove_optional_sidecars(path: str, names: Collection[str]) -> None:
    """Remove sidecars durably, and the directories that are empty without them. Raises OSError.

    `names` are the paths of sidecars, and of directories of sidecars that may be empty already.
    """
    calls = syscalls.current()
    folders = _folders_of(names)
    for name in sorted(names):
        with suppress(FileNotFoundError, NotADirectoryError), _parent(path, name) as (folder, base):
            try:
                calls.unlink(base, folder)
            except IsADirectoryError:
                folders.add(name)
    flush_folders(path, names)  # a folder that is removed takes no lost unlink back
    for name in sorted(folders, reverse=True):
        with suppress(OSError), _parent(path, name) as (folder, base):  # something else is in it
            calls.rmdir(base, folder)
    sync_directory(path)


def flush_folders(path: str, names: Collection[str]) -> None:
    """Make durable which sidecars there are below a directory. Raises OSError."""
    for folder in sorted(_folders_of(names), reverse=True):
        with suppress(FileNotFoundError, NotADirectoryError):
            sync_directory(f"{path}/{folder}")
    sync_directory(path)


def expand_folders(
    path: str, others: Sequence[str], names: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return names in a directory, with the paths in a folder of sidecars in place of its name.

    Args:
        path: the directory.
        others: the names in it that are no regular files.
        names: the paths of the sidecars that there may be.

    Returns:
        The names and paths, and the folders of sidecars that are empty.
    """
    folders = _folders_of(names)
    expanded: list[str] = []
    empty: list[str] = []
    pending = list(others)
    for name in pending:  # the loop appends to this list
        if name not in folders or os.path.islink(f"{path}/{name}"):
            expanded.append(name)
            continue
        inside = [each for each in scan_directory(f"{path}/{name}") if not is_removed(each)]
        pending += [f"{name}/{each.name}" for each in inside]
        if not inside:
            empty.append(name)
    return expanded, empty


def _folders_of(names: Collection[str]) -> set[str]:
    """Return the directories that paths lead through."""
    return {folder for name in names for folder in accumulate(name.split("/")[:-1], "{}/{}".format)}


@contextmanager
def _parent(path: str, name: str) -> Iterator[tuple[int, str]]:
    """Open the directory of a file below another one; yield its descriptor and the file's name."""
    parent, _, base = name.rpartition("/")
    with open_directory_fd(path) as root:
        folder = open_beneath(root, parent, directory=True) if parent else os.dup(root)
        try:
            yield folder, base
        finally:
            os.close(folder)
