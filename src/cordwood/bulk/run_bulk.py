"""The tasks of one call: the part to run, where they run, and which are done already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, NamedTuple

from cordwood.bulk.bulk_task import BulkTask, run_task, task_key
from cordwood.bulk.run_on_executor import run_on_executor
from cordwood.bulk.work_journal import WorkJournal, open_journal
from cordwood.io.progress import METER
from cordwood.plan.parts_of_work import WorkPart, tasks_of_part
from cordwood.storage.locations import LocalPath
from cordwood.storage.object_stores.bucket_cache import BUCKETS


class BulkOptions(NamedTuple):
    """The options of a call about its tasks.

    Attributes:
        executor: what runs the tasks; None: this process, one after another.
        part: the tasks to run; None: all.
        journal: the directory that lists the tasks that are done; None: nowhere.
    """

    executor: Executor | None = None
    part: WorkPart | None = None
    journal: LocalPath | None = None

    @property
    def divides(self) -> bool:
        """True if the call is to be divided into tasks."""
        return any(option is not None for option in self)


class BulkRun:
    """The tasks of one call, which `results` runs.

    Attributes:
        positions: the positions of the tasks of this call, which may be a part.
    """

    def __init__(
        self, tasks: Sequence[BulkTask], options: BulkOptions, journal: WorkJournal | None
    ) -> None:
        self._tasks = tasks
        self._executor = options.executor
        self._journal = journal
        self.positions = tasks_of_part([task.size_bytes for task in tasks], options.part)

    def results(self) -> Iterator[tuple[int, Any]]:
        """Yield the position of each task and its result, or the exception that it raised.

        Tasks that the journal lists come first, with the results that were recorded.
        """
        meter = METER.get()
        todo = []
        for position in self.positions:
            key = "" if self._journal is None else task_key(self._tasks[position])
            if self._journal is None or key not in self._journal.results:
                todo.append(position)
                continue
            if meter is not None:
                meter.advance(self._tasks[position].size_bytes)
            yield position, self._journal.results[key]
        if self._executor is None:
            for position in todo:
                try:
                    result = self._tasks[position].run()
                except Exception as e:  # noqa: BLE001  (as an executor returns it)
                    result = e
                yield position, result
            return
        options = BUCKETS.options()
        arguments = [(self._tasks[position], options) for position in todo]
        for number, result in run_on_executor(run_task, arguments, self._executor):
            if meter is not None:
                meter.advance(arguments[number][0].size_bytes)
            yield todo[number], result

    def record(self, position: int, result: Any) -> None:
        """Note in the journal, if there is one, that a task is done; its result is JSON."""
        if self._journal is not None:
            self._journal.record(task_key(self._tasks[position]), result)

    def forget(self) -> None:
        """Delete the journal: all is done."""
        if self._journal is not None:
            self._journal.delete()


@contextmanager
def bulk_run(tasks: Sequence[BulkTask], options: BulkOptions, *, work: str) -> Iterator[BulkRun]:
    """Prepare the tasks of a call, and hold its journal in the block.

    Args:
        tasks: all tasks of the call; a call for another part of them lists the same.
        options: which of them are run, and where.
        work: the call, for people: what the journal is of.

    Raises as `open_journal`.
    """
    if options.journal is None:
        yield BulkRun(tasks, options, None)
        return
    with open_journal(options.journal, work=work, part=options.part) as journal:
        yield BulkRun(tasks, options, journal)
