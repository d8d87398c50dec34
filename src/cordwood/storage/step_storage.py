"""The protocol of a storage of the steps of a run, and the values that it returns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cordwood.storage.entry_content import EntryContent
from cordwood.storage.locations import Location

if TYPE_CHECKING:
    from cordwood.storage.object_stores.object_directory import ObjectDirectory


class StepEntry(NamedTuple):
    """A directory or a file of a run."""

    stamp: Hashable | None  # of a directory with an index: a value that changes with it; else None
    is_file: bool = False
    is_link: bool = False  # a symbolic link to either
    problem: str = ""  # why it is no step that can be read, as far as that is known


class StoredRecord(NamedTuple):
    """A copy of what the index of an entry says for listings."""

    stamp: Hashable  # of the index
    text: str
    data_bytes: int  # the size of the data files


class Removal(NamedTuple):
    """The result of a removal of entries.

    Attributes:
        removed: the entries that are steps no more, in the order of the request.
        in_use: entries that are pinned, or being saved; they stay.
        refused: entries that stay because of what cordwood did not write, with the reason.
        failed: entries that stay because the system refused, with its error.
        remaining: of removed entries, what cordwood did not write and what stays in them.
    """

    removed: list[str]
    in_use: list[str]
    refused: dict[str, str]
    failed: dict[str, OSError]
    remaining: dict[str, str]

    @classmethod
    def empty(cls) -> Removal:
        """Return the result of a removal of nothing."""
        return cls([], [], {}, {}, {})


def refusal_text(content: EntryContent) -> str:
    """Return the reason why a directory is not removed: the names that are not cordwood's."""
    return f"it holds {content.foreign_text}, which cordwood did not write"


class StepListing(Protocol):
    """A directory whose entries can be listed. Some can only be read."""

    @property
    def location(self) -> Location:
        """The directory: an absolute path, or a URL."""
        ...

    def location_of(self, entry: str) -> Location:
        """Return the location of an entry."""
        ...

    def entries(self, matches: Callable[[str], bool]) -> Mapping[str, StepEntry]:
        """Return the entries with certain names; no others are looked at.

        Args:
            matches: returns True for the names of these entries.
        """
        ...


class StepStorage(StepListing, Protocol):
    """A directory of entries, each of which is a checkpoint or will become one."""

    def stamp(self, entry: str) -> Hashable | None:
        """Return the stamp of a directory, as in its Entry."""
        ...

    def directory(self, entry: str) -> ObjectDirectory | None:
        """Return what lies in an entry without a stamp, as `entries` has listed it last.

        None on a disk, where it need not be listed, and if nothing lies there.
        """
        ...

    def flush(self, entry: str) -> None:
        """Make an entry durable whose save was killed before it returned. Raises OSError."""
        ...

    def read_records(self) -> Mapping[str, StoredRecord]:
        """Return the records by entry that `write_records` has stored.

        An aid for listings of object stores: any record may be missing, or be of an older index.
        """
        ...

    def write_records(self, records: Mapping[str, StoredRecord]) -> None:
        """Store a record for each entry. Raises OSError."""
        ...

    def remove(self, entries: Iterable[str], *, partly: bool = False) -> Removal:
        """Remove entries. When this returns, a power cut cannot restore an incomplete one.

        Only files that cordwood wrote are removed. Of a symbolic link to a finished step only the
        link is removed. One entry that cannot be removed does not keep the others from it.

        Args:
            entries: their names.
            partly: True to remove the files of a finished step also where there are others beside
                them, which then stay. False: such an entry stays as it is.

        Raises OSError if the root itself cannot be changed.
        """
        ...

    def set_aside(self, entry: str) -> str:
        """Move away an entry whose index cannot be read, so that it can be saved again.

        Its files stay under a hidden name until `remove_leftovers` finds the entry saved again.
        Returns "", or the reason why it stays: it has files that cordwood did not write. Raises
        OSError.
        """
        ...

    def in_use(self, entry: str) -> bool:
        """Return True if an entry is known to be pinned, or to be written by a save."""
        ...

    def has_temporaries(self, entry: str) -> bool:
        """Return True if a running or killed save has temporary files or a lock in an entry."""
        ...

    def pin(self, entry: str) -> AbstractContextManager[None]:
        """Mark an entry as in use during the block.

        Raises FileNotFoundError if there is none, UnsupportedFormatError if there are no locks.
        """
        ...

    def remove_leftovers(self, *, spared: str = "") -> None:
        """Remove what interrupted deletions, saves and copies have left, if this user may.

        `spared` is the name of an entry of which a copy is about to go on.
        """
        ...

    def remove_empty(self, entry: str) -> bool:
        """Remove an entry that is an empty directory; return True if it was one."""
        ...

    def has_leftovers(self, entry: str) -> bool:
        """Return True unless an entry is known to hold nothing that a killed save has left."""
        ...
