"""Deletes what no policy keeps, and what dead saves and deletions have left."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress

from cordwood.api.gc import gc
from cordwood.engine.step_places import StepPlace
from cordwood.engine.urls import parse_url
from cordwood.errors import CordwoodError
from cordwood.manager.keep_policies import KeepPolicy
from cordwood.manager.listing import Listing, Step
from cordwood.manager.retention import RetentionPlan, plan_retention

__all__ = ["Cleaner", "plan_for"]


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


class Cleaner:
    """Keeps a root clean for one manager."""

    def __init__(self, place: StepPlace, listing: Listing, policy: KeepPolicy) -> None:
        self._place = place
        self._listing = listing
        self._policy = policy
        self._clean: set[tuple[str, Hashable | None]] = set()  # entries, and their stamps

    def make_room(self) -> None:
        """Remove what is no step any more, or never became one.

        Before a save too: else a run that dies in every save would fill the disk with what they
        leave, and no save could ever end. What cannot be removed now is left to the next call.
        """
        if parse_url(self._place.name) is None:  # without locks nothing but old things can go
            self._remove_unfinished()

    def after_commit(self, *, now: float) -> None:
        """Carry out the plan, and remove all else. Raises OSError, CordwoodError."""
        steps = self._listing.steps()
        plan = plan_for(self._place, steps, self._policy, now=now)
        entries = {each.step: each.entry for each in steps}
        gone = self._place.remove([entries[number] for number in plan.deleted])
        self._remove_unfinished()
        if parse_url(self._place.name) is None:
            self._tidy([each for each in steps if each.entry not in gone])

    def _remove_unfinished(self) -> None:
        self._place.sweep()
        for each in self._listing.unfinished():
            if not each.is_link:
                _collect(each)
                self._place.remove_empty(each.entry)

    def _tidy(self, steps: Sequence[Step]) -> None:
        """Who dies at the end of a commit leaves small files in a step that is whole."""
        seen = set()
        for each in steps:
            if each.finished and not each.tool and not each.is_link:
                seen.add((each.entry, each.stamp))
                if (each.entry, each.stamp) not in self._clean and self._has_remains(each):
                    _collect(each)
        self._clean = seen

    def _has_remains(self, step: Step) -> bool:
        """Asked without a lock, which would be one more file that a kill can leave there."""
        if self._place.has_temporaries(step.entry):
            return True
        with suppress(OSError, CordwoodError):
            return bool(gc(step.path, dry_run=True))
        return False


def _collect(step: Step) -> None:
    with suppress(OSError, CordwoodError):  # gone meanwhile, or damaged, which a load tells
        gc(step.path)
