"""Files of a directory that stay as they are, open, when another save removes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from cordwood.index import Source
from cordwood.storage.directory_reader import DirectoryFile, LocalDirectory
from cordwood.storage.open_files import ReadableFile, close_file, map_file, read_views

MAX_OPEN_FILES = 64  # of a checkpoint with more, files are opened as they are read


class OpenDirectoryFile(DirectoryFile):
    """A file of a directory, opened once. Its size is what the index says, checked here.

    Raises CorruptionError and TruncatedError as reading from a DirectoryFile does.
    """

    def __init__(self, directory: LocalDirectory, path: str, size_bytes: int) -> None:
        super().__init__(directory, path, size_bytes)
        self._fd = -1
        self._fd = self._open()

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        self._require(offset, sum(map(len, views)))
        read_views(self._held(), offset, views, name=self.name)

    def map(self) -> memoryview:
        return map_file(self._held(), self.size_bytes, name=self.name)

    def _held(self) -> int:
        if self._fd < 0:
            raise ValueError(f"{self.name} is closed; open it again")
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_file(fd, self.name)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # the names of this module may be gone then; the system closes all
            self.close()


def open_directory_files(
    directory: LocalDirectory, sources: Sequence[Source]
) -> list[ReadableFile]:
    """The files of a directory, opened. Raises as OpenDirectoryFile does."""
    files: list[ReadableFile] = []
    try:
        for source in sources:
            files.append(OpenDirectoryFile(directory, source.name, source.size_bytes))
    except BaseException:
        for file in files:
            file.close()
        raise
    return files
