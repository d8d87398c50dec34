"""The arguments `executor=`, `part=` and `journal=` of public calls, as options."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Executor

from cordwood.bulk.run_bulk import BulkOptions
from cordwood.bulk.task_size import current_task_bytes
from cordwood.plan.parts_of_work import parse_part
from cordwood.storage.locations import LocalPath, Location, parse_local_path
from cordwood.storage.paths import absolute_path, is_within, journal_beside, path_exists


def bulk_options(
    executor: Executor | None,
    part: tuple[int, int] | None,
    journal: str | os.PathLike[str] | None,
) -> BulkOptions:
    """Return the options that the arguments of a call stand for.

    Raises TypeError and ValueError for arguments that are none.
    """
    is_executor = callable(getattr(executor, "submit", None)) and not isinstance(executor, type)
    if executor is not None and not is_executor:
        raise TypeError(
            f"executor={executor!r:.80}: expected an executor of concurrent.futures, which has "
            "submit(): a ProcessPoolExecutor, or the adapter that Dask, mpi4py or Ray has for it"
        )
    folder = None
    if journal is not None:
        folder = absolute_path(parse_local_path(journal, purpose="for journal="))
    return BulkOptions(executor, parse_part(part), folder, current_task_bytes())


def with_journal_beside(options: BulkOptions, destination: Location) -> BulkOptions:
    """Return the options of a call that writes, with the journal beside a local destination.

    A call that is not divided goes on by the journal of one that was, if there is one.
    """
    if options.journal is not None or not isinstance(destination, LocalPath):
        return options
    beside = absolute_path(journal_beside(destination))
    if options.divides or path_exists(beside):
        return options._replace(journal=beside)
    return options


def refuse_journal_within(journal: LocalPath | None, places: Iterable[Location]) -> None:
    """Raise ValueError for a journal inside of a directory that is read or written."""
    for place in places:
        if journal is not None and is_within(journal.text, str(place)):
            raise ValueError(
                f"journal={journal.text!r}: it lies within {place}: name a directory beside it, "
                f"such as {place}.journal"
            )
