"""The base of storages that can only be read: what saves, locks and cleaning would need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NoReturn

from cordwood.errors import UnsupportedFormatError
from cordwood.plan.cells import FileSizes
from cordwood.storage.removal.list_tree import Listing
from cordwood.storage.storage_protocol import (
    OptionalSidecarsOf,
    Sidecar,
    SidecarsOf,
    StorageTransaction,
)


class ReadOnlyStorage:
    """The methods of a `Storage` that change nothing here, or raise the error of `read_only`."""

    has_links = False
    has_pool = False

    def read_only(self) -> UnsupportedFormatError:
        """Return the error for a call that would write."""
        raise NotImplementedError

    def read_sidecar(self, name: str) -> bytes | None:
        raise NotImplementedError

    @property
    def file_sizes(self) -> FileSizes:
        raise self.read_only()

    def read_optional_sidecar(self, name: str) -> Sidecar | None:
        return self.read_sidecar(name)

    def transaction(
        self,
        *,
        others_commit: bool,
        timeout_seconds: float | None = None,
        page_cache: bool = False,
        staged: bool = False,
        replaces: Listing | None = None,
        resumes: str = "",
    ) -> AbstractContextManager[StorageTransaction]:
        del others_commit, timeout_seconds, page_cache, staged, replaces, resumes
        raise self.read_only()

    def flush(self) -> None:
        """Do nothing: what can be read was committed by others."""

    def wait_for_commit(self, is_whole: Callable[[], bool]) -> None:
        """Do nothing: what can be read is committed."""

    def collect(
        self,
        *,
        dry_run: bool,
        sidecars_of: SidecarsOf | None = None,
        optional_sidecars_of: OptionalSidecarsOf | None = None,
    ) -> NoReturn:
        del dry_run, sidecars_of, optional_sidecars_of
        raise self.read_only()
