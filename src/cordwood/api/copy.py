"""copy: bring a checkpoint, or the steps of a run, to another place, byte for byte.

Data files come first, each under its final name once it is whole, and then the index: so an
interrupted copy leaves data files that the next call finds, and `gc` removes.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Executor

from cordwood.bulk.bulk_arguments import (
    bulk_options,
    refuse_journal_within,
    with_journal_beside,
)
from cordwood.copying.copy_checkpoint_or_run import copy_checkpoint_or_run
from cordwood.copying.copy_report import CopyReport
from cordwood.io.progress import ProgressOption
from cordwood.io.progress_bar import progress_display
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.saving.background_saves import raise_unreported_failures, wait_for_saves
from cordwood.saving.interrupted_saves import after_interrupted_saves
from cordwood.storage.locations import LocalPath, Location, Url, parse_location
from cordwood.storage.paths import is_same_path, is_within
from cordwood.threads.run_in_worker import in_worker


@in_worker
def copy(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    verify: bool = False,
    progress: ProgressOption = None,
    executor: Executor | None = None,
    part: tuple[int, int] | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> CopyReport:
    """Copy a checkpoint, or all steps of a run, to another path or URL, byte for byte.

    Each is a local path or a URL of `s3://`, `gs://`, `az://` or `memory://`; the source may be of
    `https://`, except for runs. Files are copied a few MiB at a time, and every byte is checked
    against its digest before it is written; memory stays below about 150 MiB. A checkpoint is
    complete once its index is written, which is the last of all. Until then there is no checkpoint
    at `destination`.

    A copy that was interrupted or has failed can be called again: whole files are not copied again.
    `gc` removes them.

    One step of a run is complete by itself afterwards, also where it shared files with other steps.
    If the source is a directory of steps, all finished steps are copied, the oldest first, and what
    else lies there is not. Files that several steps share are copied once: to an object store they
    go into the pool of the run, and on a disk they are hard links, where the file system has them.
    Steps that the destination has already are skipped, after a look at the sizes of their files.

    Only directories of safetensors files are copied, as `save` writes them, and local files of one
    checkpoint. `convert` writes any checkpoint in a format that can be copied; to a URL, with
    format="zarr" and compression="archive", it compresses on the way.

    Args:
        source: the checkpoint, or the directory of steps.
        destination: the path or URL; nothing, an interrupted copy, or the same checkpoint. For
            steps, a directory of steps.
        verify: True also reads and checks the files that the destination has already, and writes
            damaged ones again. Files of unfinished copies on a disk are always checked.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`. None: neither.
        executor: any executor of `concurrent.futures`, whose workers copy the data files, as for
            `cordwood.verify`. They see both places under the same paths. A task is one data file,
            or several of 256 MiB together. This process writes the indexes. None: this process does
            all.
        part: (i, n) copies the data files of part i of n, counted from 0, and no index. The call
            without `part` copies what is missing, and writes the indexes.
        journal: a directory that lists the tasks that are done, as for `cordwood.verify`. None:
            with `executor` or `part`, `.NAME.cordwood-journal` beside a local destination, by which
            any later call goes on, and which other calls that write to there refuse. It is removed
            once all is copied. A store needs none.

    Returns:
        The steps, files and bytes that were copied, and those that were there.

    Raises:
        FileExistsError: there is another checkpoint at `destination`, or another step of the same
            name. Nothing is copied.
        NotACheckpointError: there is something else at `destination`, such as a directory of steps
            where `source` is one step. It is a FileExistsError too.
        StepError: `destination` has the name of another step than the source.
        UnsupportedFormatError: the source is of another format, which `convert` reads.
        IncompleteCheckpointError: no save of the source has finished.
        CorruptionError: bytes of the source do not match their digests; names file and range.
        ValueError: one of the two is within the other; or the source is a single file, which is
            not divided.
        ProcessError: the executor lost all its workers, and takes no more tasks.
        StorageError: another call copies the same; names its process.
        Exception: other errors of `load` and `save`.

    >>> from cordwood import save
    >>> save("step-8", {"w": 1.5})
    >>> copy("step-8", "memory://backup/step-8").files
    0
    """
    began = time.monotonic()
    origin = _trimmed(locate_checkpoint(parse_location(source)))
    target = _trimmed(parse_location(destination))
    for outer, inner in ((str(origin), str(target)), (str(target), str(origin))):
        if is_same_path(outer, inner) or is_within(inner, outer):
            raise ValueError(
                f"{origin} cannot be copied to {target}: expected two places, neither of them "
                "within the other"
            )
    options = bulk_options(executor, part, journal)
    refuse_journal_within(options.journal, (origin, target))
    options = with_journal_beside(options, target)
    raise_unreported_failures()
    wait_for_saves(str(origin))
    wait_for_saves(str(target))
    with after_interrupted_saves(str(target)), progress_display(progress, "copying") as report:
        copied = copy_checkpoint_or_run(origin, target, options, verify=verify, report=report)
    return CopyReport(
        str(origin),
        str(target),
        tuple(copied.steps),
        tuple(copied.steps_there),
        copied.files,
        copied.copied_bytes,
        copied.skipped_bytes,
        time.monotonic() - began,
        part,
    )


def _trimmed(location: Location) -> Location:
    """Return a location without a slash at its end."""
    if isinstance(location, Url):
        return location.plain
    return LocalPath(location.text.rstrip("/") or "/")
