"""The decision whether to save a step, from the policy and from a preemption notice."""

from __future__ import annotations

import time
from contextlib import suppress

from cordwood.errors import CordwoodError
from cordwood.manager.save_queue import SaveQueue
from cordwood.manager.steps import Steps
from cordwood.policies import Moment, SavePolicy, asks_for_notice
from cordwood.processes.agreement import ProcessGroup
from cordwood.processes.preemption import PreemptionNotice


class SaveDecider:
    """The decisions of a manager, which are the same on all processes.

    Args:
        policy: says when to save.
        preemption_seconds: how long the job may run after SIGTERM; None: SIGTERM is ignored here.
        group: the processes of the job.
        queue: the saves of the manager.
        steps: the steps of the root.

    Attributes:
        policy: the policy that was given.
        notice: the receiver of SIGTERM.
        preempted: True once SIGTERM has come and a `save` has acted on it.

    Raises ValueError if the policy needs `preemption_seconds` and has none, or if it is not
    positive.
    """

    def __init__(
        self,
        policy: SavePolicy,
        preemption_seconds: float | None,
        group: ProcessGroup,
        queue: SaveQueue,
        steps: Steps,
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
        self._queue = queue
        self._steps = steps
        self._newest: int | None = None  # of the steps that existed
        self._looked = False
        self.listen()

    def listen(self) -> None:
        """Receive SIGTERM from this call on, if there is a `preemption_seconds`."""
        if self._preemption_seconds is not None:
            self.notice.listen()

    def invalidate(self) -> None:
        """Read the root again at the next call, because steps were deleted or may be damaged.

        With several processes all of them must call this, because they look together.
        """
        self._looked = False

    def _forget_failed_save(self) -> None:
        """Forget the step whose save failed: the last step is the one that was saved before it.

        With several processes no process reads the root again for that: some may not know of the
        failure yet, and would not take part.
        """
        self._queue.failure_reported = False
        if self._group.count == 1:
            self.invalidate()
        elif self._queue.last_good is not None:
            self._newest = self._queue.last_good

    def ask(self, number: int) -> tuple[bool, str | None]:
        """Return True if the job has been told to end, and the reason to save; None: do not save.

        Raises ProcessError.
        """
        if self._queue.failure_reported:
            self._forget_failed_save()
        if not self._looked:
            self._look_together()
        if self.policy.by_step and self._preemption_seconds is None:
            return False, self.policy.why(self._moment(number, preempted=False))

        def decide(preempted: bool) -> str | None:
            if preempted and self.preempted:
                return None
            why = self.policy.why(self._moment(number, preempted=preempted))
            if not preempted:
                return why
            if self._queue.saving and self.seconds_left() < 2 * self._queue.last_seconds:
                return None  # there is only time for the save that is running
            return why or "the job has been told to end"

        return self._group.decide(number, decide, preempted=self.notice.received_at is not None)

    def seconds_left(self) -> float:
        """Return the time until the job ends, by what this process knows."""
        assert self._preemption_seconds is not None
        received_at = self.notice.received_at
        elapsed = 0.0 if received_at is None else time.monotonic() - received_at
        return max(0.0, self._preemption_seconds - elapsed)

    def _look_together(self) -> None:
        try:
            latest = self._group.agree("look for the steps of", self._look)
        except BaseException:
            if self._group.count > 1:
                # Others may have succeeded, and would not take part again: this one looks alone.
                with suppress(OSError, CordwoodError):
                    if self._group.index > 0:
                        self._group.restart_decisions()
                    self._newest, self._looked = self._steps.latest(), True
            raise
        if self._group.index > 0:
            self._group.restart_decisions()
        self._newest, self._looked = latest, True

    def _look(self) -> int | None:
        self._group.restart_decisions()
        return self._steps.latest()

    def _moment(self, number: int, *, preempted: bool) -> Moment:
        return Moment(
            number,
            self._newest if self._queue.step is None else self._queue.step,
            time.monotonic() - self._queue.last_began,
            saving=self._queue.saving,
            preempted=preempted,
        )
