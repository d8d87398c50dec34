"""The choice of the steps that are copied to a mirror."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cordwood.policies.save_policies import Moment, SavePolicy
from cordwood.policies.saved_step import SavedStep


def step_to_mirror(
    steps: Sequence[int],
    policy: SavePolicy,
    *,
    last_step: int | None,
    seconds_since_last: float,
    preempted: bool,
) -> int | None:
    """Return the newest step that a policy asks for, and that is newer than the last copied one.

    Steps before it that were not copied in time are skipped. None if there is none.

    Args:
        steps: the steps that could be copied.
        policy: which of them to copy: it is asked as if each were to be saved now.
        last_step: the newest step of the mirror; None: it has none.
        seconds_since_last: the time since the last copy began.
        preempted: True once this job has received SIGTERM.
    """
    for step in sorted(steps, reverse=True):
        if last_step is not None and step <= last_step:
            return None
        moment = Moment(step, last_step, seconds_since_last, saving=False, preempted=preempted)
        if policy.why(moment) is not None:
            return step
    return None


def metrics_to_mirror(
    steps: Sequence[SavedStep], mirrored: Mapping[int, SavedStep]
) -> dict[int, dict[str, float]]:
    """Return the metrics that steps got, or that were replaced, after they were copied.

    A step of the mirror that another save has made does not count: their times differ.

    Args:
        steps: the steps of the root.
        mirrored: the steps of the mirror, by number.
    """
    result: dict[int, dict[str, float]] = {}
    for step in steps:
        copy = mirrored.get(step.step)
        if copy is None or copy.time != step.time:
            continue
        metrics = {
            name: value
            for name, value in step.metrics.items()
            if name not in copy.metrics or not _is_same(value, copy.metrics[name])
        }
        if metrics:
            result[step.step] = metrics
    return result


def _is_same(value: float, other: float) -> bool:
    return value == other or (math.isnan(value) and math.isnan(other))
