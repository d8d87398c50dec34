"""One save at a time: begins it, waits for the one before, deletes after the commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from cordwood.api.save_async import begin_save
from cordwood.engine.afterwards import Afterwards
from cordwood.engine.pending import PendingSave
from cordwood.engine.step_places import StepPlace
from cordwood.errors import CordwoodError, PendingSaveError, StepError
from cordwood.manager.cleaning import Cleaner
from cordwood.manager.company import Company
from cordwood.manager.keep_policies import KeepPolicy
from cordwood.manager.listing import Listing, Step
from cordwood.manager.records import KEY, Record, encode_record
from cordwood.manager.reports import SaveReport
from cordwood.manager.step_names import step_name

__all__ = ["Saver"]

_log = logging.getLogger("cordwood")


class Saver:
    """The saves of one manager.

    Attributes:
        step: of the save that was begun last; None where there was none, or it has failed and
            that has been told.
        record: of the save that was begun last.
        last_seconds: how long the last one took that was committed; 0: there was none.
    """

    def __init__(
        self,
        place: StepPlace,
        listing: Listing,
        company: Company,
        keep: KeepPolicy,
        on_save: Callable[[SaveReport], None] | None,
        *,
        rewrite_every: int,
        timeout_seconds: float,
    ) -> None:
        self.step: int | None = None
        self.record: Record | None = None
        self.last_seconds = 0.0
        self._pending: PendingSave | None = None
        self._place = place
        self._listing = listing
        self._company = company
        self._cleaner = Cleaner(place, listing, keep)
        self._on_save = on_save
        self._rewrite_every = rewrite_every
        self._timeout_seconds = timeout_seconds
        self._afterwards = Afterwards()

    @property
    def pending(self) -> PendingSave | None:
        """The save that was begun last."""
        return self._pending

    @property
    def saving(self) -> bool:
        """Whether it goes on."""
        return self._pending is not None and not self._pending.done

    @property
    def failed(self) -> bool:
        """Whether it failed, and nobody has been told."""
        return self._pending is not None and self._pending.untold

    def begin(
        self, record: Record, tree: Any, *, why: str, called: float, tell_failures: bool
    ) -> PendingSave:
        """Begin a save; the one before has ended.

        Args:
            record: the step, beside its tree.
            tree: what to save.
            why: it is saved.
            called: when the caller asked for it, by the monotonic clock.
            tell_failures: of other saves in the background, instead of beginning this one.
        """
        path = self._place.path_of(step_name(record.step))
        is_first = self._company.is_first
        base: Step | None = None

        def first() -> None:
            nonlocal base
            self._require_newest(record.step)
            base = self._base()

        def metadata() -> Mapping[str, str]:
            chain = 0 if base is None or base.record is None else base.record.chain + 1
            return {KEY: encode_record(record._replace(chain=chain))}

        def committed(pending: PendingSave, linked_bytes: int) -> None:
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
            self._afterwards.run(pending, lambda: self._report_and_clean(report, is_first=is_first))

        self._pending = begin_save(
            path,
            tree,
            format=None,
            layout="packs",
            compression=None,
            prefix=None,
            metadata=metadata,
            timeout_seconds=self._timeout_seconds,
            first=first,
            base=lambda: "" if base is None else base.entry,
            then=committed,
            tell_failures=tell_failures,
        )
        self._pending.has_owner = True
        self.step, self.record = record.step, record
        return self._pending

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait for the one that goes on, and for what is done after its commit.

        Raises what it failed with, or TimeoutError.
        """
        pending, since = self._pending, time.monotonic()

        def is_done() -> bool:
            left = timeout_seconds
            if left is not None:
                left = max(0.0, left - (time.monotonic() - since))
            return self._afterwards.wait(left)

        try:
            if pending is not None:
                pending.wait(timeout_seconds)
        except BaseException:
            if pending is not None and pending.failed and not pending.untold:
                self.forget()
                is_done()  # of the saves before
            raise
        if not is_done():
            raise TimeoutError(
                f"{self._place.name}: what is to be done after a save, on_save and deleting steps, "
                f"is not done after {timeout_seconds:g} s; it goes on, and the step is saved"
            )

    def finish(self) -> None:
        """Wait for the one that goes on; raise PendingSaveError if it failed, once."""
        step, pending = self.step, self._pending
        if pending is None:
            return
        pending.settle()
        if not pending.failed:
            return
        # One process may have asked why it failed, and another not.
        untold = self._company.agree(
            f"tell that the save of step {step} failed to",
            b"untold" if pending.untold else b"",
            lambda values: max(values),
        )
        e = pending.exception
        self.forget()
        if untold:
            raise PendingSaveError(
                f"the save of step {step} in the background failed: {type(e).__name__}: {e}; "
                "that is told now because nobody called wait(). Nothing was begun now: save again"
            ) from e

    def keep_up(self) -> None:
        """Wait until what follows the saves is not more than one save behind."""
        self._afterwards.keep_up()

    def settle(self) -> None:
        """Wait for the one that goes on; it may turn out to be damaged. Raises nothing."""
        pending = self._pending
        if pending is not None:
            pending.settle()
            if not pending.failed:
                self.forget()

    def forget(self) -> None:
        """Of the last save nothing is known any more but what lies there."""
        self.step, self._pending = None, None

    def _require_newest(self, number: int) -> None:
        """Raise StepError if a step stands in the way; put an index that is unreadable out of it.

        Damage elsewhere is replaced by the commit itself.
        """
        entries = self._listing.entries(start=number)
        whole = [each.step for each in entries if each.whole]
        if whole and whole[-1] == number:
            raise StepError(
                f"{self._place.name}: step {number} is there: a run that goes on from it saves "
                f"step {number + 1} next; to save it anew, delete it first"
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
        """The step whose files the next one may link; None where all is to be written."""
        newest = self._listing.newest(lambda step: step.counts)
        if newest is None or newest.is_link:
            return None
        assert newest.record is not None
        return newest if newest.record.chain + 1 < self._rewrite_every else None

    def _report_and_clean(self, report: SaveReport, *, is_first: bool) -> None:
        """The step is safe: nothing here is an error of its save."""
        _log.log(logging.INFO if is_first else logging.DEBUG, "%s", report)
        try:
            if self._on_save is not None:
                self._on_save(report)
        except Exception:  # noqa: BLE001  (the hook's own; it is logged with its traceback)
            _log.exception("on_save failed for step %d, which is saved", report.step)
        if not is_first:
            return
        try:
            self._cleaner.after_commit(now=time.time())
        except (OSError, CordwoodError) as e:
            _log.warning("%s: steps could not be deleted: %s", self._place.name, e)
        except Exception:  # noqa: BLE001  (a policy's own; it is logged with its traceback)
            _log.exception("%s: keep failed, and no step was deleted", self._place.name)
