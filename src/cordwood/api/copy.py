"""copy: bring a checkpoint, or the steps of a run, to another place, byte for byte.

Data files come first, each under its final name once it is whole, and then the index: so an
interrupted copy leaves data files that the next call finds, and `gc` removes.

One file: which bytes are read, what they are checked against, and where they go are decided
together, step by step.
"""

from __future__ import annotations

import errno
import os
import shlex
import time
from contextlib import suppress
from typing import Any, NamedTuple

from cordwood.api.verify import verify as verify_checkpoint
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    NotACheckpointError,
    StepError,
    StorageError,
    UnsupportedFormatError,
)
from cordwood.formats.detect_format import format_of, format_of_directory
from cordwood.formats.packs import PACKS, store_at
from cordwood.formats.packs.copied_files import StepContent, content_of, write_files
from cordwood.formats.packs.cordwood_json import HUGGING_FACE_NAME
from cordwood.formats.packs.index_item import (
    parse_items,
    sealed_digests,
)
from cordwood.formats.packs.open import read_index_bytes
from cordwood.formats.packs.step_metrics import change_of_metrics, metrics_if_same_save
from cordwood.formats.registry import suffix_of
from cordwood.formats.stored_step import KEY, decode_record, listed, sorted_steps, step_in_name
from cordwood.index import Source
from cordwood.io.check_files import check_files
from cordwood.io.open_files import LocalFile, ReadableFile
from cordwood.io.progress import METER, ProgressOption, report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.message_text import counted, printable, size_text
from cordwood.public_names import document_fields
from cordwood.saving.background_saves import raise_unreported_failures, wait_for_saves
from cordwood.saving.interrupted_saves import after_interrupted_saves
from cordwood.storage.atomic_file import atomic_file, finish_file
from cordwood.storage.directories import size_on_disk
from cordwood.storage.locations import LocalPath, Location, Url, parse_location
from cordwood.storage.paths import is_same_path, is_within, kind_at, last_name
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.storage.storage_protocol import IndexChange, MissingDataError, Storage
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import in_worker
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads

_LOCAL_FILES_AT_ONCE = 2
_UNIT_BYTES = 8 << 20
_ATTEMPTS = 3  # to copy a step whose files are removed at the destination before its index is there


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


def _copy(source: Location, destination: Location, verify: bool, report: Any) -> _Copier:
    if isinstance(source, LocalPath) and kind_at(source) == "a file":
        with report_progress(size_on_disk(source), report):
            return _copy_file(source, destination)
    root, target = store_at(source), store_at(destination, to_save=True)
    if target.has_pool:
        with target.transaction(others_commit=False):
            pass  # a store that cannot be saved to is refused before anything is read
    is_run = _is_run(source, root)
    names = [name for name in sorted_steps(root.names()) if step_in_name(name) is not None]
    if is_run and target.read_index() is not None:
        raise NotACheckpointError(
            f"{destination} is a checkpoint, and {source} is a directory of steps: expected a "
            "directory of steps, or nothing there yet"
        )
    copier = _Copier(verify=verify, in_pool=is_run and target.has_pool)
    pairs = [(name, source.child(name), destination.child(name)) for name in names]
    if not is_run:
        pairs = [("", source, destination)]
        _refuse_other_step(source, destination)
        _refuse_run(source, destination, target)
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


def _is_run(source: Location, store: Storage) -> bool:
    """Return True for a directory of steps, False for a checkpoint that can be copied."""
    if store.read_index() is not None:
        return False
    if isinstance(source, LocalPath) and kind_at(source) == "a folder":
        other = format_of_directory(source)
        if other is not None:
            _refuse_format(source, other.name)
    if any(step_in_name(name) is not None for name in store.names()):
        return True
    if isinstance(source, LocalPath):
        format_of(source, format=None, prefix=None)  # raises
    read_index_bytes(store)  # raises
    return False


def _refuse_format(path: LocalPath, format: str) -> None:
    raise UnsupportedFormatError(
        f"{path} is of the format {format!r}: copy takes directories of safetensors files with "
        "cordwood.json, and single files; cordwood.convert (cordwood convert) writes one of it"
    )


def _recorded_step(source: Location) -> int | None:
    """Return the number of a step that a manager has saved; None for another checkpoint."""
    items = parse_items(read_index_bytes(store_at(source)), name=str(source))
    text = items[""].metadata.get(KEY) if "" in items else None
    if text is not None:
        with suppress(FormatError):  # not a manager's
            return decode_record(text, str(source)).step
    return None


