"""Local paths: what one leads to, and the names that saves make.

Whatever a save creates for a time has a name that begins with a dot, and with the name of the file
or directory that it will become: so a later save finds what a killed one has left.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from cordwood.errors import StorageError
from cordwood.storage.locations import LocalPath, Location

# The folder beside the steps of a run in an object store, with the data objects that they share.
# It comes before the names of steps in a listing, which can so begin after it.
POOL = ".data"
SAVE_ID = re.compile(r"[0-9a-f]{16}")

_NAME_MAX = 255  # bytes in a file name on Linux file systems
_RANDOM_BYTES = 8
_TIME_DIGITS = 8  # of the id of a save

_WHY = {
    errno.ELOOP: "a symbolic link leads back to itself; expected a checkpoint",
    errno.ENAMETOOLONG: "longer than a name or a path can be; expected that of a checkpoint",
}


def kind_at(
    path: str | os.PathLike[str],
) -> Literal["nothing", "a file", "a folder", "something else"]:
    """Return what a path leads to. Symbolic links are followed.

    Raises StorageError for circular links and for names that are too long; PermissionError. Each
    names the path.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "nothing"
    except OSError as e:
        if e.errno in _WHY:
            raise StorageError(e.errno, _WHY[e.errno], os.fspath(path)) from e
        raise
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a file" if stat.S_ISREG(mode) else "something else"


def blocking_parent(path: str | os.PathLike[str]) -> str | None:
    """Return the existing parent of a path that is not a directory; None if there is none."""
    for parent in Path(path).parents:
        with suppress(OSError):
            return None if stat.S_ISDIR(os.stat(parent).st_mode) else os.fspath(parent)
    return None


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is known to lead to a directory; symbolic links are followed."""
    return os.path.isdir(path)


def is_same_path(path: str, other: str) -> bool:
    """Return True if two paths, or URLs, are the same; symbolic links are followed."""
    return os.path.realpath(path) == os.path.realpath(other)


def would_replace(destination: str, path: str) -> bool:
    """Return True if a checkpoint at `destination` would replace what `path` has, or a part.

    They are the same; or the destination is a file at or below the path, or the directory of one.
    Symbolic links are followed, also those below the path.
    """
    one, other = os.path.realpath(destination), os.path.realpath(path)
    if one == other or kind_at(destination) == "nothing":
        return one == other
    return any(one in (file, os.path.dirname(file)) for file in _real_files(other))


def refuse_to_replace(destination: str, operands: Iterable[str], *, result: str) -> None:
    """Raise ValueError if a result at `destination` would replace an operand, or a part of one."""
    for operand in operands:
        if would_replace(destination, operand):
            raise ValueError(
                f"the {result} would replace {operand} or a part of it: write to another path"
            )


def _real_files(path: str) -> Iterator[str]:
    """Yield the real paths of a file, or of the files in a directory and below."""
    if kind_at(path) == "a file":
        yield path
    for folder, _, names in os.walk(path):
        for name in names:
            file = os.path.join(folder, name)
            yield os.path.realpath(file) if os.path.islink(file) else file


def is_within(path: str, other: str) -> bool:
    """Return True if a path, or a URL, lies below another one; symbolic links are followed."""
    parent = os.path.realpath(other).rstrip("/")
    return os.path.realpath(path).startswith(f"{parent}/")


def real_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path to which a path leads; symbolic links are followed."""
    return os.path.realpath(path)


def last_name(path: str | os.PathLike[str]) -> str:
    """Return the last component of a path, or of a URL; symbolic links are followed."""
    return os.path.basename(os.path.realpath(path))


def absolute_path(path: LocalPath) -> LocalPath:
    """Return an absolute path; `..` is kept, because it depends on symbolic links."""
    return path if os.path.isabs(path) else LocalPath(os.path.join(os.getcwd(), path))


def absolute_location(location: Location) -> Location:
    """Return the same place for a process with another working directory."""
    return absolute_path(location) if isinstance(location, LocalPath) else location


def is_empty_file(path: str | os.PathLike[str]) -> bool:
    """Return True if a path leads to an empty file, without opening it; links are followed."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def is_link(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a symbolic link, also a broken one."""
    return os.path.islink(path)


