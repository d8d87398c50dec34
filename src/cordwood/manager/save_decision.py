"""Whether to save a step: asks the policy, and heeds the notice that the job is to end."""

from __future__ import annotations

import time
from contextlib import suppress

from cordwood.errors import CordwoodError
from cordwood.manager.save_policies import Moment, SavePolicy, asks_for_notice
from cordwood.manager.save_queue import SaveQueue
from cordwood.manager.step_listing import StepListing
from cordwood.processes.preemption import PreemptionNotice
from cordwood.processes.process_group import ProcessGroup


class SaveDecider:
    """Comes to the same on all processes.

    Args:
        policy: says when to save.
        preemption_seconds: how long the job has from SIGTERM on; None: that is left alone.
        group: of the processes.
        saver: what it saves, and has saved.
        listing: what is there.

    Attributes:
        policy: as it was given.
        notice: of SIGTERM.
        preempted: the notice has come, and been heeded.

    Raises ValueError: the policy asks for a notice that is not taken, or the time is none.
    """

    def __init__(
        self,
        policy: SavePolicy,
        preemption_seconds: float | None,
        group: ProcessGroup,
        saver: SaveQueue,
        listing: StepListing,
    ) -> None:
        if preemption_seconds is None and asks_for_notice(policy):
            raise ValueError(
                "save: OnPreemption() needs preemption_seconds=, how long the job has from SIGTERM"
            )
        if preemption_seconds is not None and not preemption_seconds > 0:
            raise ValueError(
                f"preemption_seconds: expected more than 0, found {preemption_seconds!r}"
            )
        self.policy = policy
        self.notice = PreemptionNotice()
        self.preempted = False
        self._preemption_seconds = preemption_seconds
        self._group = group
        self._saver = saver
        self._listing = listing
        self._newest: int | None = None  # of the steps that were there
        self._looked = False
        self._last_began = time.monotonic()
        self.listen()

    def listen(self) -> None:
        """Take note of SIGTERM from now on, if this was given a time for that."""
        if self._preemption_seconds is not None:
            self.notice.listen()

    def invalidate(self) -> None:
        """Look at the root again at the next call: steps were deleted, or may be damaged.

        Of several processes all must call this: they look together.
        """
        self._looked = False

    def forget_failed_save(self) -> None:
        """Forget the step whose save failed: the last one is what was saved before it.

        With several processes nobody looks at the root again for that: not all may know of the
        failure yet, and those who do not would not come.
        """
        if self._group.count == 1:
            self.invalidate()
        elif self._saver.last_good is not None:
            self._newest = self._saver.last_good

    def begun(self) -> None:
        """Take note that a save has just begun."""
        self._last_began = time.monotonic()

    def ask(self, number: int) -> tuple[bool, str | None]:
        """Return whether the job has been told to end, and why to save; None: do not.

        Raises ProcessError.
        """
        if not self._looked:
            self._look_together()
        if self.policy.by_step and self._preemption_seconds is None:
            return False, self.policy.why(self._moment(number, told=False))

        def decide(told: bool) -> str | None:
            if told and self.preempted:
                return None
            why = self.policy.why(self._moment(number, told=told))
            if not told:
                return why
            if self._saver.saving and self.seconds_left() < 2 * self._saver.last_seconds:
                return None  # the one that goes on is all there is time for
            return why or "the job has been told to end"

        return self._group.decide(number, decide, preempted=self.notice.received_at is not None)

    def seconds_left(self) -> float:
        """Return the time until the job ends, as far as this process knows."""
        assert self._preemption_seconds is not None
        since = self.notice.received_at
        gone = 0.0 if since is None else time.monotonic() - since
        return max(0.0, self._preemption_seconds - gone)

    def _look_together(self) -> None:
        try:
            found = self._group.agree("look for the steps of", b"", self._look)
        except BaseException:
            if self._group.count > 1:
                # Others may have succeeded, and would not come again: this one looks by itself.
                with suppress(OSError, CordwoodError):
                    if self._group.index > 0:
                        self._group.restart_decisions()
                    self._newest, self._looked = self._listing.latest(), True
            raise
        if self._group.index > 0:
            self._group.restart_decisions()
        self._newest, self._looked = int(found) if found else None, True

    def _look(self, _: list[bytes]) -> bytes:
        self._group.restart_decisions()
        latest = self._listing.latest()
        return b"" if latest is None else str(latest).encode()

    def _moment(self, number: int, *, told: bool) -> Moment:
        return Moment(
            number,
            self._newest if self._saver.step is None else self._saver.step,
            time.monotonic() - self._last_began,
            saving=self._saver.saving,
            preempted=told,
        )
