"""Deletes what no policy keeps, and what dead saves and deletions have left."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Literal

from cordwood.errors import CordwoodError, StepError
from cordwood.formats.packs.locate import collect
from cordwood.formats.step_directories import listed
from cordwood.manager.keep_policies import (
    KeepPolicy,
    best_step,
    metric_problem,
    metric_problems,
)
from cordwood.manager.retention import RetentionPlan, plan_retention
from cordwood.manager.step_listing import Step, StepListing
from cordwood.message_text import printable
from cordwood.storage.step_storage import StepStorage
from cordwood.storage.urls import parse_url

_log = logging.getLogger("cordwood")


def plan_deletions(
    place: StepStorage, steps: Sequence[Step], policy: KeepPolicy, *, now: float
) -> RetentionPlan:
    """Return what becomes of the steps of a root that are finished."""
    finished = {each.step: each for each in steps if each.finished}
    counting = [each.saved for each in finished.values() if each.saved is not None]
    spared = {step: each.problem for step, each in finished.items() if not each.counts}
    plan = plan_retention(counting, policy, now=now, spared=spared)
    pinned = [step for step in plan.deleted if place.in_use(finished[step].entry)]
    spared.update(dict.fromkeys(pinned, "pinned"))
    return plan_retention(counting, policy, now=now, spared=spared)


def best_step_of(
    steps: Sequence[Step],
    policy: KeepPolicy,
    metric: str | None,
    mode: Literal["min", "max"] | None,
) -> int | None:
    """Return the step where a metric is best, and warn where steps have other metrics only."""
    saved = [step.saved for step in steps if step.saved is not None]
    best = best_step(saved, policy, metric, mode)
    if best is None and metric is not None:
        problem = metric_problem(saved, metric)
        if problem:
            _log.warning("best: %s", printable(problem))
    return best


def delete_steps(
    place: StepStorage, listing: StepListing, start: int, stop: int | None
) -> list[int]:
    """Delete all entries of some steps, the newest first, whatever policy keeps them.

    Args:
        place: the root.
        listing: of it.
        start: the first step that goes.
        stop: the first after it that stays; None: all from `start` on go.

    Returns the steps that are gone. Raises StepError where one is in use.
    """
    found = listing.entries(start=start, stop=stop)[::-1]
    gone = place.remove([each.entry for each in found])
    steps = {each.step for each in found}
    left = sorted({each.step for each in found if each.entry not in gone})
    _log_deleted(place.name, sorted(steps - {*left}), "delete was called")
    if left:
        one = len(left) == 1
        which = f"step {left[0]} is" if one else f"steps {', '.join(map(str, left))} are"
        was = "was" if one else "were"
        raise StepError(f"{place.name}: {which} in use, and {was} not deleted")
    return sorted(steps)


def _log_deleted(root: str, steps: Sequence[int], why: str) -> None:
    """Log a line that names the steps that were deleted; nothing where there are none."""
    if steps:
        noun = "step" if len(steps) == 1 else "steps"
        _log.info("%s: deleted %s %s: %s", root, noun, listed([*map(str, steps)]), why)


class StepCleaner:
    """Keeps a root clean for one manager."""

    def __init__(self, place: StepStorage, listing: StepListing, policy: KeepPolicy) -> None:
        self._place = place
        self._listing = listing
        self._policy = policy
        self._warned: set[str] = set()  # metrics that no step had
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
        plan = plan_deletions(self._place, steps, self._policy, now=now)
        saved = [each.saved for each in steps if each.saved is not None]
        for metric, problem in metric_problems(saved, self._policy).items():
            if metric not in self._warned:
                self._warned.add(metric)
                _log.warning("%s: keep: %s", self._place.name, printable(problem))
        entries = {each.step: each.entry for each in steps}
        gone = self._place.remove([entries[number] for number in plan.deleted])
        _log_deleted(
            self._place.name,
            [step for step in plan.deleted if entries[step] in gone],
            "no policy keeps it",
        )
        self._remove_unfinished()
        if parse_url(self._place.name) is None:
            self._tidy([each for each in steps if each.entry not in gone])

    def _remove_unfinished(self) -> None:
        self._place.remove_leftovers()
        for each in self._listing.unfinished():
            if not each.is_link:
                _collect(each)
                self._place.remove_empty(each.entry)

    def _tidy(self, steps: Sequence[Step]) -> None:
        """Remove what a process that died at the end of its commit left in a whole step."""
        seen = set()
        for each in steps:
            if each.finished and not each.tool and not each.is_link:
                seen.add((each.entry, each.stamp))
                if (each.entry, each.stamp) not in self._clean and self._has_remains(each):
                    _collect(each)
        self._clean = seen

    def _has_remains(self, step: Step) -> bool:
        """Return True if something of dead saves lies in a step.

        No lock is taken for that: it would be one more file that a kill can leave there.
        """
        if self._place.has_temporaries(step.entry):
            return True
        with suppress(OSError, CordwoodError):
            return bool(collect(step.path, dry_run=True))
        return False


def _collect(step: Step) -> None:
    with suppress(OSError, CordwoodError):  # gone meanwhile, or damaged, which a load tells
        collect(step.path, dry_run=False)
