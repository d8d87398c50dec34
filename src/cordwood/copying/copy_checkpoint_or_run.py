"""The copy of a checkpoint, or of the steps of a run: data files first, and then the index."""

from __future__ import annotations

from contextlib import ExitStack

from cordwood.bulk.call_text import call_text
from cordwood.bulk.run_bulk import BulkOptions, BulkRun, bulk_run
from cordwood.bulk.work_journal import refuse_files_of_other_call
from cordwood.copying.copy_in_tasks import copy_in_tasks, plan_tasks, sizes_of
from cordwood.copying.copy_single_file import copy_single_file
from cordwood.copying.copy_step import Copier
from cordwood.copying.refuse_copy import (
    is_directory_of_steps,
    refuse_file,
    refuse_other_step,
    refuse_run,
)
from cordwood.copying.warn_of_delta import warn_of_delta
from cordwood.errors import CordwoodError, IncompleteCheckpointError, NotACheckpointError
from cordwood.formats.load_format import storage_of
from cordwood.formats.step_names import sorted_steps, step_in_name
from cordwood.formats.table import DEFAULT
from cordwood.io.progress import Report, report_progress
from cordwood.message_text import listed
from cordwood.storage.directories import size_on_disk
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.paths import absolute_location, kind_at
from cordwood.threads.log import log
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads


def copy_checkpoint_or_run(
    source: Location,
    destination: Location,
    options: BulkOptions,
    *,
    verify: bool,
    report: Report | None,
) -> Copier:
    """Copy a checkpoint, or the steps of a run; return what was copied.

    Args:
        source: the checkpoint, or the directory of steps.
        destination: the place to write.
        options: where the data files are copied, and which of them. Steps are committed by the call
            that is for all of them.
        verify: True also reads the files that the destination has.
        report: receives the progress; None: nobody.
    """
    is_file = isinstance(source, LocalPath) and kind_at(source) == "a file"
    if is_file and options.divides:
        raise ValueError(
            f"{source} is a single file, which one process copies: executor=, part= and journal= "
            'are for directories of format="packs"'
        )
    if isinstance(source, LocalPath) and is_file:
        with report_progress(size_on_disk(source), report):
            return copy_single_file(source, destination)
    refuse_file(source, destination)
    storage = storage_of(DEFAULT)
    root, target = storage.store_at(source), storage.store_at(destination, to_save=True)
    if target.has_pool:
        with target.transaction(others_commit=False):
            pass  # a store that cannot be saved to is refused before anything is read
    is_run = is_directory_of_steps(source, root)
    names = [name for name in sorted_steps(root.names()) if step_in_name(name) is not None]
    if is_run and target.read_index() is not None:
        raise NotACheckpointError(
            f"{destination} is a checkpoint, and {source} is a directory of steps: expected a "
            "directory of steps, or nothing there yet"
        )
    copier = Copier(verify=verify, in_pool=is_run and target.has_pool)
    pairs = [(name, source.child(name), destination.child(name)) for name in names]
    if not is_run:
        pairs = [("", source, destination)]
        refuse_other_step(source, destination)
        refuse_run(source, destination, target)
    threads = reading_threads(latency_bound=root.has_pool or target.has_pool)
    steps = map_in_threads(copier.examine, [each[1:] for each in pairs], threads=threads)
    if all(step is None for step in steps):
        raise IncompleteCheckpointError(
            f"{source}: none of its steps ({listed(names)}) is finished"
        )
    work = call_text(f"copy {absolute_location(source)} to {absolute_location(destination)}")
    refuse_files_of_other_call(destination, work)
    with ExitStack() as stack:
        run: BulkRun | None = None
        if options.divides:
            tasks = plan_tasks(
                [step for step in steps if step is not None],
                verify=verify,
                task_bytes=options.task_bytes,
            )
            run = stack.enter_context(bulk_run(options, work=work))
            total = run.size_bytes([each.task for each in tasks])
            stack.enter_context(report_progress(total, report))
            done = copy_in_tasks(run, tasks)
            copier.whole, copier.written = done.whole, done.copied
            if options.part is not None:
                copier.count_files(sizes_of(tasks))
                return copier
        else:
            missing = {key: size for step in steps if step for key, size in step.missing.items()}
            stack.enter_context(report_progress(sum(missing.values()), report))
        for (name, *places), step in zip(pairs, steps, strict=True):
            if step is None:
                log.warning("%s has no index: it is not finished, and is not copied", places[0])
                continue
            try:
                copier.copy_step(name, *places)
            except (CordwoodError, OSError):
                if not is_run or storage.store_at(places[0]).read_index() is not None:
                    raise
                log.warning(
                    "%s was deleted while it was copied; gc removes what %s has of it", *places
                )
        if run is not None:
            run.forget()
    if copier.left_out:
        log.warning("%s: %s", destination, copier.left_out)
    if not is_run:
        warn_of_delta(source, destination)
    return copier
