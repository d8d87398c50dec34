"""The copy of one step: which data files are read, what they are checked against, where they go."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from cordwood.copying.missing_files import missing_files
from cordwood.copying.refuse_copy import refuse_format
from cordwood.errors import CordwoodError, StorageError
from cordwood.formats.detect_directory import format_in
from cordwood.formats.format_protocol import StepContent
from cordwood.formats.load_format import copier_of, storage_of, writer_of
from cordwood.formats.place import Place
from cordwood.formats.table import DEFAULT
from cordwood.index import Source
from cordwood.storage.atomic_file import remove_stale_temporaries
from cordwood.storage.locations import LocalPath, Location
from cordwood.storage.paths import path_exists, real_path, stage_path
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.storage.storage_protocol import MissingDataError, Storage, StorageTransaction
from cordwood.threads.log import log

_ATTEMPTS = 3  # to copy a step whose files are removed at the destination before its index is there


class StepToCopy(NamedTuple):
    """A finished step, and what its destination has, as they were when the copy began.

    Attributes:
        source, destination: the step, and the one to write.
        index_bytes: the index of the source.
        content: the content to write.
        is_there: True if the destination has the index already.
        in_store: True if the destination is in an object store, where files are whole.
        missing: the sizes of the files to copy, by their new names.
    """

    source: Location
    destination: Location
    index_bytes: bytes
    content: StepContent
    is_there: bool
    in_store: bool
    missing: Mapping[str, int]


class Copier:
    """A call of `copy`: what it has copied so far, and the files that later steps need not copy.

    Attributes:
        left_out: a sentence about what the copies lack; "": nothing.
        whole: data files that were checked at the destination, as steps and names.
        written: those among them that this copy has written.
    """

    def __init__(self, *, verify: bool, in_pool: bool) -> None:
        self.left_out = ""
        self.whole: Collection[tuple[Location, str]] = ()
        self.written: Collection[tuple[Location, str]] = ()
        self.steps: list[str] = []
        self.steps_there: list[str] = []
        self.files = 0
        self.copied_bytes = 0
        self.skipped_bytes = 0
        self._verify = verify
        self._in_pool = in_pool
        self._held: dict[str, tuple[Location, Source]] = {}  # by name: the step that has it

    def examine(self, source: Location, destination: Location) -> StepToCopy | None:
        """Return what is to be copied; None if there is no finished step.

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
        if current is None and _is_staged(content, destination):
            stage = LocalPath(stage_path(real_path(str(destination)), _save_id(content)))
            names = self._missing(store_at(stage), content, by_size=False)
        elif current != content.index_bytes:
            writer_of(DEFAULT).refuse_foreign(DEFAULT, destination)
        elif not self._verify:
            names = self._missing(target, content, by_size=True)
        missing = {name: content.files[name].size_bytes for name in names}
        is_there = current == content.index_bytes
        return StepToCopy(source, destination, data, content, is_there, target.has_pool, missing)

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

    def count_files(self, sizes: Mapping[tuple[Location, str], int]) -> None:
        """Count data files of a part of a copy, which commits no step, by steps and names."""
        for key, size_bytes in sizes.items():
            if key in self.written:
                self.files += 1
                self.copied_bytes += size_bytes
            elif key in self.whole:
                self.skipped_bytes += size_bytes

    def _content_of(self, data: bytes, source: Location, target: Storage) -> StepContent:
        return copier_of(DEFAULT).content_of(
            data, source, in_pool=self._in_pool, has_links=target.has_links
        )

    def _copy(
        self, name: str, origin: Storage, content: StepContent, destination: Location
    ) -> None:
        current = storage_of(DEFAULT).store_at(destination).read_index()
        _content_beside(current, content, destination)
        is_there = current == content.index_bytes
        if current is None and _is_staged(content, destination):
            missing = self._copy_to_stage(origin, content, destination)
        else:
            missing = self._copy_in_place(origin, content, destination, is_there=is_there)
        written = {each for each in content.files if (destination, each) in self.written}
        written.update(missing)
        self.files += len(written)
        for each, file in content.files.items():
            if each in written:
                self.copied_bytes += file.size_bytes
            elif not self._holds(each, content):
                self.skipped_bytes += file.size_bytes
        self._held.update({each: (destination, file) for each, file in content.files.items()})
        (self.steps_there if is_there and not written else self.steps).append(name)

    def _copy_to_stage(
        self, origin: Storage, content: StepContent, destination: Location
    ) -> list[str]:
        """Copy to a directory that gets its name at the end; return the files that were copied."""
        store_at = storage_of(DEFAULT).store_at
        block = store_at(destination).transaction(
            others_commit=False, staged=True, resumes=_save_id(content)
        )
        with block as save:
            missing = self._missing(store_at(save.place), content, by_size=False)
            for each in content.files.keys() - set(missing):
                remove_stale_temporaries(str(save.place), each)
            copied = self._link_or_copy(save, origin, content, missing)
            save.commit(lambda old: _content_beside(old, content, destination).change())
        return copied

    def _link_or_copy(
        self,
        save: StorageTransaction,
        origin: Storage,
        content: StepContent,
        names: Sequence[str],
    ) -> list[str]:
        """Link files that an earlier step has, and copy the others; return the copied ones."""
        unlinked = [
            each
            for each in names
            if not self._holds(each, content) or not save.link(str(self._held[each][0]), each)
        ]
        copier_of(DEFAULT).write_files(origin, _files(content, unlinked), save.place)
        return unlinked

    def _copy_in_place(
        self, origin: Storage, content: StepContent, destination: Location, *, is_there: bool
    ) -> list[str]:
        """Copy to a directory that may be there already; return the files that were copied."""
        target, copier = storage_of(DEFAULT).store_at(destination), copier_of(DEFAULT)
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
        copier.write_files(origin, _files(content, unshared), destination)
        if not is_complete or linked:
            if isinstance(destination, LocalPath):  # a copy that was killed may have left some
                for each in content.files.keys() - set(missing):
                    remove_stale_temporaries(str(destination), each)
            with target.transaction(others_commit=False) as save:
                unshared += self._link_or_copy(save, origin, content, linked)
                save.commit(lambda old: _content_beside(old, content, destination).change())
        return unshared

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
        files = {
            name: file
            for name, file in content.files.items()
            if not (name.startswith("../") and self._holds(name, content))
        }
        by_size = by_size or (target.has_pool and not self._verify)
        checked = {n: file for n, file in files.items() if (target.location, n) in self.whole}
        others = {name: file for name, file in files.items() if name not in checked}
        missing = {
            *missing_files(target, checked, by_size=True),
            *missing_files(target, others, by_size=by_size),
        }
        return [name for name in files if name in missing]


def _is_staged(content: StepContent, destination: Location) -> bool:
    """Return True for a new directory that another tool takes for a step from its first file on."""
    is_for_orbax = bool(content.optional_sidecars) and isinstance(destination, LocalPath)
    return is_for_orbax and not path_exists(str(destination))


def _save_id(content: StepContent) -> str:
    """Return the same 16 digits for each copy of a step, by which one goes on from another."""
    return hashlib.blake2b(content.index_bytes, digest_size=8).hexdigest()


def _files(content: StepContent, names: Sequence[str]) -> dict[str, Source]:
    return {name: content.files[name] for name in names}


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
