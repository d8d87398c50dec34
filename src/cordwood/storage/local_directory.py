"""An open directory of a local disk, which stays the same while it is open.

Everything is opened relative to one descriptor. So if a save replaces the directory meanwhile, the
two are not mixed, and an index cannot name a file outside of the directory: no symlink in a path is
followed (openat2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Self

from cordwood.errors import CorruptionError, TruncatedError
from cordwood.index import Source
from cordwood.io.open_files import (
    OpenDescriptor,
    OpenFile,
    ReadableFile,
    close_file,
    read_error,
    with_file_name,
)
from cordwood.io.reopened_file import ReopenedFile
from cordwood.io.stale_handles import retry_stale
from cordwood.storage.entry_kinds import leads_to_directory
from cordwood.storage.open_beneath import open_beneath
from cordwood.storage.read_small_file import read_limited, regular_file_size, symlink_error
from cordwood.storage.readable_directory import FOLDER, OTHER, SizeOrKind

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_HOLD_SECONDS = 1.0
_POLL_SECONDS = 0.002
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class LocalDirectory(OpenDescriptor):
    """An open directory of a local disk.

    Raises FileNotFoundError and NotADirectoryError as `os.open` does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.open(self.name, _FOLDER)

    def sizes(self, path: str) -> Mapping[str, SizeOrKind]:
        sizes: dict[str, SizeOrKind] = {}

        def add(entry: os.DirEntry[str]) -> None:
            with suppress(FileNotFoundError):  # removed meanwhile
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    sizes[entry.name] = status.st_size
                else:
                    sizes[entry.name] = FOLDER if stat.S_ISDIR(status.st_mode) else OTHER

        self._for_each_entry(path, add)
        return sizes

    def folders(self, path: str) -> Sequence[str]:
        """Return the names of the directories in a directory in it, sorted.

        Symbolic links to directories are among them, but cannot be opened: see `sizes`.
        """
        names: list[str] = []

        def add(entry: os.DirEntry[str]) -> None:
            if leads_to_directory(entry):
                names.append(entry.name)

        self._for_each_entry(path, add)
        return sorted(names)

    def _for_each_entry(self, path: str, function: Callable[[os.DirEntry[str]], None]) -> None:
        """Call a function with each entry, while the directory is open.

        It is no generator, which an exception could leave open until it is collected.
        """
        here = path == "."
        fd = os.open(path, _FOLDER, dir_fd=self.fd) if here else self._open(path, directory=True)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    function(entry)
        except OSError as e:
            raise with_file_name(e, f"{self.name}/{path}") from e
        finally:
            os.close(fd)

    def has(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        try:
            fd = open_beneath(self.fd, folder, directory=True) if folder else self.fd
            try:
                os.stat(name, dir_fd=fd, follow_symlinks=False)
            finally:
                if folder:
                    os.close(fd)
        except OSError as e:
            if e.errno in (*_GONE, errno.ELOOP, errno.EXDEV):
                return False
            raise type(e)(e.errno, e.strerror, f"{self.name}/{path}") from e
        return True

    def folder(self, path: str) -> Self:
        fd = self._open(path, directory=True)
        directory = type(self).__new__(type(self))
        OpenDescriptor.__init__(directory, f"{self.name.rstrip('/')}/{path}")
        directory.opened.append(fd)
        return directory

    def read(self, path: str, *, limit_bytes: int) -> bytes:
        fd = self._open(path)
        try:
            return read_limited(fd, f"{self.name}/{path}", limit_bytes=limit_bytes)
        finally:
            close_file(fd, f"{self.name}/{path}")

    def file(self, path: str, size_bytes: int) -> DirectoryFile:
        return DirectoryFile(self, path, size_bytes)

    def owning_file(self, path: str, size_bytes: int) -> FileOwningDirectory:
        return FileOwningDirectory(self, path, size_bytes)

    def hold(self) -> None:
        """Take a shared lock, so that a save that replaces the directory does not remove it.

        Without effect where the file system has no locks. Waits a short time for a save that is
        just putting the directory in place.
        """
        deadline = time.monotonic() + _HOLD_SECONDS
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
                    continue
            except OSError:
                pass
            return

    def is_still_at(self, path: str | os.PathLike[str]) -> bool:
        """Return True if `path` still leads to this directory, not to one that replaced it."""
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(status, os.fstat(self.fd))

    def _open(self, path: str, *, directory: bool = False) -> int:
        try:
            return retry_stale(lambda: open_beneath(self.fd, path, directory=directory))
        except OSError as e:
            where = f"{self.name}/{path}"
            if e.errno in _GONE:
                raise CorruptionError(
                    f"{where} is missing: the checkpoint is incomplete; copy or save it again"
                ) from e
            if e.errno in (errno.ELOOP, errno.EXDEV):
                raise symlink_error(where) from e
            raise read_error(e, where) from e

    def open_file(self, path: str, size_bytes: int) -> int:
        """Open a file for reading; return the descriptor.

        Raises CorruptionError and TruncatedError if it is missing, no regular file, or has another
        size.
        """
        fd, name = self._open(path), f"{self.name}/{path}"
        try:
            size = regular_file_size(fd, name)
            if size != size_bytes:
                kind = TruncatedError if size < size_bytes else CorruptionError
                raise kind(
                    f"{name}: expected {size_bytes} bytes, found {size}: it is damaged or belongs "
                    "to another checkpoint; copy or save it again"
                )
        except BaseException:
            os.close(fd)
            raise
        return fd


class DirectoryFile(ReopenedFile):
    """A file of an open directory, opened for each read, because there may be very many.

    Its size is given by the index and checked at every read, and its state from the first one on.
    """

    def __init__(self, directory: LocalDirectory, path: str, size_bytes: int) -> None:
        super().__init__(f"{directory.name}/{path}", size_bytes)
        self._directory = directory
        self._path = path

    def open_again(self) -> int:
        return self._directory.open_file(self._path, self.size_bytes)


class FileOwningDirectory(DirectoryFile):
    """A file of a checkpoint that closes its directory when it is closed."""

    def close(self) -> None:
        self._directory.close()


class OpenDirectoryFile(OpenFile):
    """A file of a directory that is opened once and stays open, also if a save removes it.

    Its size is given by the index and checked here.

    Raises CorruptionError and TruncatedError as reading from a DirectoryFile does.
    """

    def __init__(self, directory: LocalDirectory, path: str, size_bytes: int) -> None:
        super().__init__(f"{directory.name}/{path}")
        self.opened.append(directory.open_file(path, size_bytes))
        self.note_state()


def open_directory_files(
    directory: LocalDirectory, sources: Sequence[Source]
) -> list[ReadableFile]:
    """Open files of a directory. Raises as OpenDirectoryFile does."""
    files: list[ReadableFile] = []
    with ExitStack() as until_all_are_open:
        for source in sources:
            files.append(OpenDirectoryFile(directory, source.name, source.size_bytes))
            until_all_are_open.push(files[-1])
        until_all_are_open.pop_all()
    return files
