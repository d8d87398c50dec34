"""Policies of `CheckpointManager`: when to save, and which steps to keep.

Policies are small values that are joined by `|` and `&`. They are pure: the result depends on the
arguments only. One file, because both kinds are joined and checked in the same way, and a plan of
the steps to keep is the result of one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    SupportsFloat,
    SupportsIndex,
    TypeAlias,
    TypeVar,
)

from cordwood.formats.step_names import step_number
from cordwood.message_text import printable
from cordwood.public_names import document_fields

P = TypeVar("P")

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


class _Joined:
    """Policies of one kind that are joined by one operator."""

    __slots__ = ()

    operator: ClassVar[str]
    parts: tuple[Any, ...]

    def __repr__(self) -> str:
        return f" {self.operator} ".join(map(self._part_text, self.parts))

    def _part_text(self, part: Any) -> str:
        is_weaker = isinstance(part, _Joined) and (part.operator, self.operator) == ("|", "&")
        return f"({part!r})" if is_weaker else repr(part)


def _join(kind: Any, left: P, right: P) -> P:
    """Return two policies joined by the operator of `kind`; those of `kind` give their parts."""
    parts = [each.parts if isinstance(each, kind) else (each,) for each in (left, right)]
    joined: P = kind((*parts[0], *parts[1]))
    return joined


def _parts_of(policy: Any) -> Iterator[Any]:
    """Yield the policies that were joined, or the one that is not joined."""
    if isinstance(policy, _Joined):
        for part in policy.parts:
            yield from _parts_of(part)
    else:
        yield policy


@document_fields
class Moment(NamedTuple):
    """The state of a run when a policy is asked whether to save.

    Attributes:
        step: the step that might be saved.
        last_step: the newest step that is saved, or being saved; None if there is none.
        seconds_since_last: the time since that save began, or since the start if there was none.
        saving: True while a save is running.
        preempted: True once this job has been told to end.
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
        return _join(_SaveIfAny, self, other) if isinstance(other, SavePolicy) else NotImplemented

    def __and__(self, other: SavePolicy) -> SavePolicy:
        return _join(_SaveIfAll, self, other) if isinstance(other, SavePolicy) else NotImplemented


@dataclass(frozen=True, slots=True)
class EveryStep(SavePolicy):
    """Save whenever `save` is called."""

    def why(self, moment: Moment) -> str | None:
        return f"every step is saved, {moment.step} too"


@dataclass(frozen=True, slots=True)
class EverySteps(SavePolicy):
    """Save at the multiples of `count`, or at the next step if a multiple was not saved."""

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _policy_count("EverySteps", self.count))

    def why(self, moment: Moment) -> str | None:
        multiple = moment.step - moment.step % self.count
        if multiple == moment.step:
            return f"{moment.step} is a multiple of {self.count}"
        if multiple > (moment.last_step or 0):
            return f"{multiple}, a multiple of {self.count}, was not saved"
        return None


@dataclass(frozen=True, slots=True)
class EverySeconds(SavePolicy):
    """Save when the last save, or else the job, began at least `seconds` seconds ago."""

    seconds: float

    def __post_init__(self) -> None:
        _require_positive("EverySeconds", "seconds", self.seconds)

    def why(self, moment: Moment) -> str | None:
        if moment.seconds_since_last < self.seconds:
            return None
        return f"{moment.seconds_since_last:.0f} s have gone by (every {self.seconds:g} s)"

    @property
    def by_step(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, init=False)
class AtSteps(SavePolicy):
    """Save at these steps."""

    steps: frozenset[int]

    def __init__(self, steps: Collection[int]) -> None:
        object.__setattr__(self, "steps", _policy_steps("AtSteps", steps))

    def why(self, moment: Moment) -> str | None:
        return f"{moment.step} was asked for" if moment.step in self.steps else None

    def __repr__(self) -> str:
        return f"AtSteps({sorted(self.steps)})"


@dataclass(frozen=True, slots=True)
class WhenIdle(SavePolicy):
    """Save when no save is running: `EverySteps(10) & WhenIdle()` never waits for a save."""

    def why(self, moment: Moment) -> str | None:
        return None if moment.saving else "no save goes on"

    @property
    def by_step(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class OnPreemption(SavePolicy):
    """Save when the job has been told to end."""

    def why(self, moment: Moment) -> str | None:
        return "the job has been told to end" if moment.preempted else None

    @property
    def by_step(self) -> bool:
        return False


class _JoinedSave(_Joined, SavePolicy):
    __slots__ = ()

    parts: tuple[SavePolicy, ...]

    @property
    def by_step(self) -> bool:
        return all(part.by_step for part in self.parts)


@dataclass(frozen=True, slots=True, repr=False)
class _SaveIfAny(_JoinedSave):
    parts: tuple[SavePolicy, ...]
    operator: ClassVar[str] = "|"

    def why(self, moment: Moment) -> str | None:
        reasons = [reason for part in self.parts if (reason := part.why(moment)) is not None]
        return "; ".join(reasons) if reasons else None


@dataclass(frozen=True, slots=True, repr=False)
class _SaveIfAll(_JoinedSave):
    parts: tuple[SavePolicy, ...]
    operator: ClassVar[str] = "&"

    def why(self, moment: Moment) -> str | None:
        reasons = []
        for part in self.parts:
            reason = part.why(moment)
            if reason is None:
                return None
            reasons.append(reason)
        return " and ".join(reasons)


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
        return _join(_KeepIfAny, self, other) if isinstance(other, KeepPolicy) else NotImplemented

    def __and__(self, other: KeepPolicy) -> KeepPolicy:
        return _join(_KeepIfAll, self, other) if isinstance(other, KeepPolicy) else NotImplemented


@dataclass(frozen=True, slots=True)
class KeepAll(KeepPolicy):
    """Keep every step."""

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        return {step.step: "all are kept" for step in steps}


@dataclass(frozen=True, slots=True)
class KeepLast(KeepPolicy):
    """Keep the newest `count` steps."""

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _policy_count("KeepLast", self.count))

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        return {step.step: f"of the last {self.count}" for step in steps[-self.count :]}


