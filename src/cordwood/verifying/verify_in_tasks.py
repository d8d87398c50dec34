"""The verification of checkpoints in tasks, by an executor, in parts, or with a journal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from cordwood.bulk.call_text import call_text
from cordwood.bulk.run_bulk import BulkOptions, BulkRun, bulk_run
from cordwood.encoding.digests import digest_of
from cordwood.errors import ProcessError
from cordwood.formats.detect_format import read_with_format
from cordwood.formats.format_protocol import DataFiles, OpenOptions
from cordwood.formats.load_format import (
    collector_of,
    data_file_lister_of,
    item_names,
    reader_of,
)
from cordwood.formats.table import PACKS, Format
from cordwood.index import Source
from cordwood.io.find_damage import BadRanges, Damage, name_damage, raise_damage
from cordwood.io.progress import Report, report_progress
from cordwood.io.verify_sample import VerifySample
from cordwood.plan.source_ranges import group_ranges
from cordwood.storage.directories import size_on_disk
from cordwood.storage.file_stamps import file_stamps
from cordwood.storage.locations import Location
from cordwood.storage.paths import absolute_location
from cordwood.verifying.verify_one import verify_one, with_all_pieces
from cordwood.verifying.verify_result import Verification
from cordwood.verifying.verify_tasks import (
    BlockChoice,
    CheckedRanges,
    CheckRanges,
    VerifyWhole,
)


def verify_in_tasks(
    checkpoints: Sequence[Location],
    options: BulkOptions,
    choice: BlockChoice,
    report: Report | None,
    *,
    format: str | None,
    max_bytes: int | None,
    catch: tuple[type[Exception], ...],
) -> list[Verification | Exception]:
    """Verify several checkpoints; of a part, the tasks of that part alone.

    Args:
        checkpoints: their locations.
        options: where and which tasks are run.
        choice: the blocks to check.
        report: receives the progress; None: nobody.
        format: the name of their format, if the caller gave one.
        max_bytes: the limit for the decompressed size of a compressed file.
        catch: errors of one checkpoint that are returned in place of its result.

    Returns:
        The result of each.
    """
    checks: list[_Check | Exception] = []
    tasks: list[CheckRanges | VerifyWhole] = []
    numbers: list[int] = []  # of each task: the position of its checkpoint
    for number, location in enumerate(checkpoints):
        try:
            check = _Check(location, choice, format, max_bytes, options.task_bytes)
        except catch as e:
            checks.append(e)
            continue
        checks.append(check)
        tasks += check.tasks
        numbers += [number] * len(check.tasks)
    whole = absolute_location(checkpoints[0] if len(checkpoints) == 1 else checkpoints[-1].parent)
    with bulk_run(options, work=call_text(f"verify {whole}", format=format)) as run:
        with report_progress(run.size_bytes(tasks), report):
            _run(run, tasks, numbers, checks, catch)
        results: list[Verification | Exception] = []
        for each in checks:
            if isinstance(each, Exception):
                results.append(each)
                continue
            try:
                results.append(each.result())
            except catch as e:
                results.append(e)
        is_whole = all(isinstance(each, Verification) for each in results)
        if is_whole and options.part is None:
            run.forget()
    return results


def _run(
    run: BulkRun,
    tasks: Sequence[CheckRanges | VerifyWhole],
    numbers: Sequence[int],
    checks: list[_Check | Exception],
    catch: tuple[type[Exception], ...],
) -> None:
    """Run tasks, and add the result of each to the check of its checkpoint.

    The first task that reports damage is run once more by this process: a worker that sees another
    storage reports files that are missing there.
    """
    is_confirmed = False
    for position, result in run.results(tasks):
        task, number = tasks[position], numbers[position]
        check = checks[number]
        if isinstance(check, Exception):
            continue
        if isinstance(result, Exception):
            if not isinstance(result, catch):
                raise result
            checks[number] = result
            continue
        if isinstance(result, CheckedRanges) and result.bad.is_damage and not is_confirmed:
            again = task.run()
            if isinstance(again, CheckedRanges) and not again.bad.is_damage:
                raise ProcessError(
                    f"{task.location}: a worker reports damage where this process reads the same "
                    "files without damage: all workers must see the "
                    "checkpoint under this path; mount it where they run, or verify by threads"
                )
            is_confirmed = True
        check.add(task, result)


class _Check:
    """The check of one checkpoint: its tasks, and what those that have ended have seen.

    Attributes:
        tasks: its tasks.
    """

    tasks: list[CheckRanges | VerifyWhole]

    def __init__(
        self,
        location: Location,
        choice: BlockChoice,
        format: str | None,
        max_bytes: int | None,
        task_bytes: int,
    ) -> None:
        self._location = absolute_location(location)
        self._choice = choice
        self._format = format
        self._max_bytes = max_bytes
        self._name = str(location)
        self._checked_bytes = 0
        self._tasks_done = 0
        self._whole: Verification | None = None
        self._bad: dict[Source, list[tuple[int, int]]] = {}
        self._broken: dict[Source, Exception] = {}
        read = partial(_divided, self._location)
        self._detected, self._files = read_with_format(
            self._location, read, format=format, prefix=None
        )
        if self._files is None:
            size_bytes = size_on_disk(self._location)
            stamps = digest_of(
                repr(file_stamps(self._location)).encode(errors="surrogatepass")
            ).hex()
            whole = VerifyWhole(self._location, choice, format, max_bytes, size_bytes, stamps)
            self.tasks = [whole]
        else:
            self.tasks = [
                CheckRanges(self._location, ranges, choice)
                for ranges in group_ranges(self._files.sources, limit_bytes=task_bytes)
            ]

    def add(self, task: CheckRanges | VerifyWhole, result: Any) -> None:
        """Add the result of a task, or the one in a journal."""
        self._tasks_done += 1
        if isinstance(task, VerifyWhole):
            is_new = isinstance(result, Verification)
            self._whole = result if is_new else Verification(*_tuples(result))
            return
        if not isinstance(result, CheckedRanges):
            self._checked_bytes += task.size_bytes
            return
        is_sample = self._choice.share < 1
        self._checked_bytes += result.checked_bytes if is_sample else task.size_bytes
        for number, part in enumerate(task.ranges):
            if number in result.bad.broken:
                self._broken[part.source] = result.bad.broken[number]
            if result.bad.ranges[number]:
                self._bad.setdefault(part.source, []).extend(result.bad.ranges[number])

    def result(self) -> Verification:
        """Return the result, or raise CorruptionError. Raises what reading the index raises."""
        if self._files is None:
            if self._whole is None:  # of another part
                size_bytes = self.tasks[0].size_bytes
                return Verification(self._name, self._detected.name, 0, 0, size_bytes)
            return self._whole._replace(path=self._name)
        stale: Sequence[str] = ()
        damage = self._damage()
        if damage is None:  # a save has replaced it: what was seen is of the past
            sample = VerifySample(*self._choice, record=None)
            result = verify_one(
                self._location, sample, format=self._format, max_bytes=self._max_bytes
            )
            return result._replace(path=self._name)
        collector = collector_of(self._detected)
        damage += map(Damage, collector.extra_problems(self._location))
        stale = collector.stale_files(self._location)
        raise_damage(damage, directory=self._name)
        size_bytes = sum([source.size_bytes for source in self._files.sources])
        index_bytes = len(self._files.index_bytes)
        result = Verification(
            self._name,
            self._detected.name,
            self._files.leaves,
            size_bytes + index_bytes,
            0,
            stale=tuple(stale),
        )
        is_part = self._choice.share < 1 or self._tasks_done < len(self.tasks)
        return result.of_part(self._checked_bytes + index_bytes) if is_part else result

    def _damage(self) -> list[Damage] | None:
        """Return the damage with the names of leaves; None if a save has replaced the index."""
        if not self._bad and not self._broken:
            return []
        assert self._files is not None
        damage: list[Damage] = []
        with ExitStack() as stack:
            for item in item_names(self._detected, self._location):
                opened = reader_of(self._detected).open_item(
                    self._detected, self._location, item or None, OpenOptions(for_verify=True)
                )
                stack.callback(opened.close)
                index = opened.index if opened.locate is None else with_all_pieces(opened)
                sources = [*enumerate(index.sources)]
                broken = {n: self._broken[each] for n, each in sources if each in self._broken}
                ranges = [sorted(self._bad.get(each, ())) for _, each in sources]
                damage += name_damage(index, BadRanges(broken, ranges))
        files = data_file_lister_of(self._detected).data_files(self._location)
        return damage if files.index_bytes == self._files.index_bytes else None


def _divided(location: Location, format: Format) -> tuple[Format, DataFiles | None]:
    """Return the format of a checkpoint, and its data files if they are checked one by one."""
    if format.name != PACKS.name:
        return format, None
    return format, data_file_lister_of(format).data_files(location)


def _tuples(record: Sequence[Any]) -> list[Any]:
    """Return the fields of a result from JSON, which has lists for tuples."""
    return [tuple(each) if isinstance(each, list) else each for each in record]
