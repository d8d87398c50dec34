"""Deletion of steps that no policy keeps, and of leftovers of killed saves and deletions."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import NamedTuple

from cordwood.errors import CordwoodError, StepError
from cordwood.formats.load_format import collector_of, storage_of
from cordwood.formats.step_names import step_name
from cordwood.formats.table import DEFAULT
from cordwood.manager.step import Step, best_of_each
from cordwood.manager.steps import Steps
from cordwood.message_text import listed, printable
from cordwood.policies.best_step import metric_problems
from cordwood.policies.joined_policies import parts_of
from cordwood.policies.keep_policies import KeepAt, KeepPolicy
from cordwood.policies.retention_plan import RetentionPlan, plan_retention
from cordwood.policies.saved_step import SavedStep
from cordwood.processes.rendezvous import TIMEOUT_SECONDS
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.open_step_storage import open_step_storage
from cordwood.storage.removal.freed_bytes import freed_bytes
from cordwood.storage.step_storage import Removal, StepStorage
from cordwood.threads.log import log


def plan_deletions(
    storage: StepStorage, steps: Sequence[Step], policy: KeepPolicy, *, time_now: float
) -> RetentionPlan:
    """Return a plan for the finished steps of a root: which are kept, and which are deleted."""
    finished = {each.step: each for each in steps if each.finished}
    counting = [each.saved for each in finished.values() if each.saved is not None]
    if policy.counts_every_tool:
        others = [each for each in finished.values() if each.is_of_another_tool and each.whole]
        counting += [SavedStep(each.step, 0.0, {}) for each in others if each.saved is None]
    spared = {step: each.problem for step, each in finished.items() if not each.counts}
    plan = plan_retention(counting, policy, time_now=time_now, spared=spared)
    pinned = [step for step in plan.deleted if storage.in_use(finished[step].entry)]
    spared.update(dict.fromkeys(pinned, "pinned"))
    return plan_retention(counting, policy, time_now=time_now, spared=spared)


def delete_steps(steps: Steps, start: int, stop: int | None) -> list[int]:
    """Delete the entries of some steps, the newest first, whatever policy keeps them.

    Only what cordwood wrote is deleted. An entry that cannot be deleted does not keep the others
    from it.

    Args:
        steps: the steps of the root.
        start: the first step to delete.
        stop: the first later step that is not deleted; None: all steps from `start` on are.

    Returns the numbers of the deleted steps. Raises StepError that names the entries that stay: one
    in use, one of another tool, or one with files that cordwood did not write.
    """
    entries = steps.entries(start=start, stop=stop)[::-1]
    reasons = {each.entry: _of_another_tool(each) for each in entries if each.is_of_another_tool}
    result = steps.storage.remove([each.entry for each in entries if each.entry not in reasons])
    steps.storage.remove_leftovers()  # of a call that was killed
    numbers = {each.entry: each.step for each in entries}
    removed = list(result.removed)
    if stop == start + 1:  # an empty directory may be anybody's, but this number was named
        removed += [each.entry for each in entries if steps.storage.remove_empty(each.entry)]
    deleted = sorted({numbers[entry] for entry in removed})
    _log_deleted(steps.root, deleted, "delete was called")
    reasons.update({entry: f"{text}; {_MOVE_AWAY}" for entry, text in result.refused.items()})
    reasons.update({entry: str(error) for entry, error in result.failed.items()})
    text = "; ".join(
        [
            *_in_use_text(sorted({numbers[entry] for entry in result.in_use})),
            *[
                f"step {numbers[entry]} was not deleted: "
                f"{steps.storage.location_of(entry)}: {reason}"
                for entry, reason in sorted(reasons.items())
            ],
        ]
    )
    if text:
        others = f" (deleted: {listed([*map(str, deleted)])})" if deleted else ""
        error = StepError(f"{steps.root}: {text}{others}")
        raise error from next(iter(result.failed.values()), None)
    return deleted


_MOVE_AWAY = "move that away, and delete the step again; if it is no step, keep it out of this root"


def _of_another_tool(step: Step) -> str:
    return (
        f"it was saved by {step.tool}, and a manager deletes only what cordwood wrote; to remove "
        f"it: {step.removal_command}"
    )


def _in_use_text(numbers: Sequence[int]) -> list[str]:
    if not numbers:
        return []
    which = "step {} is" if len(numbers) == 1 else "steps {} are"
    was = "was" if len(numbers) == 1 else "were"
    return [f"{which.format(', '.join(map(str, numbers)))} in use, and {was} not deleted"]


def _log_deleted(root: str, steps: Sequence[int], why: str) -> None:
    """Log a line that names the deleted steps; nothing if there are none."""
    if steps:
        noun = "step" if len(steps) == 1 else "steps"
        log.info("%s: deleted %s %s: %s", root, noun, listed([*map(str, steps)]), why)


_OTHER_TOOLS = "steps of other tools"  # the key of a warning


class Settlement(NamedTuple):
    """The deletions that all processes with roots of their own agree on after a commit.

    Attributes:
        deleted: the steps to delete.
        spared: incomplete steps of which nothing is removed, because a policy would keep them.
        to_replicate: the step that all processes are to replicate now; None: none.
    """

    deleted: Sequence[int]
    spared: Sequence[int]
    to_replicate: int | None = None


class StepCleaner:
    """Deletes steps and leftovers in the root of one manager."""

    def __init__(self, steps: Steps, policy: KeepPolicy) -> None:
        self._steps = steps
        self._storage = steps.storage
        self._policy = policy
        self._warned: set[str] = set()  # problems that were logged
        self._clean: set[tuple[str, Hashable | None]] = set()  # entries, and their stamps

    def make_room(self, *, spared: int | None = None) -> None:
        """Remove entries that are no longer steps, or never became steps.

        A save calls this before it writes: else a run that dies in every save would fill the disk
        with leftovers, and no save could ever end. The next call removes what this one cannot.

        Args:
            spared: a step of which nothing is removed, because a copy goes on from what there is;
                None: no step.
        """
        if isinstance(self._steps.location, LocalPath):  # object stores have no locks
            self.remove_unfinished(spared=spared)

    def remove_unfinished(self, *, spared: int | None = None) -> None:
        """Do the same in any storage. In an object store only what is a day old is removed."""
        unfinished = self._steps.unfinished()
        unfinished = [each for each in unfinished if each.step != spared]
        self._remove_unfinished(unfinished, spared="" if spared is None else step_name(spared))

    def after_commit(self, *, time_now: float) -> None:
        """Delete steps by the plan, and all leftovers. Raises OSError, CordwoodError."""
        every = self._steps.entries(start=0)
        steps = best_of_each(every)
        self._delete(every, steps, self._plan(steps, time_now=time_now).deleted)

    def agree_on_deletion(self, lost: Sequence[int], *, time_now: float) -> Settlement:
        """Return what is deleted now in the roots of all processes; nothing if the policy fails.

        Args:
            lost: incomplete steps. Those that the policy would keep are spared.
            time_now: the time, in seconds since 1970.
        """
        try:
            steps = best_of_each(self._steps.entries(start=0))
            plan = self._plan(steps, time_now=time_now)
            saved = [each.saved for each in steps if each.saved is not None]
            saved += [SavedStep(number, 0.0, {}) for number in lost]
            with_lost = plan_retention(saved, self._policy, time_now=time_now, spared={})
        except Exception:  # noqa: BLE001  (of a policy; it is logged with its traceback)
            log.exception("%s: keep failed, and no step was deleted", self._steps.root)
            return Settlement((), lost)
        return Settlement(plan.deleted, [each for each in lost if each in with_lost.kept])

    def delete_agreed(self, numbers: Sequence[int]) -> None:
        """Delete the steps that all processes have agreed on. Raises OSError, CordwoodError."""
        every = self._steps.entries(start=0)
        steps = best_of_each(every)
        present = {each.step for each in steps}
        self._delete(every, steps, [number for number in numbers if number in present])

    def _plan(self, steps: Sequence[Step], *, time_now: float) -> RetentionPlan:
        """Return the plan of a commit, and warn of policies that miss their metrics."""
        plan = plan_deletions(self._storage, steps, self._policy, time_now=time_now)
        saved = [each.saved for each in steps if each.saved is not None]
        has_metrics = any(step.metrics for step in saved)
        for problem in metric_problems(saved, self._policy).values():
            # The first metrics may come with a later step, so warn only once steps are lost.
            if problem not in self._warned and (has_metrics or plan.deleted):
                self._warned.add(problem)
                log.warning("%s: keep: %s", self._steps.root, printable(problem))
        if plan.deleted:
            self._warn_of_other_tools(steps)
        return plan

    def _delete(self, every: Sequence[Step], steps: Sequence[Step], numbers: Sequence[int]) -> None:
        """Delete steps, and leftovers.

        Args:
            every: all entries of the root.
            steps: the best of each number.
            numbers: the steps to delete.
        """
        entries = {each.step: each.entry for each in steps}
        result = self._storage.remove([entries[number] for number in numbers], partly=True)
        removed = result.removed
        _log_deleted(
            self._steps.root,
            [step for step in numbers if entries[step] in removed],
            "no policy keeps it",
        )
        self._warn_of_what_stays(result)
        self._remove_unfinished([each for each in every if not each.finished])
        self._steps.store_records()
        if isinstance(self._steps.location, LocalPath):
            self._tidy([each for each in steps if each.entry not in removed])

    def _warn_of_other_tools(self, steps: Sequence[Step]) -> None:
        """Log a warning, once, that steps of other tools stay, whatever the policy says."""
        others = [each for each in steps if each.is_of_another_tool and each.whole]
        if others and not self._policy.counts_every_tool and _OTHER_TOOLS not in self._warned:
            self._warned.add(_OTHER_TOOLS)
            log.warning(
                "%s: keep= does not count the steps that %s saved (%s), and never deletes them: "
                "%s removes one",
                self._steps.root,
                " and ".join(sorted({each.tool for each in others})),
                listed([str(each.step) for each in others]),
                others[0].removal_command,
            )

    def _warn_of_what_stays(self, result: Removal) -> None:
        """Log a warning about each step that could not be deleted, or not as a whole, once."""
        texts = {
            **{entry: f"cannot be deleted: {error}" for entry, error in result.failed.items()},
            **{entry: f"is not deleted: {reason}" for entry, reason in result.refused.items()},
            **{
                entry: f"was deleted, except {names}, which cordwood did not write"
                for entry, names in result.remaining.items()
            },
        }
        for entry, text in texts.items():
            problem = f"{self._storage.location_of(entry)} {text}"
            if problem not in self._warned:
                self._warned.add(problem)
                log.warning("%s", printable(problem))

    def _remove_unfinished(self, unfinished: Sequence[Step], *, spared: str = "") -> None:
        self._storage.remove_leftovers(spared=spared)
        for each in unfinished:
            # An empty directory, and one with other files alone, may be anybody's.
            if not each.is_link and self._storage.has_leftovers(each.entry):
                _collect(each)
                self._storage.remove_empty(each.entry)

    def _tidy(self, steps: Sequence[Step]) -> None:
        """Remove temporary files left in a committed step by a process that died.

        Write the files beside the index that it had not written. The newest step was just saved,
        and has them.
        """
        seen = set()
        newest = max([each.step for each in steps], default=None)
        for each in steps:
            if each.finished and not each.tool and not each.is_link:
                seen.add((each.entry, each.stamp))
                if (each.entry, each.stamp) in self._clean:
                    continue
                if self._has_remains(each) or (each.step != newest and self._is_stale(each)):
                    _collect(each)
        self._clean = seen

    def _has_remains(self, step: Step) -> bool:
        """Return True if a step contains leftovers of killed saves.

        It takes no lock, which would be one more file that a killed process can leave.
        """
        if self._storage.has_temporaries(step.entry):
            return True
        with suppress(OSError, CordwoodError):
            return bool(collector_of(DEFAULT).collect(_part_here(step), dry_run=True).names)
        return False

    def _is_stale(self, step: Step) -> bool:
        """Return True if files beside the index of a step are missing, or are of an older index."""
        with suppress(OSError, CordwoodError):
            return bool(collector_of(DEFAULT).stale_files(_part_here(step)))
        return False


def _collect(step: Step) -> None:
    with suppress(OSError, CordwoodError):  # deleted meanwhile, or damaged, which a load reports
        collector_of(DEFAULT).collect(_part_here(step), dry_run=False)


def _part_here(step: Step) -> Location:
    """Return the location of what this root holds of a step, of which others may hold more."""
    return LocalPath(step.path) if isinstance(step.location, LocalPath) else step.location


class PrunePlan(NamedTuple):
    """The steps of a run to keep and to delete.

    Attributes:
        steps: the steps of the run.
        deleted: those to delete.
        unmanaged: those that no manager saved; they stay.
        retention: the plan with the reasons.
        freed_bytes: the bytes on a disk that only they have; None for an object store, whose data
            objects other steps may share.
    """

    steps: Steps
    deleted: tuple[Step, ...]
    unmanaged: tuple[Step, ...]
    retention: RetentionPlan
    freed_bytes: int | None


def plan_prune(root: Location, policy: KeepPolicy) -> PrunePlan:
    """Return which steps of a run a policy does not keep, as a manager would plan it.

    Raises ValueError if steps would be deleted by a policy that names a metric or a step that the
    run does not have: it is misspelt, and the steps that it was to keep would be lost.
    """
    storage = open_step_storage(root, storage_of(DEFAULT).RULES, timeout_seconds=TIMEOUT_SECONDS)
    steps = Steps(storage)
    every = steps.all()
    plan = plan_deletions(storage, every, policy, time_now=time.time())
    if plan.deleted:
        _refuse_unmet_terms(every, policy)
    numbers = {*plan.deleted}
    deleted = tuple([step for step in every if step.step in numbers])
    folders = [
        LocalPath(step.path)  # what this root holds of it
        for step in deleted
        if isinstance(step.location, LocalPath) and not step.is_link
    ]
    freed = freed_bytes(folders) if isinstance(steps.location, LocalPath) else None
    unmanaged = tuple([step for step in every if step.tool])
    return PrunePlan(steps, deleted, unmanaged, plan, freed)


def _refuse_unmet_terms(steps: Sequence[Step], policy: KeepPolicy) -> None:
    saved = [each.saved for each in steps if each.saved is not None]
    problems = [*metric_problems(saved, policy).values()]
    present = {each.step for each in steps}
    named = {step for part in parts_of(policy) if isinstance(part, KeepAt) for step in part.steps}
    if missing := sorted(named - present):
        steps_text = listed([*map(str, sorted(present))])
        problems.append(f"there is no step {listed([*map(str, missing)])}; the steps: {steps_text}")
    if problems:
        raise ValueError("; ".join(problems))


def prune(plan: PrunePlan) -> Removal:
    """Delete the steps of a plan; only what cordwood wrote. Raises OSError."""
    storage = plan.steps.storage
    removal = storage.remove([step.entry for step in plan.deleted])
    storage.remove_leftovers()
    return removal
