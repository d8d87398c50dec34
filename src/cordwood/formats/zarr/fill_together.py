"""The staging directory of an item, filled by several processes, each with its own files.

A failure is announced before the staging directory is removed. So a process that is still writing,
and finds no directory any more, knows why; it stops, and removes what it has created since. A
process that has reported no longer touches the directory: process 0 may be putting it in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cordwood.errors import ProcessError
from cordwood.formats.zarr.existing_index import refuse_to_add
from cordwood.formats.zarr.file_reports import read_report, write_report
from cordwood.formats.zarr.plan_item import ItemPlan
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import PlannedFile
from cordwood.processes.begin_shared_save import begin_shared_save
from cordwood.processes.rendezvous import Rendezvous
from cordwood.processes.tree_fingerprints import tree_fingerprints
from cordwood.storage.staging.staging_directory import StagingDirectory
from cordwood.storage.write_chunk_files import WrittenFile


def fill_together(
    stage: StagingDirectory,
    item: ItemPlan,
    chosen: Sequence[int],
    leaves: Leaves,
    rendezvous: Rendezvous,
    then: Callable[[list[WrittenFile]], None],
) -> None:
    """Write files of an item into a staging directory, each process its own files.

    Args:
        stage: a new one; its probe and its path are those of process 0 afterwards.
        item: the plan of the tree.
        chosen: the positions in `item.files` of the files to write.
        leaves: the leaves of the tree.
        rendezvous: of the processes that save it; not entered yet.
        then: called on process 0 with the written files, before any process continues. If it
            raises, every process raises, and the staging directory is removed. If it does not
            commit the staging directory, process 0 must do so or abandon it.
    """
    process = rendezvous.index
    if process == 0:
        refuse_to_add(stage.asked)
    files: list[list[PlannedFile]] = [[] for _ in range(rendezvous.count)]
    for number in chosen:
        files[item.writers[number]].append(item.files[number])
    reported = False
    try:
        with rendezvous, stage.explain_errors(stage.asked, what="directory"):
            if rendezvous.count > 1:
                begin_shared_save(
                    rendezvous,
                    stage,
                    path=stage.asked,
                    fingerprints=lambda: tree_fingerprints([item.tree], leaves, process),
                    specs=item.tree.specs,
                )
            try:
                written = stage.write(files[process], leaves)
                report = (0, "") if process == 0 else write_report(stage, process, written)
                rendezvous.poll_now()
            except OSError:
                rendezvous.poll_now()  # another process failed, so the staging directory is removed
                raise
            reported = True
            order = [item.writers[number] for number in chosen]
            rendezvous.exchange(
                report, partial(_finish, stage, written, files, order, rendezvous, then)
            )
    except BaseException as e:
        # Process 0 may have removed the staging directory before another one stopped. If no
        # failure has been announced yet, it will remove everything that exists now.
        if process == 0 or (
            not reported and (isinstance(e, ProcessError) or rendezvous.has_failed())
        ):
            stage.abandon()
        raise


def _finish(
    stage: StagingDirectory,
    written: list[WrittenFile],
    files: Sequence[Sequence[PlannedFile]],
    order: Sequence[int],
    rendezvous: Rendezvous,
    then: Callable[[list[WrittenFile]], None],
    reports: Sequence[tuple[int, str]],
) -> None:
    """Call `then` with the written files of all processes, on process 0.

    Args:
        stage: the staging directory.
        written: the files of process 0.
        files: the planned files of each process.
        order: of each file to return, the process that has written it.
        rendezvous: of the processes.
        then: see `fill_together`.
        reports: of each process, as `write_report` returned it.
    """
    by_process = [iter(written)]
    for other in range(1, rendezvous.count):
        stage.doing = "looking for what the other processes have written"
        rendezvous.poll()
        by_process.append(iter(read_report(stage, other, reports[other], files[other])))
    then([next(by_process[process]) for process in order])
