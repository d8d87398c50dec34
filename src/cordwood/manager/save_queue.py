"""The saves of one manager: one at a time, each followed by the deletion of old steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from cordwood.api.save_async import begin_save
from cordwood.api.save_rendezvous import announce_errors
from cordwood.encoding.step_record import KEY, PREFIX_KEY, Record, encode_record
from cordwood.errors import CordwoodError, PendingSaveError, StepError
from cordwood.formats.format_for_saving import format_for_saving
from cordwood.io.background_save import NOTHING_STARTED, SAVE_STARTED_ANYWAY, PendingSave
from cordwood.io.post_commit import PostCommitQueue
from cordwood.io.progress import ProgressOption
from cordwood.manager.delete_steps import StepCleaner
from cordwood.manager.keep_policies import KeepPolicy
from cordwood.manager.save_report import SaveReport
from cordwood.manager.step_listing import Step, StepListing
from cordwood.manager.step_names import step_name
from cordwood.processes.coordination import current_processes
from cordwood.processes.rendezvous import ProcessGroup, Rendezvous
from cordwood.storage.step_storage import StepStorage
from cordwood.storage.urls import local_or_url, parse_url

_log = logging.getLogger("cordwood")


class SaveRendezvous(NamedTuple):
    """The rendezvous of the processes that save a step, none of them entered yet."""

    save: Rendezvous
    items: Rendezvous  # for the states of items, before the save


class SaveQueue:
    """The saves of one manager.

    Attributes:
        step: the step of the last save; None if there was none, or if it failed and that has been
            reported.
        record: the record of the last save.
        last_good: the last step whose save succeeded before the next save began; None: none.
        last_seconds: how long the last committed save took; 0 if there was none.
    """

    def __init__(
        self,
        place: StepStorage,
        listing: StepListing,
        group: ProcessGroup,
        keep: KeepPolicy,
        on_save: Callable[[SaveReport], None] | None,
        *,
        rewrite_every: int,
        timeout_seconds: float,
        progress: ProgressOption,
    ) -> None:
        self.step: int | None = None
        self.record: Record | None = None
        self.last_good: int | None = None
        self.last_seconds = 0.0
        self._pending: PendingSave | None = None
        self._place = place
        self._listing = listing
        self._group = group
        self._cleaner = StepCleaner(place, listing, keep)
        self._on_save = on_save
        self._rewrite_every = _count(rewrite_every)
        self._timeout_seconds = timeout_seconds
        self._progress = progress
        self._post_commit = PostCommitQueue()

    @property
    def pending(self) -> PendingSave | None:
        """The last save."""
        return self._pending

    @property
    def saving(self) -> bool:
        """True while the last save is running."""
        return self._pending is not None and not self._pending.done

    @property
    def failed(self) -> bool:
        """True if the last save failed, and that has not been reported."""
        return self._pending is not None and self._pending._has_unreported_failure

    @contextmanager
    def attempt(self, number: int) -> Iterator[SaveRendezvous]:
        """Create the rendezvous for the save of a step, and announce an error of the block there.

        With several processes, if one of them cannot save a step, none saves it, whatever the
        reason. All of them save the next step, and that save does not report this failure.
        """
        rendezvous = Rendezvous(
            current_processes(),
            f"save {self._place.path_of(step_name(number))}",
            timeout_seconds=self._timeout_seconds,
            background=True,
        )
        try:
            items = self._group.rendezvous(f"save the items of step {number} of")
            with announce_errors(rendezvous), announce_errors(items):
                yield SaveRendezvous(rendezvous, items)
        except BaseException as e:
            if rendezvous.count > 1 and (self._pending is None or self._pending.done):
                self._failed_to_begin(number, e)
            raise

    def _failed_to_begin(self, number: int, error: BaseException) -> None:
        """Count a save that failed at once as begun: on other processes it fails in the background.

        So all processes agree on the last step, which policies use.
        """
        path = self._place.path_of(step_name(number))
        pending = PendingSave(path, path, 0)
        pending._has_owner = True
        pending._end(error)
        assert pending.exception is error  # the caller raises it, so it counts as reported
        self.step, self._pending = number, pending

    def begin(
        self,
        record: Record,
        tree: Any,
        items: Mapping[str, Any],
        rendezvous: Rendezvous,
        *,
        why: str,
        called: float,
        prefix: str | None,
    ) -> PendingSave:
        """Begin a save. The save before must have ended.

        Args:
            record: the record of the step.
            tree: the tree to save.
            items: more trees, by name.
            rendezvous: the rendezvous of the save, from `attempt`.
            why: the reason for the save.
            called: when the caller asked for it, by the monotonic clock.
            prefix: the prefix by which this job has restored the tree; None: none.
        """
        path = self._place.path_of(step_name(record.step))
        saved_format = format_for_saving(
            local_or_url(path), format=None, layout="packs", prefix=None
        )
        is_first = self._group.index == 0
        base: Step | None = None

        def before_save() -> None:
            nonlocal base
            self._require_newest(record.step)
            base = self._base()

        def metadata() -> Mapping[str, str]:
            chain = 0 if base is None or base.record is None else base.record.chain + 1
            prefix_entry = {} if prefix is None else {PREFIX_KEY: prefix}
            return {KEY: encode_record(record._replace(chain=chain)), **prefix_entry}

        def on_commit(pending: PendingSave, linked_bytes: int) -> None:
            report = SaveReport(
                record.step,
                path,
                why,
                written_bytes=pending.progress.total_bytes - linked_bytes,
                linked_bytes=linked_bytes,
                blocking_seconds=pending.begun_seconds - called,
                total_seconds=time.monotonic() - called,
            )
            self.last_seconds = report.total_seconds
            self._post_commit.run(
                pending, lambda: self._report_and_clean(report, is_first=is_first)
            )

        if self.step is not None:
            self.last_good = self.step
        self._pending = begin_save(
            local_or_url(path),
            tree,
            saved_format,
            rendezvous,
            compression=None,
            prefix=None,
            metadata=metadata,
            before_save=before_save,
            previous_step=lambda: "" if base is None else base.entry,
            on_commit=on_commit,
            progress=self._progress,
            items=items,
        )
        self._pending._has_owner = True
        self.step, self.record = record.step, record
        return self._pending

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait for the running save, and for the work after its commit.

        Raises the exception of the save if it failed, or TimeoutError.
        """
        pending, start = self._pending, time.monotonic()

        def is_done() -> bool:
            remaining_seconds = timeout_seconds
            if remaining_seconds is not None:
                remaining_seconds = max(0.0, remaining_seconds - (time.monotonic() - start))
            return self._post_commit.wait(remaining_seconds)

        try:
            if pending is not None:
                pending.wait(timeout_seconds)
        except BaseException:
            if pending is not None and pending.failed and not pending._has_unreported_failure:
                self.forget()
                is_done()  # the work of the saves before
            raise
        if not is_done():
            raise TimeoutError(
                f"{self._place.name}: what is to be done after a save, on_save and deleting steps, "
                f"is not done after {timeout_seconds:g} s; it goes on, and the step is saved"
            )

    def finish(self, *, go_on: bool) -> None:
        """Wait for the running save; raise PendingSaveError if it failed and was not reported.

        Args:
            go_on: True if the caller begins the next save all the same; the error says so.
        """
        step, pending = self.step, self._pending
        if pending is None:
            return
        pending._wait_quietly()
        if not pending.failed:
            return
        untold, e = pending._has_unreported_failure, pending.exception
        self.forget()
        if untold:
            raise PendingSaveError(
                f"the save of step {step} in the background failed: {type(e).__name__}: {e}; "
                "that is told now because nobody called wait(). "
                + (SAVE_STARTED_ANYWAY if go_on else NOTHING_STARTED)
            ) from e

    def limit_backlog(self) -> None:
        """Wait until the work after commits is at most one save behind."""
        self._post_commit.limit_backlog()

    def wait_quietly(self) -> None:
        """Wait for the running save and raise nothing; forget it if it succeeded."""
        pending = self._pending
        if pending is not None:
            pending._wait_quietly()
            if not pending.failed:
                self.forget()

    def forget(self) -> None:
        """Forget the last save; only what is on disk counts from now on."""
        self.step, self._pending = None, None

    def _require_newest(self, number: int) -> None:
        """Raise StepError if an existing step does not allow a save; hide an unreadable index.

        The commit itself replaces other damaged files.
        """
        entries = self._listing.entries(start=number)
        whole = [each.step for each in entries if each.whole]
        if whole and whole[-1] == number:
            raise StepError(
                f"{self._place.name}: step {number} already exists. To continue the run from it, "
                f"save step {number + 1} next; to replace it, call manager.delete({number}) first"
            )
        if whole:
            raise StepError(
                f"{self._place.name}: step {number} is not newer than step {whole[-1]}, "
                "which is there; delete the later steps first (delete_after), or save this run to "
                "another root"
            )
        for each in entries:
            if each.step != number:
                continue
            if each.in_the_way:
                raise StepError(f"{each.path} lies where step {number} goes: {each.in_the_way}")
            if each.damaged and not each.tool and each.record is None:
                self._place.set_aside(each.entry)
                _log.warning("%s: what is damaged there is hidden until it is saved", each.path)
        self._cleaner.make_room()

    def _base(self) -> Step | None:
        """Return the step whose files the next save may link; None to write everything."""
        if parse_url(self._place.name) is not None:  # there are no links
            return None
        newest = self._listing.newest(lambda step: step.counts)
        if newest is None or newest.is_link:
            return None
        assert newest.record is not None
        return newest if newest.record.chain + 1 < self._rewrite_every else None

    def _report_and_clean(self, report: SaveReport, *, is_first: bool) -> None:
        """Report a committed step and delete old steps; an error here is not one of the save."""
        _log.log(logging.INFO if is_first else logging.DEBUG, "%s", report)
        try:
            if self._on_save is not None:
                self._on_save(report)
        except Exception:  # noqa: BLE001  (of the caller's hook; it is logged with its traceback)
            _log.exception("on_save failed for step %d, which is saved", report.step)
        if not is_first:
            return
        try:
            self._cleaner.after_commit(time_now=time.time())
        except (OSError, CordwoodError) as e:
            _log.warning("%s: steps could not be deleted: %s", self._place.name, e)
        except Exception:  # noqa: BLE001  (of a policy; it is logged with its traceback)
            _log.exception("%s: keep failed, and no step was deleted", self._place.name)


def _count(steps: int) -> int:
    if type(steps) is not int or steps < 1:
        raise ValueError(f"rewrite_every: expected an int of at least 1, found {steps!r:.80}")
    return steps
