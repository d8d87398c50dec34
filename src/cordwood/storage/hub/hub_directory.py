"""A model on the hub, or a folder in it, as a directory that formats read."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from cordwood.errors import CorruptionError
from cordwood.io.open_files import Closable, LocalFile, ReadableFile, read_whole
from cordwood.storage.hub.hub_address import HubAddress, parse_hub_url
from cordwood.storage.hub.hub_errors import not_in_cache
from cordwood.storage.hub.hub_file import HubFile
from cordwood.storage.hub.hub_listing import HubListing
from cordwood.storage.hub.hub_requests import fetch_file, list_model
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.readable_directory import FOLDER, SizeOrKind


class HubDirectory(Closable):
    """A folder of a model, at the commit that its revision was when it was listed.

    Raises FileNotFoundError if there is no such folder, and as `model_files`.
    """

    def __init__(self, url: Url) -> None:
        self.name = str(url)
        self._url = url
        self._address: HubAddress = parse_hub_url(url)
        self._listing = model_files(url)
        self._above = f"{self._address.path}/" if self._address.path else ""
        if not self.sizes("."):
            raise _missing(self.name, self._listing)

    def sizes(self, path: str) -> Mapping[str, SizeOrKind]:
        """Return the entries of a folder in it; none if there is no such folder."""
        above = self._above if path == "." else f"{self._above}{path}/"
        entries: dict[str, SizeOrKind] = {}
        for file, size in self._listing.sizes.items():
            if file.startswith(above):
                name, _, below = file.removeprefix(above).partition("/")
                entries[name] = FOLDER if below else size
        return entries

    def folders(self, path: str) -> Sequence[str]:
        return sorted(name for name, size in self.sizes(path).items() if size == FOLDER)

    def has(self, path: str) -> bool:
        return self._above + path in self._listing.sizes or bool(self.sizes(path))

    def names(self) -> Sequence[str]:
        """Return the names of all entries of the folder itself, sorted."""
        return sorted(self.sizes("."))

    def contains(self, name: str) -> bool:
        """Return whether a file of that name is anywhere in it."""
        return any(
            f"/{file}".endswith(f"/{name}")
            for file in self._listing.sizes
            if file.startswith(self._above)
        )

    def read(self, path: str, *, limit_bytes: int) -> bytes:
        """Return the bytes of a small file, which is fetched into the cache."""
        self._require(path)
        name = f"{self.name}/{path}"
        local = fetch_file(self._address, self._listing.commit, self._above + path, name)
        with LocalFile(local) as file:
            return read_whole(file, limit_bytes=limit_bytes)

    def file(self, path: str, size_bytes: int) -> ReadableFile:
        """Return a file. Raises CorruptionError if it is missing, or the hub lists another size."""
        self._require(path)
        listed = self._listing.sizes[self._above + path]
        if listed != size_bytes:
            raise CorruptionError(
                f"{self.name}/{path}: expected {size_bytes} bytes, found {listed}: it is of "
                "another checkpoint; upload the whole directory again"
            )
        return HubFile(self._address, self._listing.commit, self._above + path, size_bytes)

    def owning_file(self, path: str, size_bytes: int) -> ReadableFile:
        return self.file(path, size_bytes)

    def open(self, name: str, opener: Callable[[str], ReadableFile] = LocalFile) -> ReadableFile:
        """Return a file in it, of the size that the hub lists; `opener` opens it in the cache.

        Raises FileNotFoundError; StorageError if it may be there, but the hub cannot be reached.
        """
        path = self._above + name
        size = self._listing.sizes.get(path)
        if size is None:
            raise _missing(f"{self.name}/{name}", self._listing)
        return HubFile(self._address, self._listing.commit, path, size, opener)

    def folder(self, path: str) -> Self:
        if not self.sizes(path):
            self._require(path)
        return type(self)(replace(self._url, listing=self._listing).child(path))

    def _require(self, path: str) -> None:
        """Raise CorruptionError for a file that is missing, StorageError if that is not known."""
        if self._above + path in self._listing.sizes:
            return
        if self._listing.error is not None:
            raise not_in_cache(f"{self.name}/{path}", self._listing.error)
        raise CorruptionError(
            f"{self.name}/{path} is missing: the checkpoint is incomplete; upload it again"
        )


def model_files(url: Url) -> HubListing:
    """Return the files of the model of a URL, which is listed unless it was. Raises as there."""
    return url.listing or list_model(parse_hub_url(url), str(url))


def locate_on_hub(url: Url) -> Location:
    """Return the path in the cache of the file that a URL names; for a folder, the listed URL.

    Raises as `model_files` and `fetch_file`, and FileNotFoundError.
    """
    address, listing = parse_hub_url(url), model_files(url)
    if address.path in listing.sizes:
        return LocalPath(fetch_file(address, listing.commit, address.path, str(url)))
    if address.path and not any(file.startswith(f"{address.path}/") for file in listing.sizes):
        raise _missing(str(url), listing)
    return replace(url, listing=listing)


def _missing(name: str, listing: HubListing) -> OSError:
    """Return the error for what is not listed: it may be there if the hub was not reached."""
    if listing.error is not None:
        return not_in_cache(name, listing.error)
    return FileNotFoundError(errno.ENOENT, "the model has no such file or folder", name)
