"""The versions at a location: their numbers, and the records of those that are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from cordwood.errors import CordwoodError, CorruptionError, StepError
from cordwood.formats.format_protocol import OpenOptions
from cordwood.formats.load_format import storage_of, writer_of
from cordwood.formats.step_names import step_in_name, step_name
from cordwood.formats.table import DEFAULT
from cordwood.formats.version_record import BESIDE, VersionRecord, version_in
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.open_reader import open_reader
from cordwood.manager.delete_steps import StepCleaner
from cordwood.manager.steps import Steps
from cordwood.message_text import listed
from cordwood.policies.keep_policies import KeepAll
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.open_step_storage import open_step_storage
from cordwood.threads.log import log
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
        location: a directory or URL.
        timeout_seconds: the longest wait for the lock of the directory.
    """

    def __init__(self, location: Location, timeout_seconds: float) -> None:
        self._storage = open_step_storage(
            location, storage_of(DEFAULT).RULES, timeout_seconds=timeout_seconds
        )
        self._cleaner = StepCleaner(Steps(self._storage), KeepAll())
        # By number: True if a version holds the tree; None for a checkpoint that is no version.
        self._whole: dict[int, bool | None] = {}

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

        Raises what `cordwood.open` raises; CorruptionError if `publish` has not saved it.
        """
        reader = self._open(step, None, stack)
        record = version_in(reader.index.metadata, reader.path)
        if record is None:
            raise CorruptionError(
                f"{reader.path} was not saved by a WeightPublisher: expected a location that "
                "holds versions only"
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
        return whole._replace(reader=self._open(whole.step, BESIDE, stack))

    def _open(self, step: int, prefix: str | None, stack: ExitStack) -> LeafReader:
        options = OpenOptions(read_ahead_bytes=_READ_AHEAD_BYTES)
        location = self.location_of(step)
        reader = open_reader(location, format=DEFAULT.name, prefix=prefix, options=options)
        stack.callback(reader.opened.close)
        return reader

    def begin(self, step: int, chain: Sequence[int]) -> ListedVersions:
        """Return what is there before a version is published.

        The newest version is made durable, if its publisher may have been killed before it was.

        Args:
            step: the number of the version.
            chain: those that this publisher has published since its last whole one; none at first.

        Raises:
            StepError: there is a version of that number, or a later one; or another publisher has
                published one meanwhile; or the newest checkpoint at first is no version.
            NotACheckpointError: something else has its place.
        """
        there = self.listing()
        steps = there.steps
        later = [each for each in steps if each >= step]
        if later:
            raise StepError(
                f"{self.location} has the versions {listed([*map(str, later)])} already: expected "
                f"a larger number than {later[-1]}, found {step}. If they are of a run that was "
                "given up, remove them (cordwood rm), or publish to another location"
            )
        if chain:
            others = [each for each in steps if each > chain[-1]]
            if any(not self._is_other(each) for each in others):
                raise StepError(
                    f"{self.location}: version {others[-1]} is of another publisher: expected "
                    f"{chain[-1]} as the newest, which this one has published. Only one can "
                    "publish to a location: end one of them, or let it publish to another place"
                )
        elif steps:
            self._storage.flush(step_name(steps[-1]))
            if self._is_other(steps[-1]):
                raise StepError(
                    f"{self.location_of(steps[-1])} was not saved by a WeightPublisher: expected a "
                    "location that holds versions only; publish to another one"
                )
        if step in there.unfinished:
            writer_of(DEFAULT).refuse_foreign(DEFAULT, self.location_of(step))
        return there

    def end(self, step: int, before: ListedVersions, keep: int, *, is_whole: bool) -> None:
        """Remove versions that the newest `keep` do not need, and what killed publishers have left.

        Checkpoints that are no versions stay. Log a warning if that fails.

        Args:
            step: the version that was committed.
            before: what was there before.
            keep: how many of the newest versions stay.
            is_whole: True if it holds the tree.
        """
        self._whole[step] = is_whole
        steps = [*before.steps, step]
        try:
            oldest = next(
                (
                    each
                    for each in reversed(steps[: max(1, len(steps) - keep + 1)])
                    if self._is_whole(each)
                ),
                None,
            )
            older = [] if oldest is None else [each for each in steps if each < oldest]
            old = [each for each in older if self._is_whole(each) is not None]
            if old:
                self._storage.remove([step_name(each) for each in reversed(old)])
            for each in old:
                self._whole.pop(each, None)
            if isinstance(self.location, LocalPath) or {*before.unfinished} - {step}:
                self._cleaner.remove_unfinished()
        except (CordwoodError, OSError) as e:
            log.warning("%s: old versions were not removed: %s", self.location, e)

    def _is_whole(self, step: int) -> bool | None:
        """Return True if a version holds the tree; None for a checkpoint that is no version."""
        if step not in self._whole:
            with ExitStack() as stack:
                reader = self._open(step, None, stack)
                record = version_in(reader.index.metadata, reader.path)
            self._whole[step] = None if record is None else record.is_whole
        return self._whole[step]

    def _is_other(self, step: int) -> bool:
        """Return True for a checkpoint that is no version; False if it cannot be read."""
        try:
            return self._is_whole(step) is None
        except (CordwoodError, OSError):
            return False


def _is_version(name: str) -> bool:
    number = step_in_name(name)
    return number is not None and name == step_name(number)