@dataclass(frozen=True, slots=True)
class KeepEvery(KeepPolicy):
    """Keep the multiples of `count`."""

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _policy_count("KeepEvery", self.count))

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        why = f"a multiple of {self.count}"
        return {step.step: why for step in steps if step.step % self.count == 0}


@dataclass(frozen=True, slots=True, init=False)
class KeepAt(KeepPolicy):
    """Keep these steps."""

    steps: frozenset[int]

    def __init__(self, steps: Collection[int]) -> None:
        object.__setattr__(self, "steps", _policy_steps("KeepAt", steps))

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        return {step.step: "asked for" for step in steps if step.step in self.steps}

    def __repr__(self) -> str:
        return f"KeepAt({sorted(self.steps)})"


@dataclass(frozen=True, slots=True)
class KeepWithin(KeepPolicy):
    """Keep the steps of the last `seconds` seconds; a step with a later time is kept too."""

    seconds: float

    def __post_init__(self) -> None:
        _require_positive("KeepWithin", "seconds", self.seconds)

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:
        why = f"of the last {self.seconds:g} s"
        return {step.step: why for step in steps if now - step.time <= self.seconds}


@dataclass(frozen=True, slots=True)
class KeepBest(KeepPolicy):
    """Keep the `count` steps where `metric` is least (or, with mode="max", greatest).

    Of two steps with equal values the newer one is better. A step without that metric, or with NaN,
    is never among the best.
    """

    count: int
    metric: str
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if isinstance(self.count, str):
            raise TypeError(
                "KeepBest: count: expected an integer, found "
                f"{self.count!r:.80}: the metric comes second, as KeepBest(1, {self.count!r:.80})"
            )
        object.__setattr__(self, "count", _policy_count("KeepBest", self.count))
        if self.mode not in ("min", "max"):
            raise ValueError(f"KeepBest: mode: expected 'min' or 'max', found {self.mode!r}")

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        best = sort_by_metric(steps, self.metric, self.mode)[: self.count]
        return {
            step.step: f"{self.metric} {step.metrics[self.metric]:.6g}, of the best {self.count}"
            for step in best
        }


@dataclass(frozen=True, slots=True, repr=False)
class _KeepIfAny(_Joined, KeepPolicy):
    parts: tuple[KeepPolicy, ...]
    operator: ClassVar[str] = "|"

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:
        reasons: dict[int, str] = {}
        for part in self.parts:
            for step, why in part.kept(steps, now).items():
                reasons[step] = f"{reasons[step]}; {why}" if step in reasons else why
        return reasons


@dataclass(frozen=True, slots=True, repr=False)
class _KeepIfAll(_Joined, KeepPolicy):
    parts: tuple[KeepPolicy, ...]
    operator: ClassVar[str] = "&"

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:
        reasons = [part.kept(steps, now) for part in self.parts]
        return {
            step: " and ".join([each[step] for each in reasons])
            for step in reasons[0]
            if all(step in each for each in reasons)
        }


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


def _policy_steps(policy: str, steps: Collection[SupportsIndex]) -> frozenset[int]:
    try:
        return frozenset([step_number(step) for step in steps])
    except TypeError as e:
        raise TypeError(f"{policy}: expected several steps, as [5, 7], found {steps!r:.80}") from e


def _policy_count(policy: str, count: Any) -> int:
    try:
        number = operator.index(count)
    except TypeError:
        raise TypeError(f"{policy}: count: expected an integer, found {count!r:.80}") from None
    if not number > 0:
        raise ValueError(f"{policy}: count: expected more than 0, found {count!r:.80}")
    return number


def _require_positive(where: str, name: str, value: float) -> None:
    if not isinstance(value, SupportsFloat) or isinstance(value, bool):
        raise TypeError(f"{where}: {name}: expected a number, found {value!r:.80}")
    if not float(value) > 0:
        raise ValueError(f"{where}: {name}: expected more than 0, found {value!r}")
