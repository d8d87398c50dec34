"""The task of a copy: some data files of one step."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.copying.missing_files import missing_files
from cordwood.formats.load_format import copier_of, storage_of
from cordwood.formats.table import DEFAULT
from cordwood.index import Source
from cordwood.storage.locations import Location


class CopyFiles(NamedTuple):
    """The copy of data files, each of which appears whole under its name.

    Attributes:
        source: the step that they are of.
        destination: the step to write.
        files: the files, by their new names.
        by_size: True if a file of the right size is whole.
    """

    source: Location
    destination: Location
    files: tuple[tuple[str, Source], ...]
    by_size: bool

    @property
    def size_bytes(self) -> int:
        return sum([file.size_bytes for _, file in self.files])

    def run(self) -> list[str]:
        """Copy the files that are missing, and return their names."""
        storage = storage_of(DEFAULT)
        target = storage.store_at(self.destination)
        files = dict(self.files)
        names = missing_files(target, files, by_size=self.by_size)
        origin = storage.store_at(self.source)
        missing = {name: files[name] for name in names}
        copier_of(DEFAULT).write_files(origin, missing, self.destination)
        return names

    def to_json(self, result: list[str]) -> list[str]:
        return result
