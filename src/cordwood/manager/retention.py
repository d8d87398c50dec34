"""Which steps stay and which go, and why: a plan, to be printed or carried out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood.manager.keep_policies import KeepPolicy, SavedStep

__all__ = ["PlannedStep", "RetentionPlan", "plan_retention"]


class PlannedStep(NamedTuple):
    """What becomes of a step."""

    step: int
    keep: bool
    why: str


class RetentionPlan(NamedTuple):
    """What becomes of every step, by increasing number. As a string, a line for each."""

    steps: tuple[PlannedStep, ...]

    @property
    def kept(self) -> list[int]:
        """The steps that stay."""
        return [row.step for row in self.steps if row.keep]

    @property
    def deleted(self) -> list[int]:
        """The steps that go."""
        return [row.step for row in self.steps if not row.keep]

    def __str__(self) -> str:
        width = max((len(str(row.step)) for row in self.steps), default=0)
        return "\n".join(
            [
                f"{row.step:>{width}}  {'keep  ' if row.keep else 'delete'}  {row.why}"
                for row in self.steps
            ]
        )


def plan_retention(
    steps: Sequence[SavedStep],
    policy: KeepPolicy,
    *,
    now: float,
    spared: Mapping[int, str],
) -> RetentionPlan:
    """Decide which steps stay.

    The newest of `steps` stays whatever the policy says.

    Args:
        steps: those that the policy is for.
        policy: says which are kept.
        now: the time, in seconds since 1970.
        spared: steps that stay for another reason, among `steps` or not, and that reason.
    """
    ordered = sorted(steps)
    kept = policy.kept(ordered, now)
    newest = ordered[-1].step if ordered else None
    rows = []
    for step in sorted({*(each.step for each in ordered), *spared}):
        reasons = ["the newest"] if step == newest else []
        reasons += [kept[step]] if step in kept else []
        reasons += [spared[step]] if step in spared else []
        rows.append(PlannedStep(step, bool(reasons), "; ".join(reasons) or "no policy keeps it"))
    return RetentionPlan(tuple(rows))
