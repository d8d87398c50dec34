"""One save at a time: begins it, waits for the one before, deletes after the commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from cordwood.api.save_async import begin_save
from cordwood.engine.pending import PendingSave, wait_for
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
        self.last_seconds = 0.0
        self._pending: PendingSave | None = None
        self._place = place
        self._listing = listing
        self._company = company
        self._cleaner = Cleaner(place, listing, keep)
        self._on_save = on_save
        self._rewrite_every = rewrite_every
        self._timeout_seconds = timeout_seconds

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
        return self._pending is not None and self._pending.failed

    def begin(self, record: Record, tree: Any, *, why: str, called: float) -> PendingSave:
        """Begin a save; the one before has ended.

        Args:
            record: the step, beside its tree.
            tree: what to save.
            why: it is saved.
            called: when the caller asked for it, by the monotonic clock.
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
            self._after_commit(report, is_first=is_first)

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
        )
        self.step = record.step
        return self._pending

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait for the one that goes on; raise what it failed with, or TimeoutError."""
        if self._pending is None:
            return
        try:
            self._pending.wait(timeout_seconds)
        finally:
            if self._pending.done and self._pending.exception is not None:
                self.forget()

    def finish(self) -> None:
        """Wait for the one that goes on; raise PendingSaveError if it failed, once."""
        step = self.step
        try:
            self.wait()
        except Exception as e:
            raise PendingSaveError(
                f"the save of step {step} in the background failed: {type(e).__name__}: {e}; "
                "that is told now because nobody called wait(). Nothing was begun now: save again"
            ) from e

    def settle(self) -> None:
        """Wait for the one that goes on; it may turn out to be damaged. Raises nothing."""
        if self._pending is not None:
            wait_for(self._pending.path)
            if not self._pending.failed:
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
        if whole:
            raise StepError(
                f"{self._place.name}: step {number} is not newer than step {whole[-1]}, "
                "which is there; delete the later steps first, or save this run to another root"
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
        if not newest or not newest[-1].counts or newest[-1].is_link:
            return None
        record = newest[-1].record
        assert record is not None
        return newest[-1] if record.chain + 1 < self._rewrite_every else None

    def _after_commit(self, report: SaveReport, *, is_first: bool) -> None:
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
