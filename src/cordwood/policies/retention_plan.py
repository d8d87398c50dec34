"""The plan of the steps that a keep policy keeps and deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import (
    NamedTuple,
)

from cordwood.message_text import printable
from cordwood.policies.best_step import metric_problems
from cordwood.policies.keep_policies import KeepPolicy
from cordwood.policies.saved_step import SavedStep
from cordwood.public_names import document_fields

_MAX_SHOWN = 100  # steps in a notebook, the newest


@document_fields
class PlannedStep(NamedTuple):
    """One step of a RetentionPlan.

    Attributes:
        step: its number.
        keep: True if it is kept, False if it is to be deleted.
        why: the reason, in words.
    """

    step: int
    keep: bool
    why: str

    def __str__(self) -> str:
        return f"{self.step}  {'keep  ' if self.keep else 'delete'}  {printable(self.why)}"


@document_fields
class RetentionPlan(NamedTuple):
    """The steps to keep and the steps to delete. As a string, one line for each step.

    Attributes:
        steps: a PlannedStep for each step, by increasing number.
    """

    steps: tuple[PlannedStep, ...]

    @property
    def kept(self) -> list[int]:
        """The steps to keep."""
        return [row.step for row in self.steps if row.keep]

    @property
    def deleted(self) -> list[int]:
        """The steps to delete."""
        return [row.step for row in self.steps if not row.keep]

    def __str__(self) -> str:
        width = max((len(str(row.step)) for row in self.steps), default=0)
        lines = [" " * (width - len(str(row.step))) + str(row) for row in self.steps]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self) or "no steps"

    def _repr_html_(self) -> str:
        from cordwood.notebook.html_parts import fold_html, more_html, page_html, table_html

        newest = self.steps[: -_MAX_SHOWN - 1 : -1]
        rows = [(str(row.step), "keep" if row.keep else "delete", row.why) for row in newest]
        body = [table_html(["step", "", "because"], rows)] if rows else []
        note = f"{len(self.kept):,} to keep, {len(self.deleted):,} to delete"
        body.append(more_html(len(self.steps) - len(rows)))
        return page_html(fold_html("steps", note, body))


def plan_retention(
    steps: Sequence[SavedStep],
    policy: KeepPolicy,
    *,
    time_now: float,
    spared: Mapping[int, str],
) -> RetentionPlan:
    """Return a plan that says which steps to keep.

    The newest of `steps` is kept whatever the policy says.

    Args:
        steps: the steps that the policy decides about.
        policy: says which of them are kept.
        time_now: the time, in seconds since 1970.
        spared: steps that are kept for another reason, and that reason; they may be in `steps`.
    """
    ordered = sorted(steps)
    reasons_to_keep = policy.kept(ordered, time_now)
    newest = ordered[-1].step if ordered else None
    deleted_why = "; ".join(["no policy keeps it", *metric_problems(ordered, policy).values()])
    rows = []
    for step in sorted({*(each.step for each in ordered), *spared}):
        reasons = ["the newest"] if step == newest else []
        reasons += [reasons_to_keep[step]] if step in reasons_to_keep else []
        reasons += [spared[step]] if step in spared else []
        rows.append(PlannedStep(step, bool(reasons), "; ".join(reasons) or deleted_why))
    return RetentionPlan(tuple(rows))