def path_exists(path: str | os.PathLike[str]) -> bool:
    """Return True if a path exists, also as a broken symbolic link.

    Raises PermissionError if the parent directory may not be searched.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as e:
        if e.errno == errno.ELOOP:  # a parent is a circular link
            return False
        raise
    return True


def temporary_prefix(name: str) -> str:
    """Return the common prefix of the names of all temporary files of `name`."""
    stem = f".{name}.cordwood-"
    if len(os.fsencode(stem)) + 2 * _RANDOM_BYTES + len(".tmp") <= _NAME_MAX:
        return stem
    short = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()
    return f".{short}.cordwood-"


LOCK_NAME = f"{temporary_prefix('steps')}lock"  # of a directory, for renames in it and pins


def temporary_pattern(name: str, kind: str = "tmp") -> re.Pattern[str]:
    """Return a pattern that matches the names of all temporary files of `name`."""
    stem = re.escape(temporary_prefix(name))
    return re.compile(rf"{stem}[0-9a-f]{{{2 * _RANDOM_BYTES}}}\.{kind}")


def temporary_of(name: str) -> str | None:
    """Return the name of the file that a file of that name is a temporary file of, or None.

    A very long name is not recognized.
    """
    match = re.fullmatch(rf"\.(.+)\.cordwood-[0-9a-f]{{{2 * _RANDOM_BYTES}}}\.tmp", name)
    return match[1] if match else None


def temporary_path(folder: str, name: str, kind: str = "tmp") -> str:
    """Return the path of a new temporary file of `name`, with a random part.

    Of a directory that is being written the kind is "stage"; of a step that was moved away to be
    removed, "deleted" or "damaged"; of what `cordwood rm` removes, "removed".
    """
    random = secrets.token_hex(_RANDOM_BYTES)
    return os.path.join(folder, f"{temporary_prefix(name)}{random}.{kind}")


_STAGE = re.compile(rf"\..+\.cordwood-[0-9a-f]{{{2 * _RANDOM_BYTES}}}\.stage")


def is_stage_name(name: str) -> bool:
    """Return True for the name of a staging directory of any name."""
    return _STAGE.fullmatch(name) is not None


def old_name(name: str) -> str:
    """Return the name of the directory `name` while a save without exchange replaces it."""
    return f"{temporary_prefix(name)}old"


def locate_directory(path: str | os.PathLike[str]) -> str:
    """Return the actual path of a directory: a save without exchange may have renamed it."""
    text = os.fspath(path)
    if not os.path.lexists(text):
        parent, name = os.path.split(os.path.realpath(text))
        old = f"{parent}/{old_name(name)}"
        if os.path.isdir(old):
            return old
    return text


def parent_and_name(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the directory that something lies in, or has lain in, and its name; links resolved."""
    return os.path.split(os.path.realpath(path))


def journal_beside(destination: LocalPath) -> LocalPath:
    """Return the place of the journal of bulk work that writes to a local path."""
    name = f".{destination.name}.cordwood-journal"
    return destination.parent.child(name) if "/" in destination.text else LocalPath(name)


def stale_stages(path: str | os.PathLike[str]) -> list[str]:
    """Return the staging directories beside `path`, of running or killed saves of `path`."""
    parent, name = os.path.split(os.path.realpath(path))
    is_stage = temporary_pattern(name, "stage").fullmatch
    with suppress(FileNotFoundError):
        return [f"{parent}/{entry}" for entry in sorted(os.listdir(parent)) if is_stage(entry)]
    return []


def stage_path(path: str, save_id: str) -> str:
    """Return the path of the staging directory of `path` with an id, as `new_save_id` makes one."""
    parent, name = os.path.split(path)
    return f"{parent}/{temporary_prefix(name)}{save_id}.stage"


def new_save_id() -> str:
    """Return 16 hexadecimal digits: 8 of the seconds since 1970, and 8 random ones.

    The time is for people who look at the names. If the clock is before 1970 or after 2106, it is
    the first or the last second of that time.
    """
    seconds = min(max(int(time.time()), 0), 16**_TIME_DIGITS - 1)
    return f"{seconds:0{_TIME_DIGITS}x}{secrets.token_hex(4)}"


def pooled_name(save_id: str, name: str) -> str:
    """Return the name of a data object of the pool, as the index of a step refers to it.

    >>> pooled_name("65f0000000001234", "data-65f0000000001234-0-0.safetensors")
    '../.data/65f0000000001234/data-65f0000000001234-0-0.safetensors'
    """
    return f"../{POOL}/{save_id}/{name}"
