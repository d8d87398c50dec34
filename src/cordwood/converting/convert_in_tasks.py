"""The writing of a converted tree in tasks, by an executor, in parts, or with a journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cordwood.bulk.run_bulk import BulkOptions, BulkRun
from cordwood.converting.convert_units_task import ConvertUnits, TreeConversion
from cordwood.errors import UnsupportedFormatError
from cordwood.formats.format_protocol import TaskWriter
from cordwood.formats.load_format import task_writer_of
from cordwood.formats.table import Format
from cordwood.loading.checkpoint import Checkpoint
from cordwood.storage.locations import Location, Url


class WrittenFiles(NamedTuple):
    """The data files that tasks have written: how many, and the size of their elements."""

    file_count: int
    size_bytes: int


def require_task_writer(
    format: Format, source: Location | Checkpoint, destination: Location, options: BulkOptions
) -> TaskWriter:
    """Return what writes a format in tasks.

    Raises:
        ValueError: the source is an open checkpoint, or there is no journal where one is needed.
        UnsupportedFormatError: the destination is written by one process, or within one call.
    """
    if isinstance(source, Checkpoint):
        raise ValueError(
            f"{source.path} is open: executor=, part= and journal= are for a path, which workers "
            "open; pass the path"
        )
    writer = task_writer_of(format)
    if writer is None:
        lasts = options.part is not None or options.journal is not None
        names = (
            'format="packs" (--format packs)' if lasts else 'format="packs" or "zarr" (--format)'
        )
        place = "" if format.is_directory else " to a path without the suffix of a file"
        raise UnsupportedFormatError(
            f"{destination}: the {format.name} format is written by one process: leave out "
            f"executor=, part= and journal= (--workers, --part, --journal), or write {names}{place}"
        )
    if not writer.FILES_LAST and (options.part is not None or options.journal is not None):
        raise UnsupportedFormatError(
            f"{destination}: files of the {format.name} format last only as long as the call that "
            "writes them: use executor= without part= and journal= (--workers without --part and "
            '--journal), or write format="packs" (--format packs)'
        )
    if options.part is not None and isinstance(destination, Url) and options.journal is None:
        raise ValueError(
            f"part= with {destination} needs journal= (--journal), a directory that all jobs see: "
            "the index is made of what it lists"
        )
    return writer


def convert_in_tasks(
    run: BulkRun,
    writer: TaskWriter,
    tree: TreeConversion,
    save: object,
    options: BulkOptions,
) -> WrittenFiles:
    """Write a tree in tasks, and commit it unless this call is for a part.

    Args:
        run: what runs the tasks.
        writer: that of the format.
        tree: the conversion.
        save: the planned save.
        options: where the tasks run, and which of them.

    Returns:
        What the tasks of this call have written, or had written.
    """
    save_id = run.save_id(tree)
    sizes = writer.unit_sizes(save)
    with writer.begin(save, save_id) as division:
        tasks = [*_tasks(tree, division.token, sizes, options.task_bytes)]
        reports: dict[int, Sequence[Any]] = {}
        for position, result in run.results(tasks):
            if isinstance(result, Exception):
                raise result
            reports[position] = result
        if options.part is not None:
            part_tasks = [tasks[position] for position in run.positions(tasks)]
            file_count = sum([task.stop - task.start for task in part_tasks])
            return WrittenFiles(file_count, sum([task.size_bytes for task in part_tasks]))
        every = [report for position in range(len(tasks)) for report in reports[position]]
        missing = set(division.missing(every))
        for task in tasks:  # files that were removed since the journal has them
            if not missing.isdisjoint(range(task.start, task.stop)):
                every[task.start : task.stop] = task.run()
        tree.source.require_current()
        run.note_commit(save_id)
        division.commit(every)
    return WrittenFiles(len(sizes), sum(sizes))


def _tasks(
    tree: TreeConversion, token: str, sizes: Sequence[int], task_bytes: int
) -> Iterator[ConvertUnits]:
    start = group_bytes = 0
    for number, size in enumerate(sizes):
        if number > start and group_bytes + size > task_bytes:
            yield ConvertUnits(tree, token, start, number, group_bytes)
            start, group_bytes = number, 0
        group_bytes += size
    if start < len(sizes):
        yield ConvertUnits(tree, token, start, len(sizes), group_bytes)
