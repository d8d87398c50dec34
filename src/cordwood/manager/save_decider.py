"""The decision whether a step is saved, which is the same on all processes."""

from __future__ import annotations

import time
from contextlib import suppress

from cordwood.errors import CordwoodError
from cordwood.formats.step_names import sorted_steps
from cordwood.manager.save_queue import SaveQueue
from cordwood.manager.steps import Steps
from cordwood.message_text import listed, printable
from cordwood.policies.save_policies import Moment, SavePolicy, asks_for_notice
from cordwood.processes.preemption import PreemptionNotice
from cordwood.processes.process_group import ProcessGroup
from cordwood.threads.log import log


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
        seen: True once the caller has read `preempted` as True.

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
        if isinstance(preemption_seconds, bool) or not isinstance(
            preemption_seconds, int | float | None
        ):
            raise TypeError(
                f"preemption_seconds={preemption_seconds!r:.80}: expected a number of seconds"
            )
        if preemption_seconds is not None and not preemption_seconds > 0:
            raise ValueError(
                f"preemption_seconds: expected more than 0, found {preemption_seconds!r}"
            )
        self.policy = policy
        self.notice = PreemptionNotice()
        self.preempted = False
        self.seen = False
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
        """Return True if the job has received SIGTERM, and the reason to save; None: do not save.

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

    def skips(self, number: int) -> bool:
        """Return True if it is known at once that a step is not to be saved.

        Most calls of `save` in a training loop end here. It takes no lock and reads no files, so
        that it can run in the main thread.
        """
        if self._group.count > 1 or not self._looked or self.notice.received_at is not None:
            return False
        if self._queue.failed or self._queue.failure_reported:
            return False
        preempted, why = self.ask(number)
        return not preempted and why is None

    def hears_of_preemption(self, number: int) -> bool:
        """Return True if any process has received SIGTERM, as all processes find out together.

        Raises ValueError without `preemption_seconds`.
        """
        if self._preemption_seconds is None:
            raise ValueError(
                "save_if_preempted: expected a manager that handles SIGTERM, found one without: "
                "pass preemption_seconds= to CheckpointManager, how long the job has from SIGTERM"
            )
        received = self.notice.received_at is not None
        if self._group.count == 1:
            return received
        if not self._looked:
            self._look_together()
        return self._group.decide(number, lambda _: None, preempted=received)[0]

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
        latest = self._steps.latest()
        if latest is None and self._steps.unread:
            names = printable(listed(sorted_steps(self._steps.unread)))
            text = (
                "%s: the run begins anew beside %s: steps are named 100, checkpoint_100 or run-100"
            )
            log.warning(text, self._steps.root, names)
        return latest

    def _moment(self, number: int, *, preempted: bool) -> Moment:
        return Moment(
            number,
            self._newest if self._queue.step is None else self._queue.step,
            time.monotonic() - self._queue.last_began,
            saving=self._queue.saving,
            preempted=preempted,
        )
