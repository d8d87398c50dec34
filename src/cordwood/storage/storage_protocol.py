"""What a save of many files needs of the place where they go: a directory, or an object store.

Data files have names that no other save uses, and are never changed. The index, one small file,
says which of them belong to the checkpoint; it comes last, by a replacement that takes effect
whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

from cordwood.index import HeaderDigest, Source
from cordwood.io.uninterruptible import StopCheck, never_stop
from cordwood.plan.cell_assignment import FileSizes
from cordwood.plan.file_plan import FilePlan
from cordwood.storage.open_files import ReadableFile


class NamingRules(NamedTuple):
    """What a format says of the names in its directories."""

    index_name: str
    max_index_bytes: int
    sidecars: tuple[str, ...]  # other small files that are replaced with the index
    is_data_file: Callable[[str], bool]  # whether a name is one of its data files
    referenced_files: Callable[[bytes], frozenset[str]]  # the data files that an index refers to


class NewDataFile(NamedTuple):
    """A data file to write."""

    name: str
    plan: FilePlan
    fetch: Callable[[int], np.ndarray[Any, Any]]  # as `cordwood.io.write_file.write_file` has it


class IndexChange(NamedTuple):
    """A new index, and what goes with it."""

    new_index: bytes
    added: Mapping[str, int]  # data files that must be there, and their sizes in bytes
    sidecars: Mapping[str, bytes | None]  # small files to write after it; None: to remove
    kept: frozenset[str]  # the data files that it refers to
    dropped: frozenset[str]  # those that the old one referred to and it does not


class Transaction(Protocol):
    """A save under way."""

    def create_probe(self) -> str:
        """Leave something that only processes which see this place can find; its random name.

        It goes when the save ends. Raises OSError.
        """
        ...

    def sees_probe(self, probe: str, *, timeout_seconds: float) -> bool:
        """Whether the mark of another process's save comes in sight in that time."""
        ...

    def write(
        self, files: Iterable[NewDataFile], check: StopCheck = never_stop
    ) -> list[HeaderDigest]:
        """Write data files. When this returns, a power cut cannot lose them.

        Calls `check` now and then: what that raises ends it.

        Returns what their headers are known by. Raises OSError, as `engine.commit` does.
        """
        ...

    def link(self, folder: str, name: str, check: StopCheck = never_stop) -> bool:
        """Take over a data file of another directory as it is, under its name, by a hard link.

        Until the save ends nobody removes it here; it stays whatever becomes of the other one.

        Returns whether that was possible: there may be no such file any more, or no links there.
        """
        ...

    def unlink_later(self, name: str) -> None:
        """Do without a link after all: what the index does not refer to goes with the commit."""
        ...

    def commit(self, update: Callable[[bytes | None], IndexChange]) -> None:
        """Replace the index, and remove the data files that it no longer refers to.

        Args:
            update: makes the change, given the index as it is (None: there is none). Where
                other saves come first it is called again, with what they left.

        Raises OSError, and what `update` raises; the old index then stays.
        """
        ...


class Storage(Protocol):
    """A directory of data files and one index."""

    @property
    def name(self) -> str: ...

    @property
    def has_links(self) -> bool:
        """Whether a file can have several names."""
        ...

    @property
    def file_sizes(self) -> FileSizes:
        """How large the files are to be that are written there."""
        ...

    def read_index(self) -> bytes | None:
        """The index; None where there is none.

        Raises CorruptionError where it is no regular file, LimitError where it is too large.
        """
        ...

    def read_sidecar(self, name: str) -> bytes | None:
        """One of the small files beside the index, as `read_index` reads that."""
        ...

    def open(self, sources: Sequence[Source]) -> list[ReadableFile]:
        """The data files, to read from. One that is missing or of another size than its source
        says is an error here or when it is first read: CorruptionError or TruncatedError.
        """
        ...

    def names(self) -> list[str]:
        """What lies there, sorted; [] where there is no directory."""
        ...

    def transaction(
        self, *, others_commit: bool, timeout_seconds: float | None = None
    ) -> AbstractContextManager[Transaction]:
        """Save in the block. Leaving it by an exception removes what was written, unless an
        index refers to it by then.

        Args:
            others_commit: whether another process is to commit what this one writes.
            timeout_seconds: how long to wait for a lock that another save holds; None: for ever.
        """
        ...

    def wait_for_commit(self) -> None:
        """Wait while a save is in the middle of its commit, where that can be told."""
        ...

    def collect(self, *, dry_run: bool) -> list[str]:
        """Remove what saves that died have left; the names."""
        ...
