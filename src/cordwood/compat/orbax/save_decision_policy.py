"""Policies that decide whether a step is saved, with the names of Orbax."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from cordwood.policies.save_policies import Moment, SavePolicy


@dataclass
class PolicyCheckpointInfo:
    """A step, as policies see it."""

    step: int
    time: datetime
    metrics: Any = None


@dataclass(kw_only=True)
class DecisionContext:
    """The state of the job when a policy is asked."""

    is_saving_in_progress: bool
    reached_preemption: bool


class SaveDecisionPolicy(Protocol):
    """A policy that decides whether a step is saved."""

    def should_save(
        self,
        step: PolicyCheckpointInfo,
        previous_steps: Sequence[PolicyCheckpointInfo],
        *,
        context: DecisionContext,
    ) -> bool:
        """Return True to save the step; of the steps before it only the last is given."""
        ...


@dataclass
class FixedIntervalPolicy:
    """Save the multiples of `interval`."""

    interval: int

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
        del previous_steps, context
        return bool(step.step % self.interval == 0)


@dataclass
class SpecificStepsPolicy:
    """Save these steps."""

    steps: Container[int]

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
        del previous_steps, context
        return step.step in self.steps


@dataclass(kw_only=True)
class ContinuousCheckpointingPolicy:
    """Save whenever no save is running, and `minimum_interval_secs` after the last one."""

    minimum_interval_secs: int | None = None

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
        if context.is_saving_in_progress:
            return False
        if not previous_steps or self.minimum_interval_secs is None:
            return True
        elapsed = step.time - previous_steps[-1].time
        return bool(elapsed >= timedelta(seconds=self.minimum_interval_secs))


class PreemptionCheckpointingPolicy:
    """Save when the job is preempted."""

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
        del step, previous_steps
        return bool(context.reached_preemption)


class InitialSavePolicy:
    """Save if there is no step yet."""

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
        del step, context
        return not previous_steps


@dataclass
class AnySavePolicy:
    """Save if any of the policies does."""

    policies: Sequence[SaveDecisionPolicy]

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
        return any(
            policy.should_save(step, previous_steps, context=context) for policy in self.policies
        )


@dataclass
class ShouldSaveFunctionPolicy:
    """Save when a function of the step and the last step says so."""

    function: Any

    def should_save(self, step: Any, previous_steps: Any, *, context: Any) -> bool:
        del context
        last = previous_steps[-1].step if previous_steps else None
        return bool(self.function(step.step, last))


_BY_STEP = (FixedIntervalPolicy, SpecificStepsPolicy, InitialSavePolicy)


class OrbaxSavePolicy(SavePolicy):
    """A policy of the manager that asks one of Orbax: steps only go up."""

    __slots__ = ("policy",)

    def __init__(self, policy: SaveDecisionPolicy) -> None:
        self.policy = policy

    def why(self, moment: Moment) -> str | None:
        if moment.last_step is not None and moment.last_step >= moment.step:
            return None
        now = datetime.now(UTC)
        previous = []
        if moment.last_step is not None:
            last_time = now - timedelta(seconds=moment.seconds_since_last)
            previous = [PolicyCheckpointInfo(moment.last_step, last_time)]
        context = DecisionContext(
            is_saving_in_progress=moment.saving, reached_preemption=moment.preempted
        )
        step = PolicyCheckpointInfo(moment.step, now)
        saves = self.policy.should_save(step, previous, context=context)
        return f"{type(self.policy).__name__} asks for step {moment.step}" if saves else None

    @property
    def by_step(self) -> bool:
        policies = getattr(self.policy, "policies", [self.policy])
        return all(isinstance(policy, _BY_STEP) for policy in policies)

    def __repr__(self) -> str:
        return repr(self.policy)
