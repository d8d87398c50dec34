"""A directory of data files and an index in a model on the hub, which can only be read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

from cordwood.index import Source
from cordwood.io.open_files import ReadableFile
from cordwood.plan.cells import FileSizes
from cordwood.storage.hub.hub_address import hub_is_read_only
from cordwood.storage.hub.hub_directory import HubDirectory
from cordwood.storage.locations import Url
from cordwood.storage.storage_protocol import (
    NamingRules,
    OptionalSidecarsOf,
    SidecarsOf,
    StorageTransaction,
)


class HubStorage:
    """A folder of a model, at the commit that its revision was when it was first read.

    A commit never changes: there are no saves, locks or files of killed saves.
    """

    has_links = False
    has_pool = False

    def __init__(self, url: Url, rules: NamingRules) -> None:
        self.name = str(url)
        self.location = url
        self._rules = rules
        self._directory = HubDirectory(url)

    @property
    def file_sizes(self) -> FileSizes:
        raise hub_is_read_only(self.location)

    def read_index(self) -> bytes | None:
        return self.read_sidecar(self._rules.index_name)

    def read_sidecar(self, name: str) -> bytes | None:
        if not self._directory.has(name):
            return None
        return self._directory.read(name, limit_bytes=self._rules.max_index_bytes)

    def read_optional_sidecar(self, name: str) -> bytes | None:
        return self.read_sidecar(name)

    def open(self, sources: Sequence[Source]) -> list[ReadableFile]:
        return [self._directory.file(source.name, source.size_bytes) for source in sources]

    def missing(self, names: Collection[str]) -> list[str]:
        return [name for name in names if not self._directory.has(name)]

    def names(self) -> list[str]:
        return [*self._directory.names()]

    def transaction(
        self,
        *,
        others_commit: bool,
        timeout_seconds: float | None = None,
        page_cache: bool = False,
        staged: bool = False,
    ) -> AbstractContextManager[StorageTransaction]:
        del others_commit, timeout_seconds, page_cache, staged
        raise hub_is_read_only(self.location)

    def flush(self) -> None:
        """Do nothing: the hub holds whole commits."""

    def wait_for_commit(self, is_whole: Callable[[], bool]) -> None:
        """Do nothing: what is there stays."""

    def collect(
        self,
        *,
        dry_run: bool,
        sidecars_of: SidecarsOf | None = None,
        optional_sidecars_of: OptionalSidecarsOf | None = None,
    ) -> NoReturn:
        del dry_run, sidecars_of, optional_sidecars_of
        raise hub_is_read_only(self.location)
