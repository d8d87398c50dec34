"""The protocols of transactions, and of storage for checkpoints of many files.

A `Transaction` is a save in progress: `write` until all is durable, then `commit` or `abandon`. In
a `Storage`, a directory or an object store, data files have unique names and are never changed. The
index, one small file, lists those that belong to the checkpoint. It is written last, and replaced
atomically.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

from cordwood.errors import StorageError
from cordwood.index import HeaderDigest, Source
from cordwood.storage.locations import Location
from cordwood.threads.wait_logger import WaitLogger

if TYPE_CHECKING:  # listing a checkpoint needs the names in it, and not what its writers need
    from cordwood.io.leaves_to_write import Leaves
    from cordwood.io.open_files import ReadableFile
    from cordwood.plan.cells import FileSizes
    from cordwood.plan.file_plan import FilePlan
    from cordwood.storage.removal.list_tree import Listing

_File_contra = TypeVar("_File_contra", contravariant=True)
_Written_co = TypeVar("_Written_co", covariant=True)
_Current_co = TypeVar("_Current_co", covariant=True)
_Change_contra = TypeVar("_Change_contra", contravariant=True)


class LinkTo(NamedTuple):
    """A symbolic link to a file of the same checkpoint, for another tool. It is not followed."""

    target: str  # relative to the directory of the link


Sidecar: TypeAlias = bytes | LinkTo

# Returns the contents of each sidecar of an index; None: there is to be none.
SidecarsOf: TypeAlias = Callable[[bytes], Mapping[str, bytes | None]]
OptionalSidecarsOf: TypeAlias = Callable[[bytes], Mapping[str, Sidecar | None]]


def _no_sidecars(index: bytes) -> frozenset[str]:
    del index
    return frozenset()


class NamingRules(NamedTuple):
    """The rules of a format for the names in its directories."""

    index_name: str
    max_index_bytes: int
    sidecars: tuple[str, ...]  # other small files that are written with the index
    is_data_file: Callable[[str], bool]  # True for the name of a data file
    kept_files: Callable[[bytes | None], frozenset[str]]  # the data files of an index, if any
    # The paths of sidecars that this index alone may have; some are in directories.
    optional_sidecars: Callable[[bytes], frozenset[str]] = _no_sidecars


class NewDataFile(NamedTuple):
    """A data file to write."""

    name: str
    plan: FilePlan


class IndexChange(NamedTuple):
    """A new index, and the changes that belong to it."""

    new_index: bytes
    added: Mapping[str, int]  # data files that must exist, and their sizes in bytes
    sidecars: Mapping[str, bytes | None]  # small files to write after it; None: remove the file
    kept: frozenset[str]  # the data files that it refers to
    dropped: frozenset[str]  # data files that the old index refers to, but not the new one
    optional_sidecars: Mapping[str, Sidecar | None] = MappingProxyType({})  # where there are links


class Garbage(NamedTuple):
    """The files of a directory that no index refers to.

    Attributes:
        names: those that were removed, or that a dry run would remove.
        young_files, young_bytes: the number and the size of those that stay because they may be of
            a running save: in an object store, which has no locks, their age alone tells.
        rewritten: the names of files beside the index that were written again, or would be.
        young_until: when `gc` may delete the last of them, in seconds since 1970;
            None if there are none.
    """

    names: list[str]
    young_files: int = 0
    young_bytes: int = 0
    young_until: float | None = None
    rewritten: tuple[str, ...] = ()


class MissingDataError(StorageError):
    """The error of a commit whose data files were removed; what was there before is untouched."""


class Transaction(Protocol[_File_contra, _Written_co, _Current_co, _Change_contra]):
    """A save in progress. docs/design/0011-transactions.md compares those that there are.

    It is generic in the files to write, in what is returned of each, in what is there before the
    commit (an index, or a directory), and in the change that the commit makes of it.
    """

    def create_probe(self) -> str:
        """Create a probe that only processes with the same storage can see; return its name.

        The name is random. The probe is removed when the save ends. Raises OSError.
        """
        ...

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool:
        """Return True if the probe of another process is visible, or becomes so in that time."""
        ...

    def write(self, files: Sequence[_File_contra], leaves: Leaves) -> Sequence[_Written_co]:
        """Write new files. When this returns, a power cut cannot lose their bytes.

        The leaves expect the parts of the files, see `Leaves.expect`.

        Returns the digests of each file. Raises OSError, and what `check_stop` raises.
        """
        ...

    def commit(self, update: Callable[[_Current_co | None], _Change_contra]) -> None:
        """Make what was written visible, and remove what it replaces.

        Args:
            update: computes the change from what is there now (None: nothing). If other saves come
                first, it is called again.

        Raises OSError, and what `update` raises; what was there then stays. MissingDataError: what
        was written has been removed.
        """
        ...

    def abandon(self) -> None:
        """Remove what was written, unless it may be part of a checkpoint."""
        ...


class StorageTransaction(Transaction[NewDataFile, HeaderDigest, bytes, IndexChange], Protocol):
    """A save of data files and an index."""

    @property
    def place(self) -> Location:
        """The place where its files are until the commit."""
        ...

    def link(self, folder: str, name: str) -> bool:
        """Add a data file of another directory, under the same name, by a hard link.

        Until the save ends no other process removes the link; it does not depend on the other
        directory.

        Returns False if that is not possible: the file no longer exists, or there are no links.
        """
        ...

    def open_linked(self, source: Source) -> ReadableFile:
        """Open a data file that `link` has added. Raises as `Storage.open`."""
        ...

    def unlink_later(self, name: str) -> None:
        """Give up a link: the commit removes it, because the index does not refer to it."""
        ...


class Storage(Protocol):
    """A directory of data files and one index."""

    @property
    def name(self) -> str:
        """Its path or URL, for messages."""
        ...

    @property
    def location(self) -> Location: ...

    @property
    def has_links(self) -> bool:
        """True if a file can have several names."""
        ...

    @property
    def has_pool(self) -> bool:
        """True if the steps of a run refer to data files in a pool beside them: an object store."""
        ...

    @property
    def file_sizes(self) -> FileSizes:
        """The sizes of the files to write."""
        ...

    def read_index(self) -> bytes | None:
        """Return the bytes of the index; None if there is none.

        Raises CorruptionError if it is no regular file, LimitError if it is too large.
        """
        ...

    def read_sidecar(self, name: str) -> bytes | None:
        """Read a sidecar file of the index; returns and raises as `read_index` does."""
        ...

    def read_optional_sidecar(self, name: str) -> Sidecar | None:
        """Return a sidecar that only some indexes have, by its path; None if there is none.

        Raises as `read_index`.
        """
        ...

    def open(self, sources: Sequence[Source]) -> list[ReadableFile]:
        """Open data files for reading.

        Raises CorruptionError or TruncatedError, here or at the first read, if a file is missing or
        its size is not that of its source.
        """
        ...

    def missing(self, names: Collection[str]) -> list[str]:
        """Return those names of data files in the pool that are missing, or are being removed."""
        ...

    def names(self) -> list[str]:
        """Return the names in the directory, sorted; [] if there is no directory."""
        ...

    def transaction(
        self,
        *,
        others_commit: bool,
        timeout_seconds: float | None = None,
        page_cache: bool = False,
        staged: bool = False,
        replaces: Listing | None = None,
        resumes: str = "",
    ) -> AbstractContextManager[StorageTransaction]:
        """Save in the block; after an exception remove what it wrote, unless an index refers to it.

        Args:
            others_commit: True if another process commits what this one writes.
            timeout_seconds: the longest wait for a lock of another save; None: no limit.
            page_cache: True if the files may stay in the page cache of this host.
            staged: True if a new directory gets its name when all is in it, and not before. For
                other tools, which take a directory for a checkpoint by its name alone.
            replaces: all that is there, which the commit replaces if it is still the same. None: a
                commit removes data files alone.
            resumes: with `staged`, the id of the files that a killed call may have left, to go on
                from: 16 hexadecimal digits. "": a new id.
        """
        ...

    def flush(self) -> None:
        """Make durable what the directory holds; a save that was killed may not have done it."""
        ...

    def wait_for_commit(self, is_whole: Callable[[], bool]) -> None:
        """Wait until no commit is in progress.

        Where that cannot be known, wait for some seconds until `is_whole` returns True.
        """
        ...

    def collect(
        self,
        *,
        dry_run: bool,
        sidecars_of: SidecarsOf | None = None,
        optional_sidecars_of: OptionalSidecarsOf | None = None,
    ) -> Garbage:
        """Remove what killed saves have left.

        Args:
            dry_run: True removes and writes nothing.
            sidecars_of: returns the contents of the sidecars of an index. Those that differ are
                written first: until then readers of a sidecar need the data files that it names.
            optional_sidecars_of: the same for optional sidecars; unused where there are no links.
        """
        ...


_LOOK_SECONDS = 0.05


def wait_until_visible(is_there: Callable[[], bool], mark: str, *, timeout_seconds: float) -> bool:
    """Wait until `mark`, which another process has created, exists; return False on timeout.

    A network file system may cache for a while that it does not exist.
    """
    waiting = WaitLogger(f"{mark}, which process 0 has made, to be seen by this process")
    while not is_there():
        if waiting.seconds >= timeout_seconds:
            return False
        waiting.tick()
        time.sleep(_LOOK_SECONDS)
    waiting.end()
    return True
