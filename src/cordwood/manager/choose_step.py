"""The choice of the step to restore, by process 0 for all processes, as the newest whole one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from cordwood.formats.step_record import Record
from cordwood.manager.missing_steps import require_root, text_without_steps
from cordwood.manager.step import Step
from cordwood.manager.steps import Steps


class ChosenStep(NamedTuple):
    """A step that all processes load; between processes it is a list of JSON values."""

    step: int
    path: str
    format: str | None
    metrics: dict[str, float]
    record: Record | None

    @classmethod
    def of(cls, step: Step) -> ChosenStep:
        # The caller may change the extras and states that it gets; the step stays in `Steps`.
        return cls(step.step, step.path, step.format, step.metrics, deepcopy(step.record))

    @classmethod
    def received(cls, values: Sequence[Any]) -> ChosenStep:
        """Return the step of an answer of process 0."""
        step, path, format, metrics, record = values
        return cls(step, path, format, metrics, None if record is None else Record(*record))


class Choice(NamedTuple):
    """The choice of process 0 where no step was asked for; its parts are JSON values, or steps."""

    chosen: ChosenStep | None  # the newest whole step
    damaged: Sequence[tuple[int, str, str]]  # newer steps: number, path and problem
    unfinished: Sequence[tuple[int, str]]
    others: bool = False  # True if there is no step, and there are other checkpoints
    nothing: str = ""  # what there is instead of a step


def choose_newest(steps: Steps, damaged: Mapping[int, str]) -> Choice:
    """Return, on process 0, the newest whole step, and the newer steps that are passed over."""
    passed_over: list[tuple[int, str, str]] = []
    unfinished: list[tuple[int, str]] = []
    newest = steps.down_to(lambda step: step.whole)
    for each in newest:
        if each.whole:
            each.require_known()
            return Choice(ChosenStep.of(each), passed_over, unfinished)
        if each.damaged and each.step not in damaged:
            why = "; ".join(filter(None, (each.problem, each.in_the_way)))
            passed_over.append((each.step, each.path, why))
        if steps.died(each) or (each.tool and not each.finished):
            unfinished.append((each.step, each.path))
    if not newest:
        require_root(steps.location)
    others = steps.others()
    if steps.latest() is not None:  # its save has just been committed
        return choose_newest(steps, damaged)
    return Choice(None, passed_over, unfinished, bool(others), text_without_steps(steps, others))
