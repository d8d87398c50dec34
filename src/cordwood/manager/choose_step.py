"""The choice of the step to restore, by process 0 for all processes, and of the place it is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from cordwood.errors import CordwoodError, IncompleteCheckpointError, StepError
from cordwood.formats.step_record import Record
from cordwood.manager.missing_steps import finished_step, require_root, text_without_steps
from cordwood.manager.step import Step
from cordwood.manager.step_holder import StepHolder
from cordwood.manager.steps import Steps


class ChosenStep(NamedTuple):
    """A step that all processes load; between processes it is a list of JSON values."""

    step: int
    path: str
    entry: str  # its name in its place
    format: str | None
    metrics: dict[str, float]
    record: Record | None
    holder: str | None = None  # the name of the StepHolder that it lies at; None: the root
    why: str = ""  # the reason why it is not loaded from the root; "" if it is
    has_copy: bool = False  # True if a holder has the same step, and this one lies in the root

    @classmethod
    def of(
        cls, step: Step, *, holder: str | None = None, why: str = "", has_copy: bool = False
    ) -> ChosenStep:
        # The caller may change the extras and states that it gets; the step stays in `Steps`.
        record = deepcopy(step.record)
        return cls(
            step.step,
            step.path,
            step.entry,
            step.format,
            step.metrics,
            record,
            holder,
            why,
            has_copy,
        )

    @classmethod
    def received(cls, values: Sequence[Any]) -> ChosenStep:
        """Return the step of an answer of process 0."""
        chosen = cls(*values)
        record = chosen.record
        return chosen._replace(record=None if record is None else Record(*record))


class Choice(NamedTuple):
    """The choice of process 0 where no step was asked for; its parts are JSON values, or steps."""

    chosen: ChosenStep | None  # the newest whole step
    damaged: Sequence[tuple[int, str, str]]  # newer steps: number, path and problem
    unfinished: Sequence[tuple[int, str]]
    others: bool = False  # True if there is no step, and there are other checkpoints
    nothing: str = ""  # what there is instead of a step


def choose_newest(
    steps: Steps, holders: Sequence[StepHolder], damaged: Mapping[str, tuple[int, str]]
) -> Choice:
    """Return, on process 0, the newest whole step, and the newer steps that are passed over.

    Args:
        steps: the steps of the root.
        holders: other places that hold copies of them, the nearest first.
        damaged: the steps that are known to be damaged: number and problem, by path.

    Raises StepError if the root has no step, and a holder cannot be read.
    """
    unfinished: list[tuple[int, str]] = []
    entries = steps.down_to(lambda step: step.whole)
    newest = _whole_one(entries)
    for each in entries:
        if not each.whole and (steps.died(each) or (each.tool and not each.finished)):
            unfinished.append((each.step, each.path))
    copies = _newest_copies(steps, holders, newest)
    best, holder_name, has_copy = newest, None, False
    for holder, stored in copies:
        copy = _whole_one(stored)
        if copy is None:
            continue
        if best is None or copy.step > best.step or _is_unread(newest, copy):
            best, holder_name, has_copy = copy, holder.name, False
        elif copy.step == best.step and best is newest:
            has_copy = True
    passed_over = [
        (each.step, each.path, "; ".join(filter(None, (each.problem, each.in_the_way))))
        for each in (*entries, *(step for _, stored in copies for step in stored))
        if each.damaged and each.path not in damaged and (best is None or each.step >= best.step)
    ]
    if best is not None:
        best.require_known()
        why = "" if holder_name is None else _why_not_from_root(entries, newest, best.step)
        chosen = ChosenStep.of(best, holder=holder_name, why=why, has_copy=has_copy)
        return Choice(chosen, passed_over, unfinished)
    if not entries:
        require_root(steps.location)
    others = steps.others()
    if steps.latest() is not None:  # its save has just been committed
        return choose_newest(steps, holders, damaged)
    return Choice(None, passed_over, unfinished, bool(others), text_without_steps(steps, others))


def _whole_one(steps: Sequence[Step]) -> Step | None:
    """Return the whole one of steps from the newest down to the first whole one."""
    return steps[-1] if steps and steps[-1].whole else None


def _is_unread(step: Step | None, copy: Step) -> bool:
    """Return True if a step cannot be read, perhaps for a while only, and a copy of it can."""
    return step is not None and not step.is_read and copy.step == step.step


def _newest_copies(
    steps: Steps, holders: Sequence[StepHolder], newest: Step | None
) -> list[tuple[StepHolder, list[Step]]]:
    """Return the steps of each holder that can be read, down to its newest whole one."""
    copies: list[tuple[StepHolder, list[Step]]] = []
    for holder in holders:
        try:
            copies.append((holder, holder.newest()))
        except (OSError, CordwoodError) as e:
            if newest is None:
                raise StepError(
                    f"{steps.root} holds no step to restore, and {holder.name} "
                    f"{holder.steps.root} cannot be read ({type(e).__name__}: {e}): nothing is "
                    "restored, as the run must not begin anew by mistake; try again, or leave "
                    f"out {holder.name} to begin anew"
                ) from e
            holder.on_unreadable(e)
    return copies


def _why_not_from_root(entries: Sequence[Step], newest: Step | None, number: int) -> str:
    """Return the reason why a step is not loaded from the root, for the log."""
    for each in entries:
        if each.step == number and each.problem:
            return f"that of the root is not used: {each.problem}"
    if newest is None:
        return "the root holds no whole step"
    return f"the newest whole step of the root is {newest.step}"


def choose_numbered(steps: Steps, holders: Sequence[StepHolder], number: int) -> ChosenStep:
    """Return, on process 0, the step of a number, from the root if it is whole there.

    Raises the error of a missing or unfinished step.
    """
    copies = [(holder, copy) for holder in holders if (copy := holder.find(number)) is not None]
    why = ""
    try:
        step = finished_step(steps, number)
        if not copies or not (step.damaged or not step.is_read):
            step.require_known()
            return ChosenStep.of(step, has_copy=bool(copies))
        why = f"that of the root is not used: {step.problem}"
    except (FileNotFoundError, IncompleteCheckpointError) as e:
        if not copies:
            raise
        why = str(e)
    holder, copy = copies[0]
    copy.require_known()
    return ChosenStep.of(copy, holder=holder.name, why=why)
