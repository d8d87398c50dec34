"""The step that all processes replicate next, and the one that stays until they have."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from cordwood.plan.recovery.complete_steps import CompleteStep, newest_with_copies


class ReplicaReport(NamedTuple):
    """The replicas of one process; between processes it is a list.

    Attributes:
        tried: the step that all were to replicate and that this process has ended with, whether or
            not it could; None: none yet.
        replicated: the steps of which it holds all that it is to hold.
    """

    tried: int | None
    replicated: Sequence[int]


class ReplicaProgress:
    """The progress of all processes with their replicas.

    Copies may be slower than saves. So all processes replicate the same step, until each has ended
    with it; otherwise each would hold replicas of other steps. That step, and the newest one that
    all have replicated, are not deleted: else the loss of one root could lose all steps.

    Args:
        complete: the steps that there were when the processes met.
        copies: how many copies of each file there are to be, that of its writer included.
    """

    def __init__(self, complete: Sequence[CompleteStep], copies: int) -> None:
        self._safe = newest_with_copies(complete, copies)
        self._target: int | None = None

    def advance(
        self, committed: int, reports: Sequence[Sequence[Any]], held: Collection[int]
    ) -> tuple[int, list[int]]:
        """Return the step that all are to replicate now, and the steps that stay for that.

        Args:
            committed: the step that has just been committed.
            reports: the `ReplicaReport` of each process.
            held: the complete steps.
        """
        every = [ReplicaReport(*report) for report in reports]
        safe = set(held).intersection(*[report.replicated for report in every])
        if self._safe is not None and self._safe in held:
            safe.add(self._safe)
        self._safe = max(safe, default=None)
        is_ended = all(report.tried == self._target for report in every)
        if self._target is None or is_ended or self._target not in held:
            self._target = committed
        stay = {self._target} if self._safe is None else {self._target, self._safe}
        return self._target, sorted(stay)
