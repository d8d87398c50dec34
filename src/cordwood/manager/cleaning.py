"""After a commit: deletes what no policy keeps, and what dead saves and deletions have left."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.api.gc import gc
from cordwood.engine.step_places import StepPlace
from cordwood.manager.keep_policies import KeepPolicy
from cordwood.manager.listing import Listing, Step
from cordwood.manager.retention import RetentionPlan, plan_retention
from cordwood.manager.step_names import step_name

__all__ = ["clean", "plan_for"]


def plan_for(
    place: StepPlace, steps: Sequence[Step], policy: KeepPolicy, *, now: float
) -> RetentionPlan:
    """What becomes of the steps of a root that are finished."""
    finished = {each.step: each for each in steps if each.finished}
    counting = [each.saved for each in finished.values() if each.counts]
    spared = {step: each.problem for step, each in finished.items() if not each.counts}
    plan = plan_retention(counting, policy, now=now, spared=spared)
    pinned = [step for step in plan.deleted if place.in_use(finished[step].entry)]
    spared.update(dict.fromkeys(pinned, "pinned"))
    return plan_retention(counting, policy, now=now, spared=spared)


def clean(place: StepPlace, listing: Listing, policy: KeepPolicy, *, now: float) -> None:
    """Carry out the plan, and remove what is no step any more, or never became one.

    Raises OSError, CordwoodError; whatever was left the next call removes.
    """
    place.sweep()
    steps = listing.steps()
    plan = plan_for(place, steps, policy, now=now)
    entries = {each.step: each.entry for each in steps}
    place.remove([entries[number] for number in plan.deleted])
    for each in steps:
        if not each.finished and each.entry == step_name(each.step):
            gc(each.path)
            place.remove_empty(each.entry)
