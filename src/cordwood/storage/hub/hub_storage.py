"""A directory of data files and an index in a model on the hub, which can only be read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cordwood.errors import UnsupportedFormatError
from cordwood.index import Source
from cordwood.io.open_files import ReadableFile
from cordwood.storage.hub.hub_address import hub_is_read_only
from cordwood.storage.hub.hub_directory import HubDirectory
from cordwood.storage.locations import Url
from cordwood.storage.read_only_storage import ReadOnlyStorage
from cordwood.storage.storage_protocol import NamingRules


class HubStorage(ReadOnlyStorage):
    """A folder of a model, at the commit that its revision was when it was first read.

    A commit never changes: there are no saves, locks or files of killed saves.
    """

    def __init__(self, url: Url, rules: NamingRules) -> None:
        self.name = str(url)
        self.location = url
        self._rules = rules
        self._directory = HubDirectory(url)

    def read_only(self) -> UnsupportedFormatError:
        return hub_is_read_only(self.location)

    def read_index(self) -> bytes | None:
        return self.read_sidecar(self._rules.index_name)

    def read_sidecar(self, name: str) -> bytes | None:
        if not self._directory.has(name):
            return None
        return self._directory.read(name, limit_bytes=self._rules.max_index_bytes)

    def open(self, sources: Sequence[Source]) -> list[ReadableFile]:
        return [self._directory.file(source.name, source.size_bytes) for source in sources]

    def missing(self, names: Collection[str]) -> list[str]:
        return [name for name in names if not self._directory.has(name)]

    def names(self) -> list[str]:
        return [*self._directory.names()]
