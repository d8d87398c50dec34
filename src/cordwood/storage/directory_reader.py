"""Reading from one directory, which stays the same while it is open.

Everything is opened relative to one descriptor. So if a save replaces the directory meanwhile, the
two are not mixed, and an index cannot name a file outside of the directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from cordwood.errors import CorruptionError, LimitError, TruncatedError
from cordwood.index import Source
from cordwood.storage.open_files import (
    Closable,
    ReadableFile,
    close_file,
    map_file,
    read_views,
    with_file_name,
)
from cordwood.storage.open_without_symlinks import open_beneath

MAX_OPEN_FILES = 64  # the files of a checkpoint with more are opened for each read
FOLDER, OTHER = -1, -2  # in place of a size: a directory; a symbolic link, pipe, socket or device

_HOLD_SECONDS = 1.0
_POLL_SECONDS = 0.002
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class ReadableDirectory(Protocol):
    """A directory that formats can read. Paths are relative, with '/'."""

    @property
    def name(self) -> str: ...

    def sizes(self, path: str) -> Mapping[str, int]:
        """Return the entries of a directory in it: the sizes of regular files, FOLDER or OTHER.

        Raises CorruptionError if there is no such directory.
        """
        ...

    def folders(self, path: str) -> Sequence[str]:
        """Return the names of the directories in a directory in it, sorted.

        Raises CorruptionError if there is no such directory.
        """
        ...

    def read(self, path: str, *, limit_bytes: int) -> bytes:
        """Return the bytes of a whole file.

        Raises CorruptionError if it is missing or no regular file, LimitError if it is larger than
        `limit_bytes`.
        """
        ...

    def has(self, path: str) -> bool:
        """Return True if anything has that name, also a broken symlink; follow no symlinks."""
        ...

    def file(self, path: str, size_bytes: int) -> ReadableFile:
        """Return a file that must have `size_bytes`; it is opened when it is read."""
        ...


class LocalDirectory(Closable):
    """An open directory of a local disk.

    Raises FileNotFoundError and NotADirectoryError as `os.open` does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._fd = -1
        self._fd = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sizes(self, path: str) -> Mapping[str, int]:
        fd = self._open_folder(path)
        sizes = {}
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # removed meanwhile
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            sizes[entry.name] = status.st_size
                        else:
                            sizes[entry.name] = FOLDER if stat.S_ISDIR(status.st_mode) else OTHER
        except OSError as e:
            raise with_file_name(e, f"{self.name}/{path}") from e
        finally:
            os.close(fd)
        return sizes

    def folders(self, path: str) -> Sequence[str]:
        """Return the names of the directories in a directory in it, sorted.

        Symbolic links to directories are among them, but cannot be opened: see `sizes`.
        """
        fd = self._open_folder(path)
        try:
            with os.scandir(fd) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except OSError as e:
            raise with_file_name(e, f"{self.name}/{path}") from e
        finally:
            os.close(fd)

    def has(self, path: str) -> bool:
        """Return True if anything has that name, also a broken symlink; follow no symlinks."""
        folder, _, name = path.rpartition("/")
        try:
            fd = open_beneath(self._folder(), folder, directory=True) if folder else self._folder()
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

    def folder(self, path: str) -> LocalDirectory:
        """Open a directory in it, which stays open when this one is closed.

        Raises CorruptionError if there is none, or if the path contains a symbolic link.
        """
        fd = self._open(path, directory=True)
        directory = LocalDirectory.__new__(LocalDirectory)
        directory.name, directory._fd = f"{self.name.rstrip('/')}/{path}", fd
        return directory

    def read(self, path: str, *, limit_bytes: int) -> bytes:
        fd = self._open(path)
        try:
            size = regular_file_size(fd, f"{self.name}/{path}")
            if size > limit_bytes:
                raise LimitError(
                    f"{self.name}/{path}: {size} bytes; expected at most {limit_bytes}"
                )
            data = os.pread(fd, size + 1, 0)
            while len(data) < size and (more := os.pread(fd, size + 1 - len(data), len(data))):
                data += more
        except OSError as e:
            raise with_file_name(e, f"{self.name}/{path}") from e
        finally:
            close_file(fd, f"{self.name}/{path}")
        return data

    def file(self, path: str, size_bytes: int) -> DirectoryFile:
        """Return a file that must have `size_bytes`; it is opened when it is read."""
        return DirectoryFile(self, path, size_bytes)

    def hold(self) -> None:
        """Take a shared lock, so that a save that replaces the directory does not remove it.

        Without effect where the file system has no locks. Waits a short time for a save that is
        just putting the directory in place.
        """
        deadline = time.monotonic() + _HOLD_SECONDS
        while True:
            try:
                fcntl.flock(self._folder(), fcntl.LOCK_SH | fcntl.LOCK_NB)
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
        return os.path.samestat(status, os.fstat(self._folder()))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _folder(self) -> int:
        if self._fd < 0:
            raise ValueError(f"{self.name} is closed; open it again")
        return self._fd

    def _open_folder(self, path: str) -> int:
        if path == ".":
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder())
        return self._open(path, directory=True)

    def _open(self, path: str, *, directory: bool = False) -> int:
        try:
            return open_beneath(self._folder(), path, directory=directory)
        except OSError as e:
            where = f"{self.name}/{path}"
            if e.errno in _GONE:
                raise CorruptionError(
                    f"{where} is missing: the checkpoint is incomplete; copy or save it again"
                ) from e
            if e.errno in (errno.ELOOP, errno.EXDEV):
                raise CorruptionError(
                    f"{where} is, or lies behind, a symbolic link: expected a regular file of the "
                    "checkpoint's own; copy the checkpoint with links followed (cp -rL)"
                ) from e
            raise type(e)(e.errno, e.strerror, where) from e

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if (
            not ending()
        ):  # at exit the names of this module may be gone; the system closes all files
            self.close()


