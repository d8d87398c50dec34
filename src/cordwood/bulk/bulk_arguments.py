"""The arguments `executor=`, `part=` and `journal=` of public calls, as options."""

from __future__ import annotations

import os
from concurrent.futures import Executor

from cordwood.bulk.run_bulk import BulkOptions
from cordwood.bulk.task_size import current_task_bytes
from cordwood.plan.parts_of_work import parse_part
from cordwood.storage.locations import parse_local_path
from cordwood.storage.paths import absolute_path


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
