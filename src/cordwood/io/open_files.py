"""Files that are open for reading: on a local disk, or in memory."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import repeat
from typing import Protocol, Self

from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    FormatError,
    LimitError,
    StorageError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.io.changed_files import FileState, file_state, require_unchanged, stale_error
from cordwood.io.stale_handles import retry_stale
from cordwood.message_text import counted

_NO_MAPS = (errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
# The errors of a disk that cannot read data that was written to it.
_DISK_ERRORS = (errno.EIO, errno.EREMOTEIO, errno.EBADMSG, errno.EUCLEAN)
# The errors of bytes that were read and are not what a format demands.
READ_ERRORS = (CorruptionError, FormatError, UnsupportedFormatError)
_IOV_MAX = 1024  # Linux; the most buffers one preadv takes


def is_disk_error(error: OSError) -> bool:
    """Return True for an error of a disk that cannot read data that was written to it.

    A StorageError is not: of reads, object stores raise it, and may answer the next time.
    """
    return error.errno in _DISK_ERRORS and not isinstance(error, StorageError)


class ReadableFile(Protocol):
    """A file that can be read at any offset, from any thread."""

    @property
    def name(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def latency_bound(self) -> bool:
        """True if a read mostly waits for a network, so that concurrent reads are faster."""
        ...

    @property
    def tile_ends(self) -> Sequence[int]:
        """The offsets at which parts end that are made as wholes; () for a file without such."""
        ...

    def prepare(self) -> None:
        """Make the contents ready for many reads, where that is faster: see `HubFile`."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes, or raise TruncatedError."""
        ...

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        """Fill the byte views, one after another, with the bytes from `offset` on."""
        ...

    def map(self) -> memoryview:
        """Return the whole file, read-only, without a copy. Valid as long as a view of it lives."""
        ...

    def distrust(self, error: Exception) -> bool:
        """Read from another holder from now on, as what this thread read last was damaged.

        Return False if there is no other holder, as of every file but a `HeldFile`.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None: ...


class Closable:
    """The base of all files: a context manager that closes the file."""

    latency_bound = False
    tile_ends: Sequence[int] = ()

    def prepare(self) -> None:
        """Do nothing; files that are fetched as a whole override this."""

    def distrust(self, error: Exception) -> bool:
        """Return False: there is one holder; files that have several override this."""
        del error
        return False

    def close(self) -> None:
        """Do nothing; files with resources override this."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()


class OpenDescriptor(Closable):
    """An open file or directory: a descriptor, which is the only one in `opened`.

    Files are opened and closed by one call from the main thread, too, where Ctrl-C comes between
    any two steps of Python: `open` has no bytecode between open(2) and the list, and `close` none
    between the list and close(2).
    """

    def __init__(self, name: str | os.PathLike[str]) -> None:
        self.opened: list[int] = []
        self.name = os.fspath(name)

    def open(
        self,
        path: str,
        flags: int,
        *,
        folder: int | None = None,
        call: Callable[[str, int], int] = os.open,
    ) -> None:
        """Open a path, relative to an open directory or by `call`; raises as `os.open` does."""
        call = call if folder is None else partial(os.open, dir_fd=folder)
        retry_stale(lambda: self.opened.extend(map(call, (path,), (flags,))))

    @property
    def fd(self) -> int:
        if not self.opened:
            raise ValueError(f"{self.name} is closed; open it again")
        return self.opened[0]

    def close(self) -> None:
        try:
            deque(map(os.close, map(list.pop, repeat(self.opened, len(self.opened)))), maxlen=0)
        except OSError as e:
            raise with_file_name(e, self.name) from e

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # An interrupt may have ended __init__; at the end the names of this module may be deleted.
        if getattr(self, "opened", ()) and not ending():
            self.close()


class OpenFile(OpenDescriptor):
    """A regular file that is open for reading.

    If its state is noted, reading it raises FileChangedError once another program has changed it.
    """

    def __init__(self, name: str | os.PathLike[str]) -> None:
        super().__init__(name)
        self._map: memoryview | None = None
        self._state: FileState | None = None
        self.size_bytes = 0

    def note_state(self) -> None:
        """Note the state of the file, which no other program is to change from now on."""
        self._state = file_state(self.fd)
        self.size_bytes = self._state.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        require_range(self, offset, length)
        try:
            data = os.pread(self.fd, length, offset)
        except OSError as e:
            raise read_error(e, self.name) from e
        if len(data) < length:
            whole = bytearray(length)
            self.read_into(offset, [memoryview(whole)])
            return bytes(whole)
        self.require_unchanged()
        return data

    def read_unguarded(self, offset: int, length: int) -> bytes:
        """Return what `read` returns, without a look at the state: see `unchanged_during`."""
        with suppress(OSError):
            data = os.pread(self.fd, length, offset)
            if len(data) == length:
                return data
        return self.read(offset, length)

    def require_unchanged(self) -> None:
        """Raise FileChangedError if the state was noted, and is another one now."""
        if self._state is not None:
            require_unchanged(self.fd, self._state, self.name)

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        require_range(self, offset, sum(map(len, views)))
        read_views(self.fd, offset, views, name=self.name, state=self._state)

    def map(self) -> memoryview:
        if self._map is None:
            self.require_unchanged()
            self._map = map_file(self.fd, self.size_bytes, name=self.name)
        return self._map

    def close(self) -> None:
        """Close the descriptor. Views from `map` stay valid."""
        self._map = None
        super().close()


