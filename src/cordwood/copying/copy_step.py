"""The copy of one step: which data files are read, what they are checked against, where they go."""

from __future__ import annotations

import errno
from contextlib import suppress

from cordwood.copying.refuse_copy import refuse_format
from cordwood.errors import CordwoodError, CorruptionError, FormatError, StorageError
from cordwood.formats.detect_directory import format_in
from cordwood.formats.format_protocol import StepContent
from cordwood.formats.load_format import copier_of, storage_of, writer_of
from cordwood.formats.place import Place
from cordwood.formats.table import DEFAULT
from cordwood.index import Source
from cordwood.storage.atomic_file import remove_stale_temporaries
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.storage.storage_protocol import MissingDataError, Storage
from cordwood.threads.log import log
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads

_LOCAL_FILES_AT_ONCE = 2

_ATTEMPTS = 3  # to copy a step whose files are removed at the destination before its index is there


class Copier:
    """A call of `copy`: what it has copied so far, and the files that later steps need not copy.

    Attributes:
        left_out: a sentence about what the copies lack; "": nothing.
    """

    def __init__(self, *, verify: bool, in_pool: bool) -> None:
        self.left_out = ""
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
        store_at = storage_of(DEFAULT).store_at
        data = store_at(source).read_index()
        if data is None:
            if isinstance(source, LocalPath):
                other = format_in(Place(source))
                if other is not None:
                    refuse_format(source, other.name)
            return None
        target = store_at(destination)
        content = self._content_of(data, source, target)
        names = [*content.files]
        current = target.read_index()
        _content_beside(current, content, destination)
        if current != content.index_bytes:
            writer_of(DEFAULT).refuse_foreign(DEFAULT, destination)
        elif not self._verify:
            names = self._missing(target, content, by_size=True)
        return {name: content.files[name].size_bytes for name in names}

    def copy_step(self, name: str, source: Location, destination: Location) -> None:
        """Copy a checkpoint, again if it is replaced, or its copy is removed, meanwhile."""
        storage = storage_of(DEFAULT)
        origin = storage.store_at(source)
        removals = 0

        def attempt() -> None:
            nonlocal removals
            data = storage.require_index(origin)
            try:
                content = self._content_of(data, source, storage.store_at(destination))
                self._copy(name, origin, content, destination)
                self.left_out = content.left_out or self.left_out
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

    def _content_of(self, data: bytes, source: Location, target: Storage) -> StepContent:
        return copier_of(DEFAULT).content_of(
            data, source, in_pool=self._in_pool, has_links=target.has_links
        )

    def _copy(
        self, name: str, origin: Storage, content: StepContent, destination: Location
    ) -> None:
        target, copier = storage_of(DEFAULT).store_at(destination), copier_of(DEFAULT)
        current = target.read_index()
        _content_beside(current, content, destination)
        is_there = current == content.index_bytes
        is_complete = False
        if is_there:
            if content.optional_sidecars and isinstance(destination, LocalPath):
                # After a power cut a file that was moved into a folder may have both names.
                remove_stale_temporaries(str(destination), storage_of(DEFAULT).RULES.index_name)
            target.flush()  # the index of a copy that was killed may not be durable
            is_complete = self._in_pool or all(
                target.read_sidecar(each) == data for each, data in content.sidecars.items()
            )
            is_complete = is_complete and all(
                target.read_optional_sidecar(each) == sidecar
                for each, sidecar in content.optional_sidecars.items()
            )
        missing = self._missing(target, content, by_size=is_there and not self._verify)
        linked = [each for each in missing if target.has_links and self._holds(each, content)]
        unshared = [each for each in missing if each not in linked]
        copier.write_files(origin, content, destination, unshared)
        if not is_complete or linked:
            if isinstance(destination, LocalPath):  # a copy that was killed may have left some
                for each in content.files.keys() - set(missing):
                    remove_stale_temporaries(str(destination), each)
            with target.transaction(others_commit=False) as save:
                unlinked = [
                    each for each in linked if not save.link(str(self._held[each][0]), each)
                ]
                copier.write_files(origin, content, destination, unlinked)
                missing = [each for each in missing if each not in linked or each in unlinked]

                save.commit(lambda old: _content_beside(old, content, destination).change())
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
                    return copier_of(DEFAULT).is_whole(opened, file)
            return False

        files = list(content.files.items())
        threads = reading_threads(latency_bound=True) if target.has_pool else 1
        whole = map_in_threads(is_whole, files, threads=threads)
        return [name for (name, _), is_present in zip(files, whole, strict=True) if not is_present]


def _content_beside(current: bytes | None, content: StepContent, path: Location) -> StepContent:
    """Return the content to write where an index is; None: there is none.

    An index of the same save may differ in metrics, which were added to a step here or there after
    it was copied: then the content gets the metrics of both.

    Raises FileExistsError for the index of another save.
    """
    if current is None or current == content.index_bytes:
        return content
    with suppress(CordwoodError):
        merged = copier_of(DEFAULT).with_metrics_of(content, current, name=str(path))
        if merged is not None:
            return merged
    raise FileExistsError(
        f"{path}: there is a checkpoint already, and another one than that to copy; copy "
        "replaces nothing: remove it, or copy to another path"
    )
