"""Policies of `CheckpointManager`: when to save, and which steps to keep.

Policies are small values that are joined by `|` and `&`. They are pure: the result depends on the
arguments only. One file, because both kinds are joined and checked in the same way, and a plan of
the steps to keep is the result of one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    Literal,
    NamedTuple,
    SupportsFloat,
    TypeAlias,
    TypeVar,
)

from cordwood.formats.stored_step import step_number
from cordwood.message_text import printable
from cordwood.public_names import document_fields

J = TypeVar("J", bound="_Joined")

_MAX_SHOWN = 100  # steps in a notebook, the newest

__all__ = [
    "AtSteps",
    "EverySeconds",
    "EveryStep",
    "EverySteps",
    "KeepAll",
    "KeepAt",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "KeepPolicy",
    "KeepWithin",
    "Moment",
    "OnPreemption",
    "SavePolicy",
    "SavedStep",
    "WhenIdle",
]


@dataclass(frozen=True, slots=True, repr=False)
class _Joined:
    """Policies of one kind that are joined by one operator."""

    operator: Literal["|", "&"]
    parts: tuple[Any, ...]

    def reason(self, reasons: Iterable[str | None]) -> str | None:
        """Return the reason of the whole from those of the parts; None if there is none."""
        given = []
        for reason in reasons:
            if reason is not None:
                given.append(reason)
            elif self.operator == "&":
                return None  # and the parts after this one are not asked
        return ("; " if self.operator == "|" else " and ").join(given) if given else None

    def __repr__(self) -> str:
        return f" {self.operator} ".join(map(self._part_text, self.parts))

    def _part_text(self, part: Any) -> str:
        is_weaker = isinstance(part, _Joined) and (part.operator, self.operator) == ("|", "&")
        return f"({part!r})" if is_weaker else repr(part)


def _join(kind: type[J], operator: Literal["|", "&"], *policies: Any) -> J:
    """Return policies joined; flatten operands joined by the same operator."""
    parts: list[Any] = []
    for policy in policies:
        is_same = isinstance(policy, kind) and policy.operator == operator
        parts += policy.parts if is_same else [policy]
    return kind(operator, tuple(parts))


def _parts_of(policy: Any) -> Iterator[Any]:
    """Yield the policies that were joined, or the one that is not joined."""
    if isinstance(policy, _Joined):
        for part in policy.parts:
            yield from _parts_of(part)
    else:
        yield policy


# Arguments of policies of both kinds


@dataclass(frozen=True, slots=True)
class _Count:
    count: int

    def __post_init__(self) -> None:
        where = f"{type(self).__name__}: count: expected"
        try:
            number = operator.index(self.count)
        except TypeError:
            raise TypeError(f"{where} an integer, found {self.count!r:.80}") from None
        if not number > 0:
            raise ValueError(f"{where} more than 0, found {self.count!r:.80}")
        object.__setattr__(self, "count", number)


@dataclass(frozen=True, slots=True)
class _Seconds:
    seconds: float

    def __post_init__(self) -> None:
        where = f"{type(self).__name__}: seconds: expected"
        if not isinstance(self.seconds, SupportsFloat) or isinstance(self.seconds, bool):
            raise TypeError(f"{where} a number, found {self.seconds!r:.80}")
        if not float(self.seconds) > 0:
            raise ValueError(f"{where} more than 0, found {self.seconds!r}")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class _Steps:
    steps: frozenset[int]

    def __init__(self, steps: Collection[int]) -> None:
        try:
            numbers = frozenset([step_number(step) for step in steps])
        except TypeError as e:
            raise TypeError(
                f"{type(self).__name__}: expected several steps, as [5, 7], found {steps!r:.80}"
            ) from e
        object.__setattr__(self, "steps", numbers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sorted(self.steps)})"


@document_fields
class Moment(NamedTuple):
    """The state of a run when a policy is asked whether to save.

    Attributes:
        step: the step that might be saved.
        last_step: the newest step that is saved, or being saved; None if there is none.
        seconds_since_last: the time since that save began, or since the start if there was none.
        saving: True while a save is running.
        preempted: True once this job has received SIGTERM.
    """

    step: int
    last_step: int | None
    seconds_since_last: float
    saving: bool
    preempted: bool


class SavePolicy:
    """A rule that says when to save.

    `a | b` saves when one of the two does, `a & b` when both do.
    """

    __slots__ = ()

    def why(self, moment: Moment) -> str | None:
        """Return the reason to save now; None to save nothing."""
        raise NotImplementedError

    @property
    def by_step(self) -> bool:
        """True if only step numbers decide, so that all processes decide alike by themselves."""
        return True

    def __or__(self, other: SavePolicy) -> SavePolicy:
        is_kind = isinstance(other, SavePolicy)
        return _join(_JoinedSave, "|", self, other) if is_kind else NotImplemented

    def __and__(self, other: SavePolicy) -> SavePolicy:
        is_kind = isinstance(other, SavePolicy)
        return _join(_JoinedSave, "&", self, other) if is_kind else NotImplemented


class _MomentPolicy(SavePolicy):
    """A rule whose answer depends on the moment, so that processes may not decide alike."""

    __slots__ = ()

    @property
    def by_step(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class EveryStep(SavePolicy):
    """Save whenever `save` is called."""

    def why(self, moment: Moment) -> str | None:
        return f"every step is saved, {moment.step} too"


@dataclass(frozen=True, slots=True)
class EverySteps(_Count, SavePolicy):
    """Save at the multiples of `count`, or at the next step if a multiple was not saved."""

    def why(self, moment: Moment) -> str | None:
        multiple = moment.step - moment.step % self.count
        if multiple == moment.step:
            return f"{moment.step} is a multiple of {self.count}"
        if multiple > (moment.last_step or 0):
            return f"{multiple}, a multiple of {self.count}, was not saved"
        return None


@dataclass(frozen=True, slots=True)
class EverySeconds(_Seconds, _MomentPolicy):
    """Save when the last save, or else the job, began at least `seconds` seconds ago."""

    def why(self, moment: Moment) -> str | None:
        if moment.seconds_since_last < self.seconds:
            return None
        return f"{moment.seconds_since_last:.0f} s have gone by (every {self.seconds:g} s)"


class AtSteps(_Steps, SavePolicy):
    """Save at these steps."""

    __slots__ = ()

    def why(self, moment: Moment) -> str | None:
        return f"{moment.step} was asked for" if moment.step in self.steps else None


@dataclass(frozen=True, slots=True)
class WhenIdle(_MomentPolicy):
    """Save when no save is running: `EverySteps(10) & WhenIdle()` never waits for a save."""

    def why(self, moment: Moment) -> str | None:
        return None if moment.saving else "no save goes on"


@dataclass(frozen=True, slots=True)
class OnPreemption(_MomentPolicy):
    """Save when the job has received SIGTERM."""

    def why(self, moment: Moment) -> str | None:
        return "the job has been told to end" if moment.preempted else None


class _JoinedSave(_Joined, SavePolicy):
    __slots__ = ()

    def why(self, moment: Moment) -> str | None:
        return self.reason(part.why(moment) for part in self.parts)

    @property
    def by_step(self) -> bool:
        return all(part.by_step for part in self.parts)


SaveWhen: TypeAlias = SavePolicy | int | None


def as_save_policy(save: SaveWhen) -> SavePolicy:
    """Return a policy for the argument `save`: a number is an interval, None is every step."""
    if save is None:
        return EveryStep()
    if isinstance(save, SavePolicy):
        return save
    if isinstance(save, int) and not isinstance(save, bool):
        return EverySteps(save)
    raise TypeError(
        f"save: expected a number of steps or a policy such as EverySteps(100), found {save!r}"
    )


def asks_for_notice(policy: SavePolicy) -> bool:
    """Return True if a policy contains an `OnPreemption`."""
    return any(isinstance(part, OnPreemption) for part in _parts_of(policy))


@document_fields
class SavedStep(NamedTuple):
    """A saved step, as a policy sees it.

    Attributes:
        step: its number.
        time: when its save began, in seconds since 1970.
        metrics: its metrics by name.
    """

    step: int
    time: float
    metrics: Mapping[str, float]


class KeepPolicy:
    """A rule that says which steps to keep.

    `a | b` keeps the steps that either of the two keeps, `a & b` those that both keep.
    """

    __slots__ = ()

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:
        """Return the steps to keep, each with the reason.

        Args:
            steps: all saved steps, by increasing number.
            now: the time, in seconds since 1970.
        """
        raise NotImplementedError

    def __or__(self, other: KeepPolicy) -> KeepPolicy:
        is_kind = isinstance(other, KeepPolicy)
        return _join(_JoinedKeep, "|", self, other) if is_kind else NotImplemented

    def __and__(self, other: KeepPolicy) -> KeepPolicy:
        is_kind = isinstance(other, KeepPolicy)
        return _join(_JoinedKeep, "&", self, other) if is_kind else NotImplemented


@dataclass(frozen=True, slots=True)
class KeepAll(KeepPolicy):
    """Keep every step."""

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        return {step.step: "all are kept" for step in steps}


@dataclass(frozen=True, slots=True)
class KeepLast(_Count, KeepPolicy):
    """Keep the newest `count` steps."""

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        return {step.step: f"of the last {self.count}" for step in steps[-self.count :]}


@dataclass(frozen=True, slots=True)
class KeepEvery(_Count, KeepPolicy):
    """Keep the multiples of `count`."""

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        why = f"a multiple of {self.count}"
        return {step.step: why for step in steps if step.step % self.count == 0}


class KeepAt(_Steps, KeepPolicy):
    """Keep these steps."""

    __slots__ = ()

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        return {step.step: "asked for" for step in steps if step.step in self.steps}


@dataclass(frozen=True, slots=True)
class KeepWithin(_Seconds, KeepPolicy):
    """Keep the steps of the last `seconds` seconds; a step with a later time is kept too."""

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:
        why = f"of the last {self.seconds:g} s"
        return {step.step: why for step in steps if now - step.time <= self.seconds}


@dataclass(frozen=True, slots=True)
class KeepBest(_Count, KeepPolicy):
    """Keep the `count` steps where `metric` is least (or, with mode="max", greatest).

    Of two steps with equal values the newer one is better. A step without that metric, or with NaN,
    is never among the best.
    """

    metric: str
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if isinstance(self.count, str):
            raise TypeError(
                "KeepBest: count: expected an integer, found "
                f"{self.count!r:.80}: the metric comes second, as KeepBest(1, {self.count!r:.80})"
            )
        _Count.__post_init__(self)
        if self.mode not in ("min", "max"):
            raise ValueError(f"KeepBest: mode: expected 'min' or 'max', found {self.mode!r}")

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        best = sort_by_metric(steps, self.metric, self.mode)[: self.count]
        return {
            step.step: f"{self.metric} {step.metrics[self.metric]:.6g}, of the best {self.count}"
            for step in best
        }


class _JoinedKeep(_Joined, KeepPolicy):
    __slots__ = ()

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:
        parts = [part.kept(steps, now) for part in self.parts]
        numbers = dict.fromkeys(step for part in parts for step in part)
        reasons = {step: self.reason(part.get(step) for part in parts) for step in numbers}
        return {step: why for step, why in reasons.items() if why is not None}


KeepWhat: TypeAlias = KeepPolicy | int | None


def as_keep_policy(keep: KeepWhat) -> KeepPolicy:
    """Return a policy for the argument `keep`: a number keeps the newest steps, None keeps all."""
    if keep is None:
        return KeepAll()
    if isinstance(keep, KeepPolicy):
        return keep
    if isinstance(keep, int) and not isinstance(keep, bool):
        return KeepLast(keep)
    raise TypeError(
        f"keep: expected a number of steps or a policy such as KeepLast(3), found {keep!r}"
    )


def best_step(
    steps: Sequence[SavedStep],
    policy: KeepPolicy | None,
    metric: str | None,
    mode: Literal["min", "max"] | None,
) -> int | None:
    """Return the step where a metric is best, as `CheckpointManager.best` does.

    Args:
        steps: all steps that policies see.
        policy: names the metric and the mode if they are None; None: no policy does.
        metric: its name.
        mode: "min" or "max": which value is best.
    """
    best = best_policy(policy, metric)
    if metric is None and best is None:
        raise ValueError("best: name a metric, or keep steps by one: keep=KeepBest(...)")
    if mode not in ("min", "max", None):
        raise ValueError(f"best: mode: expected 'min' or 'max', found {mode!r}")
    if best is not None:
        metric, mode = best.metric, mode or best.mode
    assert metric is not None
    ranked = sort_by_metric(steps, metric, mode or "min")
    return ranked[0].step if ranked else None


def best_policy(policy: KeepPolicy | None, metric: str | None) -> KeepBest | None:
    """Return the first `KeepBest` of a metric, or of any metric, in a policy that may be joined."""
    for part in _parts_of(policy):
        if isinstance(part, KeepBest) and metric in (None, part.metric):
            return part
    return None


def metric_problems(steps: Sequence[SavedStep], policy: KeepPolicy) -> dict[str, str]:
    """Return a line for each metric of a policy that no step has."""
    problems = {}
    for part in _parts_of(policy):
        if isinstance(part, KeepBest):
            problem = metric_problem(steps, part.metric)
            if steps and not any(step.metrics for step in steps):
                problem = f"no step has the metric {part.metric!r}: none was saved with metrics="
            if problem:
                problems[part.metric] = problem
    return problems


def metric_problem(steps: Sequence[SavedStep], metric: str) -> str:
    """Return a line where steps have metrics and none has this one; "" otherwise."""
    names = sorted({name for step in steps for name in step.metrics})
    if not names or metric in names:
        return ""
    return f"no step has the metric {metric!r}; the metrics that steps have: {', '.join(names)}"


def sort_by_metric(
    steps: Sequence[SavedStep], metric: str, mode: Literal["min", "max"]
) -> list[SavedStep]:
    """Return the steps that have a value of a metric, the best first; of equal ones the newer."""
    sign = 1.0 if mode == "min" else -1.0
    measured = [step for step in steps if not math.isnan(step.metrics.get(metric, math.nan))]
    return sorted(measured, key=lambda step: (sign * step.metrics[metric], -step.step))


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
    kept = policy.kept(ordered, time_now)
    newest = ordered[-1].step if ordered else None
    deleted_why = "; ".join(["no policy keeps it", *metric_problems(ordered, policy).values()])
    rows = []
    for step in sorted({*(each.step for each in ordered), *spared}):
        reasons = ["the newest"] if step == newest else []
        reasons += [kept[step]] if step in kept else []
        reasons += [spared[step]] if step in spared else []
        rows.append(PlannedStep(step, bool(reasons), "; ".join(reasons) or deleted_why))
    return RetentionPlan(tuple(rows))
