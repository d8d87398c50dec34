"""The copy of one step: which data files are read, what they are checked against, where they go."""

from __future__ import annotations

import errno
from contextlib import suppress

from cordwood.copying.refuse_copy import refuse_format
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    FormatError,
    StorageError,
)
from cordwood.formats.detect_format import format_of_directory
from cordwood.formats.load_format import writer_of
from cordwood.formats.packs.copied_files import StepContent, content_of, write_files
from cordwood.formats.packs.file_names import HUGGING_FACE_NAME
from cordwood.formats.packs.open import read_index_bytes
from cordwood.formats.packs.pack_headers import sealed_digests
from cordwood.formats.packs.packs_storage import store_at
from cordwood.formats.packs.step_metrics import change_of_metrics, metrics_if_same_save
from cordwood.formats.table import DEFAULT
from cordwood.index import Source
from cordwood.io.check_files import check_files
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.storage.storage_protocol import IndexChange, MissingDataError, Storage
from cordwood.threads.log import log
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads

_LOCAL_FILES_AT_ONCE = 2

_ATTEMPTS = 3  # to copy a step whose files are removed at the destination before its index is there


class Copier:
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
                    refuse_format(source, other.name)
            return None
        content = content_of(data, source, in_pool=self._in_pool)
        target = store_at(destination)
        names = [*content.files]
        if not _is_same(target.read_index(), content, destination):
            writer_of(DEFAULT).refuse_foreign(DEFAULT, destination)
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
                        "a killed save until then; copy again once these have ended",
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
        return [name for (name, _), is_present in zip(files, whole, strict=True) if not is_present]


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
