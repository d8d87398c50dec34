"""The file or directory whose format is to be recognised, and how well one fits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from cordwood.storage.locations import LocalPath, Location

if TYPE_CHECKING:
    from cordwood.io.open_files import ReadableFile
    from cordwood.storage.hub.hub_directory import HubDirectory
    from cordwood.storage.object_stores.object_directory import ObjectDirectory
    from cordwood.storage.readable_directory import OpenDirectory

HEAD_BYTES = 128 << 10


class Match(IntEnum):
    """The degree to which a file or directory fits a format; the best one wins."""

    NO = 0
    MAYBE = 1  # the content would do, where no other format fits better
    LIKELY = 2  # there is no index or magic number, but parts that only this format has
    YES = 3  # there is the index or the magic number of this format


@dataclass(eq=False)
class Place:
    """A file, or a directory of a disk, an object store or the hub, that is to be recognised.

    Attributes:
        location: its path or URL.
        file: the file, open; None for a directory.
        directory: the directory, if it is in an object store or on the hub; None for any other.
        search_below: True for a directory in which no format has found an index, and which is no
            directory of steps: a format may now look below it too.
    """

    location: Location
    file: ReadableFile | None = None
    directory: ObjectDirectory | HubDirectory | None = None
    search_below: bool = False

    @property
    def path(self) -> str:
        """The path or URL as text, for messages."""
        return str(self.location)

    @cached_property
    def head(self) -> bytes:
        """The first bytes of the file; b"" for a directory."""
        if self.file is None:
            return b""
        return self.file.read(0, min(HEAD_BYTES, self.file.size_bytes))

    @cached_property
    def names(self) -> Sequence[str]:
        """The names of the entries of the directory, sorted; () for a file."""
        if self.file is not None:
            return ()
        if self.directory is not None:
            return sorted(self.directory.sizes("."))
        from cordwood.storage.directories import list_names

        return list_names(self.path)

    @cached_property
    def folders(self) -> Collection[str]:
        """The names of the directories in the directory; () for a file."""
        if self.file is not None:
            return ()
        if self.directory is not None:
            return self.directory.folders(".")
        from cordwood.storage.directories import list_subdirectories

        return list_subdirectories(self.path)

    def has(self, name: str) -> bool:
        """Return whether the directory has an entry of that name, perhaps a broken link."""
        if self.directory is not None:
            return self.directory.has(name)
        from cordwood.storage.paths import path_exists

        return self.file is None and path_exists(f"{self.path}/{name}")

    def child(self, name: str) -> Place:
        """Return the place of a directory in the directory."""
        directory = None if self.directory is None else self.directory.folder(name)
        return Place(self.location.child(name), directory=directory)

    @contextmanager
    def opened(self) -> Iterator[OpenDirectory]:
        """Open the directory for the block. Raises FileNotFoundError and NotADirectoryError."""
        if self.directory is not None:
            yield self.directory
            return
        from cordwood.storage.open_directory import directory_at

        with directory_at(self.location) as directory:
            yield directory


def place_at(location: Location) -> Place:
    """Return the place of a directory. What lies below a URL is listed.

    Raises FileNotFoundError if nothing lies below a URL.
    """
    if isinstance(location, LocalPath):
        return Place(location)
    if location.is_hub:
        from cordwood.storage.hub.hub_directory import HubDirectory

        return Place(location, directory=HubDirectory(location))
    from cordwood.storage.object_stores.object_directory import ObjectDirectory

    return Place(location.plain, directory=ObjectDirectory(location))
