"""The versions at a location: their numbers, and the records of those that are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from cordwood.errors import CordwoodError, MismatchError
from cordwood.formats.format_protocol import OpenOptions
from cordwood.formats.step_names import step_in_name, step_name
from cordwood.formats.table import DEFAULT
from cordwood.formats.version_record import BESIDE, VersionRecord, version_in
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.open_reader import open_reader
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.step_storage import StepListing
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads

_READ_AHEAD_BYTES = 8 << 20  # of each file, where reads are requests: often the whole delta
_OPENED_AHEAD = 16  # versions, where opening one is a request


class OpenVersion(NamedTuple):
    """A version whose index was read; the reader closes it."""

    step: int
    record: VersionRecord
    reader: LeafReader


class ListedVersions(NamedTuple):
    """The content of a location at the time of a listing.

    Attributes:
        stamps: the committed versions, ascending, each with a text that changes with it.
        unfinished: the numbers of the others.
    """

    stamps: Mapping[int, str]
    unfinished: Sequence[int]

    @property
    def steps(self) -> list[int]:
        """The numbers of the committed versions, ascending."""
        return [*self.stamps]


class StoredVersions:
    """The versions at a location, which need not exist yet.

    Args:
        storage: the directory or URL.
    """

    def __init__(self, storage: StepListing) -> None:
        self._storage = storage

    @property
    def location(self) -> Location:
        return self._storage.location

    def location_of(self, step: int) -> Location:
        """Return the location of a version."""
        return self._storage.location_of(step_name(step))

    def listing(self) -> ListedVersions:
        """List the versions."""
        entries = self._storage.entries(_is_version)
        stamps = {int(name): entries[name].stamp for name in sorted(entries, key=int)}
        return ListedVersions(
            {step: repr(stamp) for step, stamp in stamps.items() if stamp is not None},
            [step for step, stamp in stamps.items() if stamp is None],
        )

    def open(self, step: int, stack: ExitStack) -> OpenVersion:
        """Open a version, which the stack closes.

        Raises what `cordwood.open` raises; MismatchError if `publish` has not saved it.
        """
        reader = self.open_reader(step, None, stack)
        record = version_in(reader.index.metadata, reader.path)
        if record is None:
            reading = f"cordwood.StepReader({str(self.location)!r}) reads and follows those"
            if isinstance(self.location, Url) and self.location.is_web:
                reading = f"cordwood.load({reader.path!r}) reads one"
            raise MismatchError(
                f"{reader.path} was not saved by a WeightPublisher: expected published versions, "
                f"and {self.location} holds steps of a run. {reading}"
            )
        return OpenVersion(step, record, reader)

    def open_ahead(self, steps: Sequence[int], stack: ExitStack) -> Mapping[int, OpenVersion]:
        """Open the last of these versions together, if each is a request; errors come later."""
        if isinstance(self.location, LocalPath):
            return {}

        def open_one(step: int) -> OpenVersion | None:
            try:
                opened = self.open(step, stack)
                if not opened.record.is_whole:
                    for file in opened.reader.files:
                        file.prepare()
            except (CordwoodError, OSError):
                return None  # it may have been removed, and be needed by nobody
            return opened

        last = steps[-_OPENED_AHEAD:]
        threads = reading_threads(latency_bound=True)
        opened = map_in_threads(open_one, [(step,) for step in last], threads=threads)
        return {each.step: each for each in opened if each is not None}

    def open_delta_of(self, whole: OpenVersion, stack: ExitStack) -> OpenVersion:
        """Open the delta beside a whole version."""
        return whole._replace(reader=self.open_reader(whole.step, BESIDE, stack))

    def open_reader(self, step: int, prefix: str | None, stack: ExitStack) -> LeafReader:
        """Open a checkpoint, or an item of it, which the stack closes. It may be no version."""
        options = OpenOptions(read_ahead_bytes=_READ_AHEAD_BYTES)
        location = self.location_of(step)
        reader = open_reader(location, format=DEFAULT.name, prefix=prefix, options=options)
        stack.callback(reader.opened.close)
        return reader


def _is_version(name: str) -> bool:
    number = step_in_name(name)
    return number is not None and name == step_name(number)
