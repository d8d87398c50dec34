"""The best step by the metric of a keep policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import (
    Literal,
)

from cordwood.policies.joined_policies import parts_of
from cordwood.policies.keep_policies import KeepBest, KeepPolicy
from cordwood.policies.saved_step import SavedStep, metric_problem, sort_by_metric


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
    for part in parts_of(policy):
        if isinstance(part, KeepBest) and metric in (None, part.metric):
            return part
    return None


def metric_problems(steps: Sequence[SavedStep], policy: KeepPolicy) -> dict[str, str]:
    """Return a line for each metric of a policy that no step has."""
    problems = {}
    for part in parts_of(policy):
        if isinstance(part, KeepBest):
            problem = metric_problem(steps, part.metric)
            if steps and not any(step.metrics for step in steps):
                problem = f"no step has the metric {part.metric!r}: none was saved with metrics="
            if problem:
                problems[part.metric] = problem
    return problems
