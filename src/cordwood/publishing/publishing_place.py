"""The place where a publisher writes: what is there before a version, and what goes after it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from cordwood.deltas.stored_versions import ListedVersions, StoredVersions
from cordwood.errors import CordwoodError, StepError
from cordwood.formats.load_format import storage_of, writer_of
from cordwood.formats.step_names import step_name
from cordwood.formats.table import DEFAULT
from cordwood.formats.version_record import version_in
from cordwood.manager.delete_steps import StepCleaner
from cordwood.manager.steps import Steps
from cordwood.message_text import listed
from cordwood.policies.keep_policies import KeepAll
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.object_stores.request_deadline import request_deadline
from cordwood.storage.open_step_storage import open_step_storage
from cordwood.threads.log import log

_LOOK_SECONDS = 5.0  # that a call may wait for a listing, before it goes on in the background


class PublishingPlace:
    """The directory or URL of a publisher, which need not exist yet.

    Args:
        location: the directory or URL.
        timeout_seconds: the longest wait for the lock of the directory.

    Raises UnsupportedFormatError for a URL that can only be read.
    """

    def __init__(self, location: Location, timeout_seconds: float) -> None:
        self._storage = open_step_storage(
            location, storage_of(DEFAULT).RULES, timeout_seconds=timeout_seconds
        )
        self._versions = StoredVersions(self._storage)
        self._cleaner = StepCleaner(Steps(self._storage), KeepAll())
        # By number: True if a version holds the tree; None for a checkpoint that is no version.
        self._whole: dict[int, bool | None] = {}

    @property
    def location(self) -> Location:
        return self._storage.location

    def location_of(self, step: int) -> Location:
        """Return the location of a version."""
        return self._versions.location_of(step)

    def refuse_old(self, step: int) -> None:
        """Raise StepError if there is a version of that number, or a later one.

        A location that cannot be listed within some seconds is left to `begin`.
        """
        with suppress(OSError), request_deadline(time.monotonic() + _LOOK_SECONDS):
            self._require_newer(step, self._versions.listing().steps)

    def _require_newer(self, step: int, steps: Sequence[int]) -> None:
        later = [each for each in steps if each >= step]
        if later:
            raise StepError(
                f"{self.location} has the versions {listed([*map(str, later)])} already: expected "
                f"a larger number than {later[-1]}, found {step}. If they are of a run that was "
                "given up, remove them (cordwood rm), or publish to another location"
            )

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
        there = self._versions.listing()
        steps = there.steps
        self._require_newer(step, steps)
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
                reader = self._versions.open_reader(step, None, stack)
                record = version_in(reader.index.metadata, reader.path)
            self._whole[step] = None if record is None else record.is_whole
        return self._whole[step]

    def _is_other(self, step: int) -> bool:
        """Return True for a checkpoint that is no version; False if it cannot be read."""
        try:
            return self._is_whole(step) is None
        except (CordwoodError, OSError):
            return False
