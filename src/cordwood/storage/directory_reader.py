"""Reading from one directory, which stays the same while it is open.

Everything is opened relative to one descriptor. So if a save replaces the directory meanwhile, the
two are not mixed, and an index cannot name a file outside of the directory: no symlink in a path is
followed (openat2).

One file, because a directory, its files and the way to open both are one promise.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Protocol, Self, TypeVar

from cordwood.errors import CorruptionError, LimitError, TruncatedError
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
from cordwood.storage import syscalls
from cordwood.storage.entry_kinds import leads_to_directory
from cordwood.storage.locations import LocalPath, Location

_SYS_OPENAT2 = 437  # the same on every architecture
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_UNAVAILABLE = (errno.ENOSYS, errno.EPERM, errno.EINVAL)  # EPERM: a sandbox that forbids it
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

FOLDER, OTHER = -1, -2  # in place of a size: a directory; a symbolic link, pipe, socket or device

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
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


class OpenDirectory(ReadableDirectory, Protocol):
    """A directory of a disk or of an object store that was opened to read a checkpoint."""

    def folder(self, path: str) -> Self:
        """Open a directory in it, which stays open when this one is closed.

        Raises CorruptionError if there is none, or if the path contains a symbolic link.
        """
        ...

    def owning_file(self, path: str, size_bytes: int) -> ReadableFile:
        """Return a file as `file` does, which closes the directory when it is closed."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...


def directory_at(location: Location) -> OpenDirectory:
    """Open a directory at a path, or what lies below the URL of an object store.

    Raises FileNotFoundError and NotADirectoryError.
    """
    if isinstance(location, LocalPath):
        return LocalDirectory(location)
    from cordwood.storage.object_directory import ObjectDirectory

    return ObjectDirectory(location)


class LocalDirectory(OpenDescriptor):
    """An open directory of a local disk.

    Raises FileNotFoundError and NotADirectoryError as `os.open` does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.open(self.name, _FOLDER)

    def sizes(self, path: str) -> Mapping[str, int]:
        sizes = {}

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
                raise _behind_a_link(where) from e
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


def read_limited(fd: int, name: str, *, limit_bytes: int) -> bytes:
    """Return all bytes of an open file; of one that grows, perhaps one more.

    Raises CorruptionError unless it is a regular file, LimitError for a larger one, and OSError
    with the name of the file.
    """
    try:
        size = regular_file_size(fd, name)
        if size > limit_bytes:
            raise LimitError(f"{name}: {size} bytes; expected at most {limit_bytes}")
        data = os.pread(fd, size + 1, 0)
        while len(data) < size and (more := os.pread(fd, size + 1 - len(data), len(data))):
            data += more
    except OSError as e:
        raise read_error(e, name) from e
    return data


def regular_file_size(fd: int, name: str) -> int:
    """Return the size of an open file. Raises CorruptionError unless it is a regular file."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise CorruptionError(
            f"{name}: expected a regular file, found a directory, pipe, socket or device"
        )
    return status.st_size


def read_small_file(
    path: str, name: str, *, limit_bytes: int, folder: int | None = None
) -> bytes | None:
    """Return all bytes of a file in the directory of a checkpoint; None if there is no file.

    Args:
        path: the directory.
        name: the file.
        limit_bytes: the most bytes that it may have.
        folder: a descriptor of the directory, to read from in place of `path`.

    Raises LimitError for a larger file, CorruptionError for a symbolic link, and OSError with the
    name of the file.
    """
    where = f"{path}/{name}"

    def read() -> bytes:
        with OpenDescriptor(where) as file:
            call = syscalls.current().open  # a save reads what is there
            file.open(where if folder is None else name, _FILE, folder=folder, call=call)
            return read_limited(file.fd, where, limit_bytes=limit_bytes)

    try:
        return retry_stale(read)
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise _behind_a_link(where) from e
        raise with_file_name(e, where) from e


def _behind_a_link(where: str) -> CorruptionError:
    return CorruptionError(
        f"{where} is, or lies behind, a symbolic link: expected a regular file of the "
        "checkpoint's own; copy the checkpoint with links followed (cp -rL)"
    )


class _OpenHow(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    ]


def open_beneath(folder: int, path: str, *, directory: bool = False) -> int:
    """Open `path`, relative to an open directory, for reading; return the descriptor.

    A FIFO is opened without waiting for a writer.

    Raises:
        OSError: ELOOP if a component is a symlink; ENOENT, ENOTDIR and so on, as open(2) does.
        ValueError: a component is '', '.' or '..', or contains a null character.
    """
    steps = path.split("/")
    if "\0" in path or not all(step and step not in (".", "..") for step in steps):
        raise ValueError(f"{path!r} is no path of plain names")
    flags = _FLAGS | (os.O_DIRECTORY if directory else 0)
    call = _openat2()
    if call is not None:
        fd = call(folder, os.fsencode(path), flags)
        if fd >= 0:
            return fd
        if -fd not in _UNAVAILABLE:
            raise OSError(-fd, os.strerror(-fd), path)
    return _walk(folder, steps, flags)


def _walk(folder: int, steps: list[str], flags: int) -> int:
    """Open the path component by component, for kernels without openat2(2)."""
    at = folder
    try:
        for step in steps[:-1]:
            following = _step(at, step, _FLAGS | os.O_DIRECTORY)
            if at != folder:
                os.close(at)
            at = following
        return _step(at, steps[-1], flags)
    finally:
        if at != folder:
            os.close(at)


def _step(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError as e:  # also for a symlink, with O_DIRECTORY
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from e
        raise


@functools.cache
def _openat2() -> Callable[[int, bytes, int], int] | None:
    """Return a call of openat2(2) that follows no symlinks; on failure it returns -errno."""
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return None
    syscall.restype = ctypes.c_long
    resolve = _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS

    def call(folder: int, path: bytes, flags: int) -> int:
        how = _OpenHow(flags, 0, resolve)
        fd = syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(folder),
            ctypes.c_char_p(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        return int(fd) if fd >= 0 else -ctypes.get_errno()

    return call


# Reading again what a save has replaced meanwhile: one rule, with one limit, for all readers

MAX_ATTEMPTS = 100  # each is ended by a save that came meanwhile; more would be another fault

_T = TypeVar("_T")


class ReplacedError(Exception):
    """An error that another save explains: it has replaced what was read meanwhile."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def retry_reading(read: Callable[[], _T]) -> _T:
    """Return what `read` returns; call it again if a save has replaced what it reads.

    Args:
        read: opens and reads all anew at each call. It raises ReplacedError for an error that a
            save explains.

    Raises what `read` raises, and the error in its ReplacedError after MAX_ATTEMPTS.
    """
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return read()
        except ReplacedError:
            pass
    try:
        return read()
    except ReplacedError as e:
        raise e.error from None
