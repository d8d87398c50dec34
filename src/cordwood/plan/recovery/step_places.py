"""The places that hold a step, and the losses that it would not survive. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from cordwood.message_text import counted
from cordwood.plan.recovery.complete_steps import CompleteStep
from cordwood.public_names import document_fields

_Group = TypeVar("_Group", int, str)


@document_fields
class StepPlaces(NamedTuple):
    """The places that hold a step.

    Attributes:
        step: its number.
        in_root: True if the root holds it; with shared=False: if roots hold files of it.
        mirrored: True if the mirror holds it, whole.
        files: with shared=False: how many files it has. Otherwise 0, as in a mirror alone.
        files_of: the number of its files in the root of each process, without those with none.
        lost_with_hosts: the hosts that alone hold some file of it, so that it is lost with any one
            of them; none if it is mirrored.
        lost_with_processes: the processes whose roots alone hold some file of it.
    """

    step: int
    in_root: bool
    mirrored: bool
    files: int
    files_of: Mapping[int, int]
    lost_with_hosts: Sequence[str]
    lost_with_processes: Sequence[int]

    def __str__(self) -> str:
        texts = []
        if self.files_of:
            roots = ", ".join([f"{n} at process {each}" for each, n in self.files_of.items()])
            texts.append(f"{counted(self.files, 'file')}: {roots}")
        elif self.in_root:
            texts.append("in the root")
        if self.mirrored:
            texts.append("in the mirror")
        if self.lost_with_hosts:
            texts.append(f"lost with any one of the hosts {', '.join(self.lost_with_hosts)}")
        return f"step {self.step}: {'; '.join(texts)}"


def place_without_files(step: int, *, in_root: bool, mirrored: bool) -> StepPlaces:
    """Return the places of a step of a root that all share, or of a mirror alone."""
    return StepPlaces(step, in_root, mirrored, 0, {}, (), ())


def places_of(step: CompleteStep, hosts: Sequence[str]) -> StepPlaces:
    """Return the places of a step whose files lie in several roots.

    Args:
        step: the step.
        hosts: the host of each process.
    """
    files_of = {
        process: sum([stop - start for start, stop in runs])
        for process, runs in sorted(step.files.items())
    }
    mirrored = step.is_mirrored
    return StepPlaces(
        step.step,
        bool(files_of),
        mirrored,
        step.file_count,
        files_of,
        () if mirrored else _sole_holders(step, hosts),
        () if mirrored else _sole_holders(step, range(len(hosts))),
    )


def _sole_holders(step: CompleteStep, groups: Sequence[_Group]) -> tuple[_Group, ...]:
    """Return the groups of processes that alone hold some file; `groups` has that of each."""
    holders: list[set[_Group]] = [set() for _ in range(step.file_count)]
    for process, runs in step.files.items():
        for start, stop in runs:
            for position in range(start, stop):
                holders[position].add(groups[process])
    return tuple(sorted({min(each) for each in holders if len(each) == 1}))
