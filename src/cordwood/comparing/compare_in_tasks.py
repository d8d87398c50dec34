"""The comparison of parts of leaves in tasks, whose results arrive in the order of the parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cordwood.bulk.run_bulk import BulkRun
from cordwood.comparing.array_change import ArrayChange
from cordwood.comparing.compare_parts_task import (
    CompareParts,
    TreesToCompare,
    changes_from_json,
    tasks_of_parts,
)
from cordwood.plan.split_arrays import Part


class ComparisonWork(NamedTuple):
    """The division of a comparison into tasks.

    Attributes:
        run: what runs them.
        trees: the trees, for workers.
        task_bytes: the size of a task, of each side.
    """

    run: BulkRun
    trees: TreesToCompare
    task_bytes: int

    def tasks(self, parts: Sequence[Part], partners: Mapping[int, int]) -> list[CompareParts]:
        """Return the tasks of a comparison."""
        return [*tasks_of_parts(self.trees, parts, partners, task_bytes=self.task_bytes)]

    def changes(self, tasks: Sequence[CompareParts]) -> Iterator[tuple[Part, ArrayChange]]:
        """Run those tasks that are of this call; yield each part, in order, and its change.

        The results of tasks that end early wait: sums are reproducible. Raises the error of a task.
        """
        waiting: dict[int, list[ArrayChange]] = {}
        order = iter(self.run.positions(tasks))
        due = next(order, None)
        for position, result in self.run.results(tasks):
            if isinstance(result, Exception):
                raise result
            waiting[position] = changes_from_json(result)
            while due is not None and due in waiting:
                yield from zip(tasks[due].parts, waiting.pop(due), strict=True)
                due = next(order, None)
