"""The files of a directory of Hugging Face's: on a disk, or on the hub."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cordwood.io.open_files import LocalFile, ReadableFile
from cordwood.storage.directories import list_names
from cordwood.storage.locations import LocalPath, Location, require_local

Opener = Callable[[str], ReadableFile]


class WeightFiles(Protocol):
    """The files beside each other in a directory."""

    @property
    def name(self) -> str: ...

    def names(self) -> Sequence[str]:
        """Return the names of all entries, sorted; [] if there is no directory."""
        ...

    def open(self, name: str, opener: Opener = ...) -> ReadableFile:
        """Open a file, by `opener` where it is on a disk.

        Raises FileNotFoundError; StorageError for one that is not in the cache of the hub, which
        cannot be reached.
        """
        ...


@dataclass(frozen=True)
class LocalWeightFiles:
    """The files of a directory of a disk. Symbolic links are followed: the hub's cache has them."""

    name: str

    def names(self) -> Sequence[str]:
        return list_names(self.name)

    def open(self, name: str, opener: Opener = LocalFile) -> ReadableFile:
        return opener(f"{self.name}/{name}")


def weight_files_at(location: Location) -> WeightFiles:
    """Return the files of a directory. Raises UnsupportedFormatError for an object store."""
    if isinstance(location, LocalPath) or not location.is_hub:
        return LocalWeightFiles(str(require_local(location)))
    from cordwood.storage.hub.hub_directory import HubDirectory

    return HubDirectory(location)
