"""The versions at a location: their numbers, and the records of those that are read."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from cordwood.deltas.version_record import BESIDE, VersionRecord, version_in
from cordwood.errors import CordwoodError, StepError
from cordwood.formats.format_protocol import OpenOptions
from cordwood.formats.load_format import storage_of
from cordwood.formats.step_names import step_in_name, step_name
from cordwood.formats.table import DEFAULT
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.open_reader import open_reader
from cordwood.manager.delete_steps import StepCleaner
from cordwood.manager.steps import Steps
from cordwood.message_text import listed
from cordwood.policies.keep_policies import KeepAll
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.open_step_storage import open_step_storage
from cordwood.threads.log import log


class OpenVersion(NamedTuple):
    """A version whose index was read; the reader closes it."""

    step: int
    record: VersionRecord
    reader: LeafReader


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
        self._whole: dict[int, bool | None] = {}  # see `_is_whole`

    @property
    def location(self) -> Location:
        return self._storage.location

    def location_of(self, step: int) -> Location:
        """Return the location of a version."""
        return self._storage.location_of(step_name(step))

    def steps(self) -> list[int]:
        """Return the numbers of the committed versions, ascending."""
        return [*self.stamps()]

    def stamps(self) -> dict[int, str]:
        """Return the committed versions, ascending, each with a text that changes with it."""
        stamps = self._listed()
        return {step: repr(stamp) for step, stamp in stamps.items() if stamp is not None}

    def _listed(self) -> dict[int, Hashable | None]:
        """Return the stamps of all versions, ascending; None for one that is not committed."""
        entries = self._storage.entries(_is_version)
        return {int(name): entries[name].stamp for name in sorted(entries, key=int)}

    def open(self, step: int) -> OpenVersion | None:
        """Open a version; None if another call than `publish` has saved it.

        Raises what `cordwood.open` raises.
        """
        reader = self._open(step, None)
        try:
            record = version_in(reader.index.metadata, reader.path)
        except BaseException:
            reader.opened.close()
            raise
        if record is None:
            reader.opened.close()
            return None
        self._whole[step] = record.is_whole
        return OpenVersion(step, record, reader)

    def open_delta_of(self, whole: OpenVersion) -> OpenVersion:
        """Open the delta beside a whole version."""
        return whole._replace(reader=self._open(whole.step, BESIDE))

    def _open(self, step: int, prefix: str | None) -> LeafReader:
        location = self.location_of(step)
        return open_reader(location, format=DEFAULT.name, prefix=prefix, options=OpenOptions())

    def begin(self, step: int) -> None:
        """Make the newest version durable, whose publisher may have been killed before it was.

        Raises StepError if there is a version of that number, or a later one, or if the newest
        checkpoint there is no version.
        """
        steps = self.steps()
        if steps:
            self._storage.flush(step_name(steps[-1]))
        later = [each for each in steps if each >= step]
        if later:
            raise StepError(
                f"{self.location} has the versions {listed([*map(str, later)])} already: expected "
                f"a larger number than {later[-1]}, found {step}. If they are of a run that was "
                "given up, remove them (cordwood rm), or publish to another location"
            )
        if steps and self._is_other(steps[-1]):
            raise StepError(
                f"{self.location_of(steps[-1])} was not saved by a WeightPublisher: expected a "
                "location that holds versions only; publish to another one"
            )

    def remove_old(self, keep: int) -> None:
        """Remove versions that the newest `keep` do not need, and what killed publishers have left.

        Checkpoints that are no versions stay. Log a warning if that fails.
        """
        listed = self._listed()
        steps = [step for step, stamp in listed.items() if stamp is not None]
        try:
            oldest = next(
                (
                    step
                    for step in reversed(steps[: max(1, len(steps) - keep + 1)])
                    if self._is_whole(step)
                ),
                None,
            )
            older = [] if oldest is None else [step for step in steps if step < oldest]
            old = [step for step in older if self._is_whole(step) is not None]
            if old:
                self._storage.remove([step_name(step) for step in reversed(old)])
            for step in old:
                self._whole.pop(step, None)
            if isinstance(self.location, LocalPath) or len(steps) < len(listed):
                self._cleaner.remove_unfinished()
        except (CordwoodError, OSError) as e:
            log.warning("%s: old versions were not removed: %s", self.location, e)

    def _is_whole(self, step: int) -> bool | None:
        """Return True if a version holds the tree; None for a checkpoint that is no version."""
        if step not in self._whole:
            opened = self.open(step)
            if opened is None:
                self._whole[step] = None
            else:
                opened.reader.opened.close()
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