def _refuse_other_step(source: Location, destination: Location) -> None:
    """Raise StepError if a manager would take the copy of a step for another step."""
    number = step_in_name(last_name(str(destination)))
    step = _recorded_step(source)
    if number is not None and step is not None and step != number:
        raise StepError(
            f"{source} is step {step} of a CheckpointManager, and would be taken for step "
            f"{number} at {destination}: copy it to a path that ends in {step}, or convert it"
        )


def _refuse_run(source: Location, destination: Location, target: Storage) -> None:
    """Raise NotACheckpointError for a checkpoint that would be copied onto a directory of steps."""
    if target.read_index() is not None:
        return
    steps = [name for name in sorted_steps(target.names()) if step_in_name(name) is not None]
    if not steps:
        return
    step = _recorded_step(source)
    last = last_name(str(source))
    name = str(step) if step is not None else last if step_in_name(last) is not None else "STEP"
    command = shlex.join(["cordwood", "copy", str(source), f"{destination}/{name}"])
    raise NotACheckpointError(
        f"{destination} is a directory of steps ({listed(steps)}), and {source} is one checkpoint: "
        f"copy it to a step there: {command}"
    )


class _Copier:
    """A call of `copy`: what it has copied so far, and the files that later steps need not copy."""

    def __init__(self, *, verify: bool, in_pool: bool) -> None:
        self.steps: list[str] = []
        self.steps_there: list[str] = []
        self.files = 0
        self.copied_bytes = 0
        self.skipped_bytes = 0
        self._verify = verify
        self._in_pool = in_pool
        self._held: dict[str, tuple[Location, Source]] = {}  # by name: the step that has it

    def examine(self, source: Location, destination: Location) -> dict[str, int] | None:
        """Return the sizes of the files to copy; None if there is no finished step.

        Raises FileExistsError and NotACheckpointError for something else at the destination.
        """
        data = store_at(source).read_index()
        if data is None:
            if isinstance(source, LocalPath):
                other = format_of_directory(source)
                if other is not None:
                    _refuse_format(source, other.name)
            return None
        content = content_of(data, source, in_pool=self._in_pool)
        target = store_at(destination)
        names = [*content.files]
        if not _is_same(target.read_index(), content, destination):
            PACKS.refuse_foreign(destination)
        elif not self._verify:
            names = self._missing(target, content, by_size=True)
        return {name: content.files[name].size_bytes for name in names}

    def copy_step(self, name: str, source: Location, destination: Location) -> None:
        """Copy a checkpoint, again if it is replaced, or its copy is removed, meanwhile."""
        origin = store_at(source)
        removals = 0

        def attempt() -> None:
            nonlocal removals
            data = read_index_bytes(origin)
            try:
                content = content_of(data, source, in_pool=self._in_pool)
                self._copy(name, origin, content, destination)
            except MissingDataError as e:
                removals += 1
                if removals == _ATTEMPTS:
                    raise StorageError(
                        errno.EBUSY,
                        f"files of the copy were removed {_ATTEMPTS} times before its index was "
                        "written: gc, or a manager that saves to the run, takes them for those of "
                        "a dead save until then; copy again once these have ended",
                        str(destination),
                    ) from e
                log.warning("%s: files of the copy were removed, and are copied again", destination)
                raise ReplacedError(e) from e
            except (CordwoodError, OSError) as e:
                with suppress(CordwoodError, OSError):
                    if origin.read_index() != data:
                        raise ReplacedError(e) from e
                raise

        retry_reading(attempt)

    def _copy(
        self, name: str, origin: Storage, content: StepContent, destination: Location
    ) -> None:
        target = store_at(destination)
        is_there = _is_same(target.read_index(), content, destination)
        is_complete = False
        if is_there:
            target.flush()  # the index of a copy that was killed may not be durable
            is_complete = self._in_pool or (
                target.read_sidecar(HUGGING_FACE_NAME) == content.sidecar
            )
        missing = self._missing(target, content, by_size=is_there and not self._verify)
        linked = [each for each in missing if target.has_links and self._holds(each, content)]
        write_files(origin, content, destination, [each for each in missing if each not in linked])
        if not is_complete or linked:
            with target.transaction(others_commit=False) as save:
                unlinked = [
                    each for each in linked if not save.link(str(self._held[each][0]), each)
                ]
                write_files(origin, content, destination, unlinked)
                missing = [each for each in missing if each not in linked or each in unlinked]

                def change(old: bytes | None) -> IndexChange:
                    if _is_same(old, content, destination) or old is None:
                        return content.change()
                    return _with_metrics_of_both(old, content, destination)

                save.commit(change)
        self.files += len(missing)
        for each, file in content.files.items():
            if each in missing:
                self.copied_bytes += file.size_bytes
            elif not self._holds(each, content):
                self.skipped_bytes += file.size_bytes
        self._held.update({each: (destination, file) for each, file in content.files.items()})
        (self.steps_there if is_there and not missing else self.steps).append(name)

    def _holds(self, name: str, content: StepContent) -> bool:
        """Return True if an earlier step of this call has the same file."""
        file = content.files[name]
        held = self._held.get(name)
        return held is not None and held[1][1:] == file[1:]  # all but its name in the source

    def _missing(self, target: Storage, content: StepContent, *, by_size: bool) -> list[str]:
        """Return the new names of the files that the destination does not have whole.

        Args:
            target: the destination.
            content: the step.
            by_size: True to compare the sizes alone, where an index refers to the files already.
        """

        def is_whole(name: str, file: Source) -> bool:
            if name.startswith("../") and self._holds(name, content):
                return True
            with suppress(CorruptionError, FormatError, FileNotFoundError, NotADirectoryError):
                (opened,) = target.open([file._replace(name=name)])
                with opened:
                    if by_size or (target.has_pool and not self._verify):
                        opened.read(0, 0)  # compares its size
                        return True
                    assert file.header_digest is not None
                    digests = sealed_digests(opened, file.header_digest)
                    return not check_files([(opened, digests)])[0]
            return False

        files = list(content.files.items())
        threads = reading_threads(latency_bound=True) if target.has_pool else 1
        whole = map_in_threads(is_whole, files, threads=threads)
        return [name for (name, _), there in zip(files, whole, strict=True) if not there]