class DirectoryFile(Closable):
    """A file of an open directory, opened for each read, because there may be very many.

    Its size is given by the index and checked at every read.
    """

    name: str
    size_bytes: int

    def __init__(self, directory: LocalDirectory, path: str, size_bytes: int) -> None:
        self.name = f"{directory.name}/{path}"
        self.size_bytes = size_bytes
        self._directory = directory
        self._path = path

    def read(self, offset: int, length: int) -> bytes:
        whole = bytearray(length)
        self.read_into(offset, [memoryview(whole)])
        return bytes(whole)

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        self._require(offset, sum(map(len, views)))
        fd = self._open()
        try:
            read_views(fd, offset, views, name=self.name)
        finally:
            close_file(fd, self.name)

    def map(self) -> memoryview:
        if self.size_bytes == 0:
            return memoryview(b"")
        fd = self._open()
        try:
            return map_file(fd, self.size_bytes, name=self.name)
        finally:
            close_file(fd, self.name)

    def _require(self, offset: int, length: int) -> None:
        if offset < 0 or offset + length > self.size_bytes:
            raise TruncatedError(
                f"{self.name}: expected {length} bytes at offset {offset}, found "
                f"{max(0, self.size_bytes - offset)}"
            )

    def _open(self) -> int:
        fd = self._directory._open(self._path)
        try:
            size = regular_file_size(fd, self.name)
            if size != self.size_bytes:
                kind = TruncatedError if size < self.size_bytes else CorruptionError
                raise kind(
                    f"{self.name}: expected {self.size_bytes} bytes, found {size}: it is damaged "
                    "or belongs to another checkpoint; copy or save it again"
                )
        except BaseException:
            os.close(fd)
            raise
        return fd


class FileOwningDirectory(DirectoryFile):
    """A file of a checkpoint that closes its directory when it is closed."""

    def close(self) -> None:
        self._directory.close()


class OpenDirectoryFile(DirectoryFile):
    """A file of a directory that is opened once and stays open, also if a save removes it.

    Its size is given by the index and checked here.

    Raises CorruptionError and TruncatedError as reading from a DirectoryFile does.
    """

    def __init__(self, directory: LocalDirectory, path: str, size_bytes: int) -> None:
        super().__init__(directory, path, size_bytes)
        self._fd = -1
        self._fd = self._open()

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        self._require(offset, sum(map(len, views)))
        read_views(self._descriptor(), offset, views, name=self.name)

    def map(self) -> memoryview:
        return map_file(self._descriptor(), self.size_bytes, name=self.name)

    def _descriptor(self) -> int:
        if self._fd < 0:
            raise ValueError(f"{self.name} is closed; open it again")
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_file(fd, self.name)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if (
            not ending()
        ):  # at exit the names of this module may be gone; the system closes all files
            self.close()


def open_directory_files(
    directory: LocalDirectory, sources: Sequence[Source]
) -> list[ReadableFile]:
    """Open files of a directory. Raises as OpenDirectoryFile does."""
    files: list[ReadableFile] = []
    try:
        for source in sources:
            files.append(OpenDirectoryFile(directory, source.name, source.size_bytes))
    except BaseException:
        for file in files:
            file.close()
        raise
    return files


def regular_file_size(fd: int, name: str) -> int:
    """Return the size of an open file. Raises CorruptionError unless it is a regular file."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise CorruptionError(
            f"{name}: expected a regular file, found a directory, pipe, socket or device"
        )
    return status.st_size
