"""The copy of the data files of steps in tasks, by an executor, in parts, or with a journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cordwood.bulk.run_bulk import BulkRun
from cordwood.copying.copy_files_task import CopyFiles
from cordwood.copying.copy_step import StepToCopy
from cordwood.formats.load_format import storage_of
from cordwood.formats.table import DEFAULT
from cordwood.index import Source
from cordwood.plan.source_ranges import group_files
from cordwood.storage.locations import Location
from cordwood.storage.paths import absolute_location


class TaskOfStep(NamedTuple):
    """A task, and the step that it is of."""

    step: StepToCopy
    task: CopyFiles


class CopiedFiles(NamedTuple):
    """The data files that tasks have found whole at the destination, or made so.

    Attributes:
        whole: their steps and names.
        copied: those that tasks have copied.
    """

    whole: set[tuple[Location, str]]
    copied: set[tuple[Location, str]]


def plan_tasks(steps: Iterable[StepToCopy], *, verify: bool, task_bytes: int) -> list[TaskOfStep]:
    """Return the tasks by which the data files of steps are copied.

    They depend on the source alone, so that all parts of a copy list the same. A file that an
    earlier step has too is copied with that step: it is linked, or in the pool.
    """
    earlier: set[tuple[str, Source]] = set()
    tasks = []
    for step in steps:
        files = {
            name: file
            for name, file in step.content.files.items()
            if (name, file._replace(name="")) not in earlier
        }
        earlier |= {(name, file._replace(name="")) for name, file in files.items()}
        by_size = not verify and (step.is_there or step.in_store)
        tasks += [
            TaskOfStep(
                step,
                CopyFiles(
                    absolute_location(step.source),
                    absolute_location(step.destination),
                    group,
                    by_size,
                ),
            )
            for group in group_files(files, limit_bytes=task_bytes)
        ]
    return tasks


def sizes_of(tasks: Iterable[TaskOfStep]) -> dict[tuple[Location, str], int]:
    """Return the sizes of the data files of tasks, by steps and names."""
    return {
        (step.destination, name): file.size_bytes
        for step, task in tasks
        for name, file in task.files
    }


def copy_in_tasks(run: BulkRun, tasks: Sequence[TaskOfStep]) -> CopiedFiles:
    """Run the tasks of a call; return the files that are whole at the destination.

    An error of a task counts only if its step is still the one that was planned: one that was
    deleted or replaced meanwhile is looked at again when it is committed.
    """
    done = CopiedFiles(set(), set())
    for position, result in run.results([each.task for each in tasks]):
        step, task = tasks[position]
        if isinstance(result, Exception):
            if storage_of(DEFAULT).store_at(step.source).read_index() == step.index_bytes:
                raise result
            continue
        done.whole.update([(step.destination, name) for name, _ in task.files])
        done.copied.update([(step.destination, name) for name in result])
    return done
