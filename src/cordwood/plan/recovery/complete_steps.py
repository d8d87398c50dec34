"""The steps of which some root, or the mirror, holds every file; and what others lack. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from cordwood.plan.recovery.position_runs import PositionRuns, join_runs, runs_without
from cordwood.plan.recovery.step_inventory import StepInventory


class CompleteStep(NamedTuple):
    """A step of which every file is somewhere.

    Attributes:
        step: its number.
        index_digest: the digest of its index, in hexadecimal.
        saved_at: the time of its save, in seconds since 1970.
        file_count: the number of files that its index names.
        files: the positions of the files that each process holds, without processes with none.
        is_mirrored: True if the mirror holds it, whole.
    """

    step: int
    index_digest: str
    saved_at: float
    file_count: int
    files: Mapping[int, PositionRuns]
    is_mirrored: bool


class IncompleteStep(NamedTuple):
    """A step that nobody can restore.

    Attributes:
        step: its number.
        index_digest: the digest of its index, in hexadecimal.
        file_count: the number of files that its index names.
        missing: the positions of the files that nobody holds.
        processes: the processes that hold its index.
    """

    step: int
    index_digest: str
    file_count: int
    missing: PositionRuns
    processes: tuple[int, ...]


class StepSurvey(NamedTuple):
    """The steps of all roots and the mirror, the newest first.

    Attributes:
        complete: the steps that can be restored, one for each number.
        incomplete: the others, except those of a number that is complete.
    """

    complete: tuple[CompleteStep, ...]
    incomplete: tuple[IncompleteStep, ...]


def survey_steps(
    inventories: Sequence[Sequence[StepInventory]],
    mirror: Sequence[StepInventory] = (),
    *,
    excluded: Collection[tuple[int, str]] = (),
) -> StepSurvey:
    """Return which steps are complete over all roots and the mirror.

    Of two complete steps of one number, with different indexes, the one that was saved later
    counts.

    Args:
        inventories: the steps that the root of each process holds.
        mirror: the steps that the mirror holds, which are whole there.
        excluded: steps that are known to be damaged, as number and digest of the index.
    """
    processes: dict[tuple[int, str], dict[int, StepInventory]] = {}
    for process, steps in enumerate(inventories):
        for each in steps:
            processes.setdefault((each.step, each.index_digest), {})[process] = each
    mirrored = {(each.step, each.index_digest): each for each in mirror}
    complete: dict[int, CompleteStep] = {}
    incomplete: list[IncompleteStep] = []
    for key in (processes.keys() | mirrored.keys()) - set(excluded):
        roots, copy = processes.get(key, {}), mirrored.get(key)
        some = copy or next(iter(roots.values()))
        runs = [run for each in roots.values() for run in each.files]
        missing = runs_without(join_runs([*runs, *(copy.files if copy else ())]), some.file_count)
        if missing:
            incomplete.append(IncompleteStep(*key, some.file_count, missing, tuple(roots)))
            continue
        files = {process: each.files for process, each in roots.items() if each.files}
        is_mirrored = copy is not None
        step = CompleteStep(*key, some.saved_at, some.file_count, files, is_mirrored)
        other = complete.get(step.step)
        if other is None or _is_later(step, other):
            complete[step.step] = step
    others = [each for each in incomplete if each.step not in complete]
    return StepSurvey(
        tuple(sorted(complete.values(), key=_newest_first)),
        tuple(sorted(others, key=_newest_first)),
    )


def newest_with_copies(steps: Sequence[CompleteStep], copies: int) -> int | None:
    """Return the newest step of which so many processes hold each file.

    If there is none, return the newest step; None without steps.
    """
    if not steps:
        return None
    replicated = [each.step for each in steps if _copies_of(each) >= copies]
    return max(replicated or [each.step for each in steps])


def _copies_of(step: CompleteStep) -> int:
    """Return how many processes hold the file of a step that the fewest hold."""
    counts = [0] * step.file_count
    for runs in step.files.values():
        for start, stop in runs:
            for position in range(start, stop):
                counts[position] += 1
    return min(counts, default=0)


def _is_later(step: CompleteStep, other: CompleteStep) -> bool:
    return (step.saved_at, step.index_digest) > (other.saved_at, other.index_digest)


def _newest_first(step: CompleteStep | IncompleteStep) -> tuple[int, str]:
    return -step.step, step.index_digest
