"""Policies that say which steps to keep: small values that are joined by `|` and `&`.

They are pure: the result depends on the given steps and the given time only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, SupportsFloat, TypeAlias

from cordwood.manager.step_names import policy_count, policy_steps
from cordwood.public_names import document_fields


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
        if not isinstance(other, KeepPolicy):
            return NotImplemented
        return _AnyOf((*_parts(self, _AnyOf), *_parts(other, _AnyOf)))

    def __and__(self, other: KeepPolicy) -> KeepPolicy:
        if not isinstance(other, KeepPolicy):
            return NotImplemented
        return _AllOf((*_parts(self, _AllOf), *_parts(other, _AllOf)))


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
        object.__setattr__(self, "count", policy_count("KeepLast", self.count))

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        return {step.step: f"of the last {self.count}" for step in steps[-self.count :]}


@dataclass(frozen=True, slots=True)
class KeepEvery(KeepPolicy):
    """Keep the multiples of `count`."""

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", policy_count("KeepEvery", self.count))

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        why = f"a multiple of {self.count}"
        return {step.step: why for step in steps if step.step % self.count == 0}


@dataclass(frozen=True, slots=True, init=False)
class KeepAt(KeepPolicy):
    """Keep these steps."""

    steps: frozenset[int]

    def __init__(self, steps: Collection[int]) -> None:
        object.__setattr__(self, "steps", policy_steps("KeepAt", steps))

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
        object.__setattr__(self, "count", policy_count("KeepBest", self.count))
        if self.mode not in ("min", "max"):
            raise ValueError(f"KeepBest: mode: expected 'min' or 'max', found {self.mode!r}")

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        best = sort_by_metric(steps, self.metric, self.mode)[: self.count]
        return {
            step.step: f"{self.metric} {step.metrics[self.metric]:.6g}, of the best {self.count}"
            for step in best
        }


def best_step(
    steps: Sequence[SavedStep],
    policy: KeepPolicy,
    metric: str | None,
    mode: Literal["min", "max"] | None,
) -> int | None:
    """Return the step where a metric is best, as `CheckpointManager.best` does.

    Args:
        steps: all steps that policies see.
        policy: names the metric and the mode if they are None.
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


def metric_problems(steps: Sequence[SavedStep], policy: KeepPolicy) -> dict[str, str]:
    """Return a line for each metric of a policy that no step has."""
    if isinstance(policy, _AnyOf | _AllOf):
        parts = [metric_problems(steps, part) for part in policy.parts]
        return {metric: line for part in parts for metric, line in part.items()}
    if not isinstance(policy, KeepBest):
        return {}
    problem = metric_problem(steps, policy.metric)
    if steps and not any(step.metrics for step in steps):
        problem = f"no step has the metric {policy.metric!r}: none was saved with metrics="
    return {policy.metric: problem} if problem else {}


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


@dataclass(frozen=True, slots=True)
class _AnyOf(KeepPolicy):
    parts: tuple[KeepPolicy, ...]

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:
        reasons: dict[int, str] = {}
        for part in self.parts:
            for step, why in part.kept(steps, now).items():
                reasons[step] = f"{reasons[step]}; {why}" if step in reasons else why
        return reasons

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))


@dataclass(frozen=True, slots=True)
class _AllOf(KeepPolicy):
    parts: tuple[KeepPolicy, ...]

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:
        reasons = [part.kept(steps, now) for part in self.parts]
        return {
            step: " and ".join([each[step] for each in reasons])
            for step in reasons[0]
            if all(step in each for each in reasons)
        }

    def __repr__(self) -> str:
        return " & ".join(
            f"({part!r})" if isinstance(part, _AnyOf) else repr(part) for part in self.parts
        )


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


def best_policy(policy: KeepPolicy, metric: str | None) -> KeepBest | None:
    """Return the first `KeepBest` of a metric, or of any metric, in a policy that may be joined."""
    if isinstance(policy, _AnyOf | _AllOf):
        matches = [best for part in policy.parts if (best := best_policy(part, metric)) is not None]
        return matches[0] if matches else None
    if isinstance(policy, KeepBest) and metric in (None, policy.metric):
        return policy
    return None


def _parts(policy: KeepPolicy, kind: type[_AnyOf] | type[_AllOf]) -> tuple[KeepPolicy, ...]:
    return policy.parts if isinstance(policy, kind) else (policy,)


def _require_positive(where: str, name: str, value: float) -> None:
    if not isinstance(value, SupportsFloat) or isinstance(value, bool):
        raise TypeError(f"{where}: {name}: expected a number, found {value!r:.80}")
    if not float(value) > 0:
        raise ValueError(f"{where}: {name}: expected more than 0, found {value!r}")
