"""Policies that decide which steps are kept, with the names of Orbax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from cordwood.compat.orbax.save_decision_policy import PolicyCheckpointInfo
from cordwood.policies.keep_policies import KeepPolicy
from cordwood.policies.saved_step import SavedStep


@dataclass(kw_only=True)
class PreservationContext:
    """The state of the job when a policy is asked."""


class PreservationPolicy(Protocol):
    """A policy that decides which steps are kept."""

    def should_preserve(
        self, checkpoints: Sequence[PolicyCheckpointInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return for each step, by increasing number, True to keep it."""
        ...


@dataclass
class PreserveAll:
    """Keep all steps."""

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        del context
        return [True] * len(checkpoints)


@dataclass
class LatestN:
    """Keep the newest `n` steps; None: all."""

    n: int | None = None

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        del context
        count = len(checkpoints)
        return [self.n is None or position >= count - self.n for position in range(count)]


@dataclass
class EveryNSeconds:
    """Keep steps that lie at least `interval_secs` apart, from the oldest on."""

    interval_secs: int

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        del context
        return _apart([info.time for info in checkpoints], timedelta(seconds=self.interval_secs))


@dataclass
class EveryNSteps:
    """Keep the multiples of `interval_steps`, or steps that lie that far apart."""

    interval_steps: int
    exact_interval: bool = True
    max_to_keep: int | None = None

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        del context
        if self.interval_steps == 0:
            raise ValueError("interval_steps must not be 0.")
        steps = [info.step for info in checkpoints]
        if self.exact_interval:
            kept_flags = [step % self.interval_steps == 0 for step in steps]
        else:
            kept_flags = _apart(steps, self.interval_steps)
        positions = [position for position, flag in enumerate(kept_flags) if flag]
        if self.max_to_keep is not None:
            for position in positions[: -self.max_to_keep or None]:
                kept_flags[position] = False
        return kept_flags


def _apart(values: Sequence[Any], interval: Any) -> list[bool]:
    """Return True for the first value, and for each that is `interval` after the last such one."""
    flags: list[bool] = []
    last = None
    for value in values:
        flags.append(last is None or value - last >= interval)
        last = value if flags[-1] else last
    return flags


@dataclass
class CustomSteps:
    """Keep these steps."""

    steps: Sequence[int]

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        del context
        return [info.step in self.steps for info in checkpoints]


@dataclass(kw_only=True)
class BestN:
    """Keep the `n` steps with the greatest `get_metric_fn(metrics)`, or with `reverse` the least.

    Steps without metrics are kept too, unless `keep_checkpoints_without_metrics` is False.
    """

    get_metric_fn: Callable[[Any], float]
    reverse: bool = False
    n: int | None = None
    keep_checkpoints_without_metrics: bool = True

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        del context
        if self.n is None or len(checkpoints) <= self.n:
            return [True] * len(checkpoints)
        if self.n == 0:
            return [False] * len(checkpoints)
        ranked = sorted(
            [info for info in checkpoints if info.metrics is not None],
            key=lambda info: self.get_metric_fn(info.metrics),
            reverse=self.reverse,
        )
        best = {info.step for info in ranked[-self.n :]}
        return [
            self.keep_checkpoints_without_metrics if info.metrics is None else info.step in best
            for info in checkpoints
        ]


@dataclass
class LatestDuration:
    """Keep the steps from the first on that is not older than `duration`."""

    duration: timedelta

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        del context
        now, flags, is_new = datetime.now(UTC), [], False
        for info in checkpoints:
            is_new = is_new or now - info.time <= self.duration
            flags.append(is_new)
        return flags


@dataclass
class AnyPreservationPolicy:
    """Keep the steps that any of the policies keeps."""

    policies: Sequence[PreservationPolicy]

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        flags = [policy.should_preserve(checkpoints, context=context) for policy in self.policies]
        return [any(each) for each in zip(*flags, strict=True)]


class OrbaxKeepPolicy(KeepPolicy):
    """A policy of the manager that asks one of Orbax, which counts the steps of all tools."""

    __slots__ = ("policy",)

    def __init__(self, policy: PreservationPolicy) -> None:
        self.policy = policy

    @property
    def counts_every_tool(self) -> bool:
        return True

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:
        del now
        infos = [
            PolicyCheckpointInfo(
                step.step, datetime.fromtimestamp(step.time, UTC), dict(step.metrics) or None
            )
            for step in steps
        ]
        flags = self.policy.should_preserve(infos, context=PreservationContext())
        why = f"{type(self.policy).__name__} keeps it"
        return {info.step: why for info, flag in zip(infos, flags, strict=True) if flag}

    def __repr__(self) -> str:
        return repr(self.policy)
