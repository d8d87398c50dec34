"""Tests of a file system: are checkpoints safe on it? Each operation of a save is tried."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from cordwood.errors import StorageError
from cordwood.storage.syscalls import opened_fd

_TRIAL_BYTES = 32 << 20
_MIN_FREE_BYTES = 1 << 30  # less free space is reported as a problem
_BLOCK = 4096


class Finding(NamedTuple):
    """The result of one test."""

    name: str
    good: bool
    needed: bool  # without it a save is not safe, or not possible
    text: str


def examine(path: str | os.PathLike[str]) -> list[Finding]:
    """Try the operations of a save in a directory, and remove all files of the tests.

    Args:
        path: the directory; or the path of a future checkpoint: then its first existing parent.

    Raises PermissionError or StorageError if nothing can be created in the directory.
    """
    folder = os.path.abspath(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    trial = os.path.join(folder, f".cordwood-doctor-{secrets.token_hex(8)}")
    try:
        os.mkdir(trial)
    except OSError as e:
        kind = PermissionError if isinstance(e, PermissionError) else StorageError
        what = f"no directory can be made here ({e.strerror}), so nothing can be saved here"
        raise kind(e.errno, what, folder) from e
    try:
        return [
            _free(folder),
            _speed(trial),
            _tried("fsync of a directory", True, lambda: _sync(trial)),
            _tried("replace by rename", True, lambda: _replace(trial)),
            _tried("rename of a directory", True, lambda: _rename_folder(trial)),
            _tried("hard links", False, lambda: _link(trial)),
            _tried("locks", True, lambda: _lock(trial)),
            _tried("inode numbers", True, lambda: _look_twice(trial)),
            _tried("O_DIRECT", False, lambda: _direct(trial)),
        ]
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _free(folder: str) -> Finding:
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    text = f"{free / (1 << 30):.1f} GiB"
    if status.f_files and not status.f_favail:
        return Finding("free space", False, True, f"{text}, but no inodes")
    return Finding("free space", free >= _MIN_FREE_BYTES, True, text)


def _speed(trial: str) -> Finding:
    """Write and flush a file, which fails if the disk does."""
    data = os.urandom(1 << 20)
    start = time.perf_counter()
    try:
        with _opened(trial, "speed", os.O_WRONLY) as fd:
            for _ in range(_TRIAL_BYTES >> 20):
                os.write(fd, data)
            os.fsync(fd)
    except OSError as e:
        return Finding("durable write", False, True, str(e))
    rate = _TRIAL_BYTES / (time.perf_counter() - start) / (1 << 20)
    return Finding("durable write", True, True, f"{rate:.0f} MiB/s for 32 MiB, fsync included")


def _tried(name: str, needed: bool, attempt: Callable[[], None]) -> Finding:
    try:
        attempt()
    except OSError as e:
        return Finding(name, False, needed, e.strerror or str(e))
    return Finding(name, True, needed, "works")


def _opened(trial: str, name: str, flags: int) -> AbstractContextManager[int]:
    """Create a file of a trial, and open it in a block."""
    return opened_fd(os.path.join(trial, name), flags | os.O_CREAT, mode=0o600)


def _replace(trial: str) -> None:
    old, new = Path(trial, "old"), Path(trial, "new")
    for path in (old, new):
        path.write_text(path.name, encoding="utf-8")
    new.replace(old)
    if old.read_text(encoding="utf-8") != "new":
        raise OSError(errno.EIO, "the old file is still there after the rename")


def _sync(trial: str) -> None:
    """Flush a directory; unlike `sync_directory`, fail if the file system cannot."""
    with opened_fd(trial, os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fsync(fd)


def _rename_folder(trial: str) -> None:
    """Rename a directory that is not empty, as saves of the zarr layout and deletions do."""
    before, after = Path(trial, "before"), Path(trial, "after")
    before.mkdir()
    (before / "held").write_text("held", encoding="utf-8")
    before.replace(after)
    held = after / "held"
    if not held.exists() or held.read_text(encoding="utf-8") != "held":
        raise OSError(errno.EIO, "what a directory holds is lost when it is renamed")


def _look_twice(trial: str) -> None:
    """Compare the inode number of a file by path and by descriptor; locks depend on it."""
    path = os.path.join(trial, "looked at")
    with _opened(trial, "looked at", os.O_RDWR) as fd:
        looks = [os.fstat(fd), os.lstat(path), os.lstat(path), os.fstat(fd)]
    if len({(look.st_dev, look.st_ino) for look in looks}) > 1:
        raise OSError(errno.EIO, "a file has another inode number at each look; locks need one")


def _link(trial: str) -> None:
    os.link(os.path.join(trial, "old"), os.path.join(trial, "linked"))


def _lock(trial: str) -> None:
    import fcntl

    with _opened(trial, "lock", os.O_RDWR) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _direct(trial: str) -> None:
    with mmap.mmap(-1, _BLOCK) as page, _opened(trial, "direct", os.O_WRONLY | os.O_DIRECT) as fd:
        os.write(fd, page)