class LocalFile(OpenFile):
    """A regular file of a local disk. Its state is noted when it is opened.

    Raises FileNotFoundError, IsADirectoryError, and OSError for pipes, sockets and devices.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        retry_stale(self._open_regular)

    def _open_regular(self) -> None:
        self.close()
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        self.open(self.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            if stat.S_ISDIR(status.st_mode):
                code = errno.EISDIR
                raise IsADirectoryError(code, "expected a file, found a directory", self.name)
            what = "expected a regular file, found a pipe, socket or device"
            raise OSError(errno.EINVAL, what, self.name)
        self.note_state()


@contextmanager
def unchanged_during(file: ReadableFile) -> Iterator[Callable[[int, int], bytes]]:
    """Yield a `read` of a file for very many reads; the guard looks once, at the end of the block.

    An error of the block gives way to FileChangedError: its reason may be the change.
    """
    if not isinstance(file, OpenFile):
        yield file.read
        return
    try:
        yield file.read_unguarded
    except CordwoodError:
        file.require_unchanged()
        raise
    file.require_unchanged()


def read_whole(file: ReadableFile, *, limit_bytes: int) -> bytes:
    """Return all bytes of a file. Raises LimitError for a larger one, without reading it."""
    if file.size_bytes > limit_bytes:
        raise LimitError(f"{file.name}: {file.size_bytes} bytes; expected at most {limit_bytes}")
    return file.read(0, file.size_bytes)


@contextmanager
def naming(where: str, *, within: str = "") -> Iterator[None]:
    """Begin the text of one of READ_ERRORS with a file or leaf, unless it begins with `within`."""
    try:
        yield
    except READ_ERRORS as e:
        text = str(e)
        if within and text.startswith(within):
            raise
        raise type(e)(f"{where}: {text}") from e


def with_file_name(error: OSError, name: str) -> OSError:
    """Return the same OSError with the name of the file."""
    if error.errno is None or isinstance(error.filename, str | bytes):
        return error
    return type(error)(error.errno, error.strerror, name)


def read_error(error: OSError, name: str) -> OSError:
    """Return the error of a read with the name of the file; for ESTALE, a FileChangedError."""
    return stale_error(with_file_name(error, name), name)


def close_file(fd: int, name: str) -> None:
    """Close a descriptor. Raises OSError with the name of the file."""
    try:
        os.close(fd)
    except OSError as e:
        raise with_file_name(e, name) from e


def map_file(fd: int, size_bytes: int, *, name: str) -> memoryview:
    """Return all bytes of an open file, read-only.

    The file is mapped, or read into memory if the file system cannot map it (9p, FUSE with
    direct_io). Raises OSError with the name of the file, TruncatedError.
    """
    if size_bytes == 0:  # mmap refuses empty files
        return memoryview(b"")
    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):  # some file systems support only the second
        try:
            return memoryview(mmap.mmap(fd, size_bytes, flags=flags, prot=mmap.PROT_READ))
        except OSError as e:
            if e.errno not in _NO_MAPS:
                raise read_error(e, name) from e
    data = memoryview(bytearray(size_bytes))
    read_views(fd, 0, [data], name=name)
    return data.toreadonly()


def read_views(
    fd: int,
    offset: int,
    views: Sequence[memoryview],
    *,
    name: str,
    state: FileState | None = None,
) -> None:
    """Fill the byte views with the bytes of a file from `offset` on.

    Raises TruncatedError, OSError with the name of the file, and FileChangedError if the file is
    not in that state afterwards.
    """
    total = sum(map(len, views))
    first, done = 0, 0
    while done < total:
        batch = views[first : first + _IOV_MAX]
        try:
            count = os.preadv(fd, batch, offset + done)
        except OSError as e:
            raise read_error(e, name) from e
        if count == 0:
            if state is not None:
                require_unchanged(fd, state, name)
            raise _truncated(name, offset, total, done)
        done += count
        for view in batch:
            if count < len(view):
                break
            count -= len(view)
            first += 1
        if count:
            views = [views[first][count:], *views[first + 1 :]]
            first = 0
    if state is not None:
        require_unchanged(fd, state, name)


def zero_bytes(size_bytes: int) -> memoryview:
    """Return that many zero bytes, which need no memory as long as they are only read."""
    if size_bytes == 0:  # mmap refuses that
        return memoryview(b"")
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return memoryview(mmap.mmap(-1, size_bytes, flags=private, prot=mmap.PROT_READ))


def require_range(file: ReadableFile, offset: int, length: int) -> None:
    """Raise TruncatedError unless a file has that range."""
    if offset < 0 or length < 0:
        raise ValueError(f"{file.name}: cannot read {length} bytes at offset {offset}")
    if offset + length > file.size_bytes:
        raise _truncated(file.name, offset, length, max(0, file.size_bytes - offset))


def _truncated(name: str, offset: int, expected: int, available: int) -> TruncatedError:
    return TruncatedError(
        f"{name}: expected {counted(expected, 'byte')} at offset {offset}, found {available}: "
        "the file is shorter than what it promises; copy or save it again"
    )
