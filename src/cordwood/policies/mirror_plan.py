"""The choice of the steps that are copied to a mirror."""

from __future__ import annotations

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


def steps_with_new_metrics(
    steps: Sequence[SavedStep], mirrored: Mapping[int, SavedStep]
) -> list[int]:
    """Return the steps that got metrics after they were copied.

    A step of the mirror that another save has made does not count: their times differ.

    Args:
        steps: the steps of the root.
        mirrored: the steps of the mirror, by number.
    """
    return [
        each.step
        for each in steps
        if each.step in mirrored
        and mirrored[each.step].time == each.time
        and not each.metrics.keys() <= mirrored[each.step].metrics.keys()
    ]
