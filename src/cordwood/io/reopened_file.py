"""Files that are opened for each read, because a process may have only so many open files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cordwood.io.changed_files import FileState, file_state, require_unchanged
from cordwood.io.open_files import (
    Closable,
    LocalFile,
    close_file,
    map_file,
    read_views,
    require_range,
)

MAX_OPEN_FILES = 64  # the files of a checkpoint with more are opened for each read


class ReopenedFile(Closable):
    """The base of files that are opened for each read.

    Its state is noted at the first one. Later reads raise FileChangedError for another state.
    """

    def __init__(self, name: str, size_bytes: int, state: FileState | None = None) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self._state = state

    def open_again(self) -> int:
        """Open the file, which must have its size, and return the descriptor."""
        raise NotImplementedError

    def read(self, offset: int, length: int) -> bytes:
        whole = bytearray(length)
        self.read_into(offset, [memoryview(whole)])
        return bytes(whole)

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        require_range(self, offset, sum(map(len, views)))
        with self._opened() as fd:
            read_views(fd, offset, views, name=self.name, state=self._state)

    def map(self) -> memoryview:
        if self.size_bytes == 0:
            return memoryview(b"")
        with self._opened() as fd:
            if self._state is not None:
                require_unchanged(fd, self._state, self.name)
            return map_file(fd, self.size_bytes, name=self.name)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        fd = self.open_again()
        try:
            if self._state is None:
                self._state = file_state(fd)
            yield fd
        finally:
            close_file(fd, self.name)


class ReopenedLocalFile(ReopenedFile):
    """A regular file of a local disk that is opened for each read.

    Its state is noted now. Raises as LocalFile does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with LocalFile(path) as file:
            super().__init__(file.name, file.size_bytes, file_state(file.fd))

    def open_again(self) -> int:
        with LocalFile(self.name) as file:
            return file.opened.pop()
