"""Directories that formats can read: of a disk, or of an object store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol, Self, TypeAlias

from cordwood.io.open_files import ReadableFile


class NotAFile(Enum):
    """The kind of an entry of a directory that is no regular file."""

    FOLDER = "a directory"
    OTHER = "a symbolic link, pipe, socket or device"


FOLDER, OTHER = NotAFile.FOLDER, NotAFile.OTHER
SizeOrKind: TypeAlias = int | NotAFile  # the size of a regular file; or what it is instead


class ReadableDirectory(Protocol):
    """A directory that formats can read. Paths are relative, with '/'."""

    @property
    def name(self) -> str: ...

    def sizes(self, path: str) -> Mapping[str, SizeOrKind]:
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
