"""copy: bring a checkpoint, or the steps of a run, to another place, byte for byte.

Data files come first, each under its final name once it is whole, and then the index: so an
interrupted copy leaves data files that the next call finds, and `gc` removes.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from cordwood.api.copy_file import copy_file
from cordwood.api.copy_step import Copier
from cordwood.api.refuse_copy import is_directory_of_steps, refuse_other_step, refuse_run
from cordwood.errors import (
    CordwoodError,
    IncompleteCheckpointError,
    NotACheckpointError,
)
from cordwood.formats.packs.packs_storage import store_at
from cordwood.formats.stored_step import listed, sorted_steps, step_in_name
from cordwood.io.progress import ProgressOption, report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.message_text import counted, printable, size_text
from cordwood.public_names import document_fields
from cordwood.saving.background_saves import raise_unreported_failures, wait_for_saves
from cordwood.saving.interrupted_saves import after_interrupted_saves
from cordwood.storage.directories import size_on_disk
from cordwood.storage.locations import LocalPath, Location, Url, parse_location
from cordwood.storage.paths import is_same_path, is_within, kind_at
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import in_worker
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads


@document_fields
class CopyReport(NamedTuple):
    """The result of `copy`.

    Attributes:
        source, destination: the paths.
        steps: the names of the steps that were copied; ("",) for one checkpoint.
        steps_there: the names of the steps that the destination had already.
        files: how many files were written.
        copied_bytes: their size.
        skipped_bytes: the size of the files that the destination had already.
        seconds: the time it took.
    """

    source: str
    destination: str
    steps: tuple[str, ...]
    steps_there: tuple[str, ...]
    files: int
    copied_bytes: int
    skipped_bytes: int
    seconds: float

    def __str__(self) -> str:
        parts = [counted(self.files, "file"), f"{size_text(self.copied_bytes)} copied"]
        if self.skipped_bytes:
            parts.append(f"{size_text(self.skipped_bytes)} were there")
        steps = [name for name in (*self.steps, *self.steps_there) if name]
        if steps:
            there = len(self.steps_there)
            text = counted(len(self.steps), "step")
            parts.insert(0, f"{text}, {there} more were there" if there else text)
        return printable(f"{self.destination}: {', '.join(parts)}, in {self.seconds:.1f} s")

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from cordwood.notebook.html_parts import result_html

        fields = [
            ("from", self.source),
            ("to", self.destination),
            ("steps", ", ".join(filter(None, self.steps))),
            ("steps that were there", ", ".join(filter(None, self.steps_there))),
            ("files", f"{self.files:,}"),
            ("copied", size_text(self.copied_bytes)),
            ("was there", size_text(self.skipped_bytes) if self.skipped_bytes else ""),
        ]
        return result_html("copied", self.destination, fields)


@in_worker
def copy(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    verify: bool = False,
    progress: ProgressOption = None,
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
    checkpoint. `convert` writes any checkpoint in a format that can be copied.

    Args:
        source: the checkpoint, or the directory of steps.
        destination: the path or URL; nothing, an interrupted copy, or the same checkpoint. For
            steps, a directory of steps.
        verify: True also reads and checks the files that the destination has already, and writes
            damaged ones again. Files of unfinished copies on a disk are always checked.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`. None: neither.

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
        ValueError: one of the two is within the other.
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
    raise_unreported_failures()
    wait_for_saves(str(origin))
    wait_for_saves(str(target))
    with after_interrupted_saves(str(target)), progress_display(progress, "copying") as report:
        copied = _copy(origin, target, verify, report)
    return CopyReport(
        str(origin),
        str(target),
        tuple(copied.steps),
        tuple(copied.steps_there),
        copied.files,
        copied.copied_bytes,
        copied.skipped_bytes,
        time.monotonic() - began,
    )


def _trimmed(location: Location) -> Location:
    """Return a location without a slash at its end."""
    if isinstance(location, Url):
        return location.plain
    return LocalPath(location.text.rstrip("/") or "/")


def _copy(source: Location, destination: Location, verify: bool, report: Any) -> Copier:
    if isinstance(source, LocalPath) and kind_at(source) == "a file":
        with report_progress(size_on_disk(source), report):
            return copy_file(source, destination)
    root, target = store_at(source), store_at(destination, to_save=True)
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
    sizes = map_in_threads(copier.examine, [each[1:] for each in pairs], threads=threads)
    if all(size is None for size in sizes):
        raise IncompleteCheckpointError(
            f"{source}: none of its steps ({listed(names)}) is finished"
        )
    total = sum({key: size for each in sizes for key, size in (each or {}).items()}.values())
    with report_progress(total, report):
        for (name, *places), size in zip(pairs, sizes, strict=True):
            if size is None:
                log.warning("%s has no index: it is not finished, and is not copied", places[0])
                continue
            try:
                copier.copy_step(name, *places)
            except (CordwoodError, OSError):
                if not is_run or store_at(places[0]).read_index() is not None:
                    raise
                log.warning(
                    "%s was deleted while it was copied; gc removes what %s has of it", *places
                )
    return copier
