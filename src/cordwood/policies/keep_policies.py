"""Keep policies: which steps `CheckpointManager` keeps.

They are small values, and pure: the result depends on the arguments only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Literal,
    TypeAlias,
)

from cordwood.policies.joined_policies import Joined, join_policies
from cordwood.policies.policy_arguments import Count, Seconds, StepNumbers
from cordwood.policies.saved_step import SavedStep, sort_by_metric


class KeepPolicy:
    """A rule that says which steps to keep.

    `a | b` keeps the steps that either of the two keeps, `a & b` those that both keep.
    """

    __slots__ = ()

    @property
    def counts_every_tool(self) -> bool:
        """True if `kept` is given the steps of other tools too, which are never deleted."""
        return False

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:
        """Return the steps to keep, each with the reason.

        Args:
            steps: all saved steps, by increasing number.
            now: the time, in seconds since 1970.
        """
        raise NotImplementedError

    def __or__(self, other: KeepPolicy) -> KeepPolicy:
        is_kind = isinstance(other, KeepPolicy)
        return join_policies(_JoinedKeep, "|", self, other) if is_kind else NotImplemented

    def __and__(self, other: KeepPolicy) -> KeepPolicy:
        is_kind = isinstance(other, KeepPolicy)
        return join_policies(_JoinedKeep, "&", self, other) if is_kind else NotImplemented


@dataclass(frozen=True, slots=True)
class KeepAll(KeepPolicy):
    """Keep every step."""

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        return {step.step: "all are kept" for step in steps}


@dataclass(frozen=True, slots=True)
class KeepLast(Count, KeepPolicy):
    """Keep the newest `count` steps."""

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        return {step.step: f"of the last {self.count}" for step in steps[-self.count :]}


@dataclass(frozen=True, slots=True)
class KeepEvery(Count, KeepPolicy):
    """Keep the multiples of `count`."""

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        why = f"a multiple of {self.count}"
        return {step.step: why for step in steps if step.step % self.count == 0}


class KeepAt(StepNumbers, KeepPolicy):
    """Keep these steps."""

    __slots__ = ()

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        return {step.step: "asked for" for step in steps if step.step in self.steps}


@dataclass(frozen=True, slots=True)
class KeepWithin(Seconds, KeepPolicy):
    """Keep the steps of the last `seconds` seconds; a step with a later time is kept too."""

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:
        why = f"of the last {self.seconds:g} s"
        return {step.step: why for step in steps if now - step.time <= self.seconds}


@dataclass(frozen=True, slots=True)
class KeepBest(Count, KeepPolicy):
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
        Count.__post_init__(self)
        if self.mode not in ("min", "max"):
            raise ValueError(f"KeepBest: mode: expected 'min' or 'max', found {self.mode!r}")

    def kept(self, steps: Sequence[SavedStep], now: float) -> Mapping[int, str]:  # noqa: ARG002
        best = sort_by_metric(steps, self.metric, self.mode)[: self.count]
        return {
            step.step: f"{self.metric} {step.metrics[self.metric]:.6g}, of the best {self.count}"
            for step in best
        }


class _JoinedKeep(Joined, KeepPolicy):
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
