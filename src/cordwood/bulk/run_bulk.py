"""The tasks of one call: the part to run, where they run, and which are done already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from cordwood.bulk.bulk_task import BulkTask, EndedTask, run_task, task_key
from cordwood.bulk.run_on_executor import run_on_executor
from cordwood.bulk.task_size import TASK_BYTES
from cordwood.bulk.work_journal import WorkJournal, open_journal
from cordwood.encoding.digests import digest_of
from cordwood.io.progress import METER
from cordwood.plan.parts_of_work import WorkPart, tasks_of_part
from cordwood.storage.locations import LocalPath
from cordwood.storage.object_stores.bucket_cache import BUCKETS
from cordwood.storage.paths import new_save_id


class BulkOptions(NamedTuple):
    """The options of a call about its tasks.

    Attributes:
        executor: what runs the tasks; None: this process, one after another.
        part: the tasks to run; None: all.
        journal: the directory that lists the tasks that are done; None: nowhere.
        task_bytes: the size of a task.
    """

    executor: Executor | None = None
    part: WorkPart | None = None
    journal: LocalPath | None = None
    task_bytes: int = TASK_BYTES

    @property
    def divides(self) -> bool:
        """True if the call is to be divided into tasks."""
        return any(option is not None for option in self[:3])


class BulkRun:
    """The run of the tasks of one call, all at once or some after others."""

    def __init__(self, options: BulkOptions, journal: WorkJournal | None) -> None:
        self._options = options
        self._journal = journal

    def positions(self, tasks: Sequence[BulkTask]) -> range:
        """Return the positions of those tasks that this call runs, which may be a part."""
        return tasks_of_part([task.size_bytes for task in tasks], self._options.part)

    def size_bytes(self, tasks: Sequence[BulkTask]) -> int:
        """Return the size of the tasks that this call runs."""
        return sum([tasks[position].size_bytes for position in self.positions(tasks)])

    def results(self, tasks: Sequence[BulkTask]) -> Iterator[tuple[int, Any]]:
        """Run tasks; yield the position of each and its result, or the exception that it raised.

        Tasks that the journal lists come first, with the results that were recorded.
        """
        meter, journal = METER.get(), self._journal
        todo, keys = [], []
        for position in self.positions(tasks):
            key = "" if journal is None else task_key(tasks[position])
            if journal is None or key not in journal.results:
                todo.append(position)
                keys.append(key)
                continue
            if meter is not None:
                meter.advance(tasks[position].size_bytes)
            yield position, journal.results[key]
        records = None if journal is None else journal.records
        buckets = BUCKETS.options()
        calls = [
            (tasks[position], key, buckets, records)
            for position, key in zip(todo, keys, strict=True)
        ]
        executor = self._options.executor
        if executor is None:
            ended = _ended_here(calls)
        else:
            look_up = partial(self._recorded_meanwhile, keys)
            ended = run_on_executor(run_task, calls, executor, results_of_lost=look_up)
        counted_bytes = 0 if meter is None else meter.done_bytes
        for number, outcome in ended:
            task, result = tasks[todo[number]], outcome
            if isinstance(outcome, EndedTask):
                result = outcome.result
                if not outcome.is_recorded:
                    self._record(task, keys[number], result)
            if meter is not None:  # a task of this process has counted what it has read
                meter.advance(max(0, counted_bytes + task.size_bytes - meter.done_bytes))
                counted_bytes = meter.done_bytes
            yield todo[number], result

    def save_id(self, work: object) -> str:
        """Return the id of the save by which some work is written, which its repr tells.

        All calls with the same journal have the same one, until it is committed.
        """
        if self._journal is None:
            return new_save_id()
        return self._journal.save_id(digest_of(repr(work).encode(errors="surrogatepass")).hex())

    def note_commit(self, save_id: str) -> None:
        """Note that a save is committed from now on, before it is."""
        if self._journal is not None:
            self._journal.note_commit(save_id)

    def forget(self) -> None:
        """Delete the journal: all is done."""
        if self._journal is not None:
            self._journal.delete()

    def _record(self, task: BulkTask, key: str, result: Any) -> None:
        """Record a task of a worker that does not see the journal."""
        value = None if self._journal is None else task.to_json(result)
        if self._journal is not None and value is not None:
            self._journal.record(key, value)

    def _recorded_meanwhile(
        self, keys: Sequence[str], numbers: Sequence[int]
    ) -> Mapping[int, EndedTask]:
        """Return the results of those calls whose tasks have ended, by the numbers of the calls."""
        if self._journal is None:
            return {}
        self._journal.reload()
        results = self._journal.results
        return {
            number: EndedTask(results[keys[number]], is_recorded=True)
            for number in numbers
            if keys[number] in results
        }


def _ended_here(calls: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
    """Run tasks in this process; yield the number of each and how it ended."""
    for number, arguments in enumerate(calls):
        try:
            outcome: Any = run_task(*arguments)
        except Exception as e:  # noqa: BLE001  (as an executor returns it)
            outcome = e
        yield number, outcome


@contextmanager
def bulk_run(options: BulkOptions, *, work: str) -> Iterator[BulkRun]:
    """Prepare to run the tasks of a call, and hold its journal in the block.

    Args:
        options: which of them are run, and where.
        work: the text of the call, which the journal is of.

    Raises as `open_journal`.
    """
    if options.journal is None:
        yield BulkRun(options, None)
        return
    with open_journal(options.journal, work=work, part=options.part) as journal:
        yield BulkRun(options, journal)