def _is_same(current: bytes | None, content: StepContent, path: Location) -> bool:
    """Return True if a path has the same index, False for none, or one of the same save.

    That one differs in metrics, which were added to a step here or there after it was copied.

    Raises FileExistsError for that of another save.
    """
    if current is not None and current != content.index_bytes:
        with suppress(CordwoodError):
            if metrics_if_same_save(current, content.index_bytes) is not None:
                return False
        raise FileExistsError(
            f"{path}: there is a checkpoint already, and another one than that to copy; copy "
            "replaces nothing: remove it, or copy to another path"
        )
    return current is not None


def _with_metrics_of_both(current: bytes, content: StepContent, path: Location) -> IndexChange:
    metrics = metrics_if_same_save(current, content.index_bytes)
    change = change_of_metrics(content.index_bytes, metrics or {}, name=str(path), overwrite=True)
    return content._replace(index_bytes=change.new_index).change()


def _copy_file(source: LocalPath, destination: Location) -> _Copier:
    """Copy a single local file to another local path."""
    copied, meter = _Copier(verify=False, in_pool=False), METER.get()
    suffix = suffix_of(source.text)
    if isinstance(destination, Url):
        raise UnsupportedFormatError(
            f"{source} is a file, and an object store holds directories: cordwood.convert "
            f"(cordwood convert) writes it to {destination} as one"
        )
    if kind_at(destination) == "a folder" or suffix_of(destination.text) != suffix:
        raise UnsupportedFormatError(
            f"{destination}: expected the path of a file that ends in {suffix or 'no suffix'}, as "
            f"{source}; cordwood.convert (cordwood convert) writes other formats"
        )
    format = format_of(source, format=None, prefix=None).name
    with LocalFile(source) as file:
        if kind_at(destination) != "nothing":
            if not _same_bytes(file, destination):
                raise FileExistsError(
                    f"{destination}: there is another file already; copy replaces nothing: remove "
                    "it, or copy to another path"
                )
            finish_file(destination.text)  # it may be of a copy that was killed
            copied.steps_there, copied.skipped_bytes = [""], file.size_bytes
            return copied
        with atomic_file(destination) as temporary:
            for start in range(0, file.size_bytes, _UNIT_BYTES):
                check_stop()
                data = file.read(start, min(_UNIT_BYTES, file.size_bytes - start))
                temporary.write(memoryview(data), start)
                if meter is not None:
                    meter.advance(len(data), source.text)
            temporary.require_size(file.size_bytes)
            try:
                verify_checkpoint(temporary.path, format=format)
            except CordwoodError:
                verify_checkpoint(source, format=format)  # an error that names the source
                raise
        copied.steps, copied.files, copied.copied_bytes = [""], 1, file.size_bytes
    return copied


def _same_bytes(file: ReadableFile, path: LocalPath) -> bool:
    with LocalFile(path) as other:
        if other.size_bytes != file.size_bytes:
            return False
        for start in range(0, file.size_bytes, _UNIT_BYTES):
            length = min(_UNIT_BYTES, file.size_bytes - start)
            if file.read(start, length) != other.read(start, length):
                return False
    return True
