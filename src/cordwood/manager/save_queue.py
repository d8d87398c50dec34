"""The saves of one manager, one at a time, each followed by deletions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from cordwood.errors import CordwoodError, PendingSaveError
from cordwood.formats.choose_format import format_for_saving
from cordwood.formats.format_protocol import SaveOptions
from cordwood.formats.orbax_option import with_orbax
from cordwood.formats.step_names import step_name
from cordwood.formats.step_record import (
    KEY,
    ORBAX_ITEM,
    PREFIX_KEY,
    UNSHARED_KEY,
    Record,
    encode_record,
)
from cordwood.formats.table import DEFAULT
from cordwood.io.memory.staging_memory import StagingOptions
from cordwood.io.progress import ProgressOption
from cordwood.manager.delete_steps import Settlement, StepCleaner
from cordwood.manager.mirror_copies import MirrorCopies
from cordwood.manager.require_newer import require_newer
from cordwood.manager.save_report import SaveReport
from cordwood.manager.step import Step
from cordwood.manager.steps import Steps
from cordwood.manager.unshared.unshared_run import UnsharedRun
from cordwood.policies.keep_policies import KeepPolicy
from cordwood.processes.key_value_store import current_processes
from cordwood.processes.process_group import ProcessGroup
from cordwood.processes.rendezvous import Rendezvous
from cordwood.saving.background_saves import NOTHING_STARTED, SAVE_STARTED_ANYWAY, PendingSave
from cordwood.saving.post_commit_queue import PostCommitQueue
from cordwood.saving.save_rendezvous import announce_errors
from cordwood.saving.snapshot_save import SnapshotSave
from cordwood.storage.locations import Url
from cordwood.threads.exclusive_calls import ExclusiveCalls
from cordwood.threads.log import log

R = TypeVar("R")


class StepSave(NamedTuple):
    """The save of a step: being written, committed or failed, as its `pending` says.

    Attributes:
        step: its number.
        pending: the state of the save.
        record: what is saved beside the tree; None if the save failed before it was planned.
    """

    step: int
    pending: PendingSave
    record: Record | None = None


class SaveQueue:
    """The saves of one manager.

    Attributes:
        last: the last save; None if there was none, if it failed and that has been reported, or if
            only what is on disk counts from now on.
        last_good: the last step whose save succeeded before the next save began; None: none.
        last_began: when the last save began, or else the manager, by the monotonic clock.
        last_seconds: how long the last committed save took; 0 if there was none.
        post_commit: the work after commits.
        calls: the calls that change the manager.
        failure_reported: True once the failure of a save was reported; the reader sets it back.
    """

    def __init__(
        self,
        steps: Steps,
        group: ProcessGroup,
        keep: KeepPolicy,
        on_save: Callable[[SaveReport], None] | None,
        copies: MirrorCopies | None,
        unshared: UnsharedRun | None,
        *,
        rewrite_every: int,
        page_cache: bool,
        orbax: bool | str,
        staging: StagingOptions,
        timeout_seconds: float,
        progress: ProgressOption,
    ) -> None:
        self.last: StepSave | None = None
        self.last_good: int | None = None
        self.last_began = time.monotonic()
        self.last_seconds = 0.0
        self.failure_reported = False
        self._steps = steps
        self._group = group
        self._cleaner = StepCleaner(steps, keep)
        self._on_save = on_save
        self._copies = copies
        self._unshared = unshared
        if type(rewrite_every) is not int or rewrite_every < 1:
            raise ValueError(
                f"rewrite_every: expected an int of at least 1, found {rewrite_every!r:.80}"
            )
        self._rewrite_every = rewrite_every
        self._page_cache = page_cache
        self._orbax = orbax
        self._staging = staging
        self._timeout_seconds = timeout_seconds
        self._progress = progress
        self.post_commit = PostCommitQueue()
        self.calls = ExclusiveCalls(f"the manager of {steps.root}")

    def alone(self, call: Callable[[], R]) -> R:
        """Call a function while no other thread is in such a call; not in the main thread.

        The work after a commit does not wait: the call that it would wait for may wait for it.
        """
        self.calls.require_process()
        if self.post_commit.is_in_this_thread:
            return call()
        return self.calls.run(call)

    @property
    def step(self) -> int | None:
        """The step of the last save."""
        return None if self.last is None else self.last.step

    @property
    def saving(self) -> bool:
        """True while the last save is running."""
        return self.last is not None and not self.last.pending.done

    @property
    def failed(self) -> bool:
        """True if the last save failed, and that has not been reported."""
        return self.last is not None and self.last.pending._has_unreported_failure

    @contextmanager
    def attempt(self, number: int) -> Iterator[tuple[Rendezvous, Rendezvous]]:
        """Create the rendezvous for the save of a step, and announce an error of the block there.

        The second one is for the states of items, before the save. None of them is entered yet.
        With several processes, if one of them cannot save a step, none saves it, whatever the
        reason. All of them save the next step, and that save does not report this failure.
        """
        path = str(self._steps.storage.location_of(step_name(number)))
        same_path = path if self._unshared is None else f"{self._group.root}: step {number}"
        rendezvous = Rendezvous(
            current_processes(),
            f"save {same_path}",
            timeout_seconds=self._timeout_seconds,
            background=True,
        )
        try:
            items = self._group.rendezvous(f"save the items of step {number} of")
            with announce_errors(rendezvous), announce_errors(items):
                yield rendezvous, items
        except BaseException as e:
            if rendezvous.count > 1 and not self.saving:
                # On other processes this save fails in the background. It counts as begun here too,
                # so that all processes agree on the last step, which policies use.
                pending = PendingSave(path, path, 0)
                pending._has_owner = True
                pending._end(e)
                _ = pending.exception  # the caller raises it, so it counts as reported
                self.last = StepSave(number, pending)
            raise

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
        overwrite: bool,
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
            overwrite: True if a step of that number is replaced.
        """
        location = self._steps.storage.location_of(step_name(record.step))
        saved_format = format_for_saving(location, format=DEFAULT.name, prefix=None)
        if self.last is not None:
            self.last_good = self.last.step
        is_first = self._group.index == 0
        base = self._prepare(record.step, overwrite=overwrite) if is_first else None
        if self._unshared is not None:
            if not is_first:
                self._cleaner.make_room()
            self._unshared.make_room(record.step)
        if base is not None and base.record is not None:
            record = record._replace(chain=base.record.chain + 1)
        strings = {KEY: encode_record(record)}
        if self._unshared is not None:
            strings[UNSHARED_KEY] = str(rendezvous.count)
        if prefix is not None:
            strings[PREFIX_KEY] = prefix
        orbax_item = ORBAX_ITEM if prefix is None else prefix
        metadata = with_orbax(strings, self._orbax, saved_format, location, item=orbax_item)
        save = SnapshotSave(
            location,
            tree,
            saved_format,
            rendezvous,
            SaveOptions(metadata=metadata, items=items, page_cache=self._page_cache),
            base="" if base is None else base.entry,
            staging=self._staging,
            progress=self._progress,
        )

        def work(pending: PendingSave) -> None:
            settlement = self._write(save, pending, record.step, rendezvous)
            returned = pending.begun_seconds if save.is_detached else time.monotonic()
            report = SaveReport(
                record.step,
                str(location),
                why,
                written_bytes=save.total_bytes - save.linked_bytes,
                linked_bytes=save.linked_bytes,
                blocking_seconds=returned - called,
                total_seconds=time.monotonic() - called,
            )
            self.last_seconds = report.total_seconds
            self.post_commit.run(
                pending,
                lambda: self._report_and_clean(
                    report, settlement, is_first=is_first, overwrite=overwrite
                ),
            )

        pending = save.start(str(location), work)
        pending._has_owner = True
        self.last = StepSave(record.step, pending, record)
        self.last_began = time.monotonic()
        save.detach(pending)
        return pending

    def _write(
        self, save: SnapshotSave, pending: PendingSave, number: int, rendezvous: Rendezvous
    ) -> Settlement | None:
        """Write and commit a save; return what is deleted then, if all roots agree on that."""
        if self._unshared is None:
            save.write(pending)
            return None
        try:
            with rendezvous:
                save.write(pending)
                return self._unshared.settle(rendezvous, number, self._cleaner)
        except BaseException:
            self._unshared.withdraw(number, rendezvous)
            raise

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait for the running save, and for the work after its commit.

        Raises the exception of the save if it failed, or TimeoutError. The failure of a save whose
        call was interrupted is not raised: the caller knows that nothing was saved.
        """
        self.calls.require_process()
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds

        def is_done() -> bool:
            left_seconds = None if end is None else max(0.0, end - time.monotonic())
            return self.post_commit.wait(left_seconds)

        last = self.last
        try:
            if last is not None:
                last.pending.wait(timeout_seconds)
        except BaseException as e:
            if last is not None and last.pending.failed and not self.failed:
                self._forget_failed(last)
                is_done()  # the work of the saves before
            if last is None or e is not last.pending._error or not last.pending._is_given_up:
                raise
        if not is_done():
            raise TimeoutError(
                f"{self._steps.root}: what is to be done after a save, on_save and deleting steps, "
                f"is not done after {timeout_seconds:g} s; it goes on, and the step is saved"
            )

    def finish(self, *, go_on: bool) -> None:
        """Wait for the running save; raise PendingSaveError if it failed and was not reported.

        Args:
            go_on: True if the caller begins the next save all the same; the error says so.
        """
        last = self.last
        if last is None:
            return
        step, pending, _ = last
        pending._wait_quietly()
        if not pending.failed:
            return
        unreported, e = self.failed, pending.exception
        self._forget_failed(last)
        if unreported:
            raise PendingSaveError(
                f"the save of step {step} in the background failed: {type(e).__name__}: {e}. "
                "This was not reported earlier because wait() was not called. "
                + (SAVE_STARTED_ANYWAY if go_on else NOTHING_STARTED)
            ) from e

    def wait_quietly(self) -> None:
        """Wait for the running save and raise nothing; forget it if it succeeded."""
        if self.last is not None:
            self.last.pending._wait_quietly()
            if not self.last.pending.failed:
                self.last = None

    def _forget_failed(self, failed: StepSave) -> None:
        self.failure_reported = True
        if self.last is failed:  # not a save that a signal handler has begun meanwhile
            self.last = None

    def _prepare(self, number: int, *, overwrite: bool) -> Step | None:
        """Require that a step may be saved, and make room for it, on process 0.

        Returns the step whose files the save may link; None to write everything. Raises StepError.
        """
        newest = require_newer(self._steps, number, overwrite=overwrite)
        self._cleaner.make_room()
        if newest is None or newest.record is None or newest.is_link:
            return None
        if isinstance(self._steps.location, Url):  # nothing is written again: no disk decays
            return newest if self._rewrite_every > 1 else None
        return newest if newest.record.chain + 1 < self._rewrite_every else None

    def _report_and_clean(
        self,
        report: SaveReport,
        settlement: Settlement | None,
        *,
        is_first: bool,
        overwrite: bool,
    ) -> None:
        """Report a committed step and delete old steps; an error here is not one of the save."""
        (log.info if is_first else log.debug)("%s", report)
        try:
            if self._on_save is not None:
                self._on_save(report)
        except Exception:  # noqa: BLE001  (of the caller's hook; it is logged with its traceback)
            log.exception("on_save failed for step %d, which is saved", report.step)
        if not is_first and settlement is None:
            return
        try:
            if settlement is None or self._unshared is None:
                self._cleaner.after_commit(time_now=time.time())
            else:
                self._cleaner.delete_agreed(settlement.deleted)
                self._unshared.clean(settlement)
        except (OSError, CordwoodError) as e:
            log.warning("%s: steps could not be deleted: %s", self._steps.root, e)
        except Exception:  # noqa: BLE001  (of a policy; it is logged with its traceback)
            log.exception("%s: keep failed, and no step was deleted", self._steps.root)
        if settlement is not None and self._unshared is not None:
            self._unshared.replicate(report.step, settlement)
        if self._copies is None or not is_first:
            return
        try:
            if overwrite:  # a copy replaces nothing
                self._copies.delete(report.step, report.step + 1)
        except (OSError, CordwoodError) as e:
            log.warning(
                "%s: step %d was replaced, but not in the mirror: %s",
                self._steps.root,
                report.step,
                e,
            )
        self._copies.request(report.step)
