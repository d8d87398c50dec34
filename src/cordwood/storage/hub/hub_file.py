"""A file of a model on the hub, which is fetched when its contents are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from cordwood.errors import CorruptionError
from cordwood.io.open_files import Closable, LocalFile, ReadableFile, require_range
from cordwood.storage.hub.hub_address import HubAddress
from cordwood.storage.hub.hub_requests import cached_file, fetch_file, read_beginning

_FIRST_BYTES = 128 << 10  # most headers of safetensors files are shorter


class HubFile(Closable):
    """A file of a model on the hub.

    What `read` reads of a large file, such as the header of a safetensors file, is requested as a
    beginning of the file. The first `read_into` or `map`, or the reading of a small file or of all
    of it, fetches the file into the cache of huggingface_hub; from then on it is that local file.

    Args:
        address: its model.
        commit: the hash of the commit.
        path: its path in the model.
        size_bytes: its size, as the hub lists it.
        opener: opens the file in the cache.
    """

    def __init__(
        self,
        address: HubAddress,
        commit: str,
        path: str,
        size_bytes: int,
        opener: Callable[[str], ReadableFile] = LocalFile,
    ) -> None:
        self.name = f"hf://{address.repo_id}@{address.revision}/{path}"
        self.size_bytes = size_bytes
        self._arguments = (address, commit, path)
        self._opener = opener
        self._lock = Lock()
        self._beginning = b""
        self._local: ReadableFile | None = None
        cached = cached_file(*self._arguments, self.name)
        if cached is not None:
            self._local = self._opened(cached)

    @property
    def latency_bound(self) -> bool:  # type: ignore[override]
        """True until the file is in the cache."""
        return self._local is None

    def prepare(self) -> None:
        self._fetched()

    def read(self, offset: int, length: int) -> bytes:
        require_range(self, offset, length)
        is_beginning = offset < _FIRST_BYTES < self.size_bytes != length
        if self._local is not None or not is_beginning:
            return self._fetched().read(offset, length)
        stop = offset + length
        with self._lock:
            if stop > len(self._beginning):
                count = max(stop, _FIRST_BYTES)
                self._beginning = read_beginning(*self._arguments, count, self.name)
            return self._beginning[offset:stop]

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        self._fetched().read_into(offset, views)

    def map(self) -> memoryview:
        return self._fetched().map()

    def close(self) -> None:
        if self._local is not None:
            self._local.close()

    def _fetched(self) -> ReadableFile:
        with self._lock:  # of several threads one fetches it; other files are fetched meanwhile
            if self._local is None:
                self._local = self._opened(fetch_file(*self._arguments, self.name))
                self._beginning = b""
        return self._local

    def _opened(self, path: str) -> ReadableFile:
        """Open the file in the cache. Raises CorruptionError if it has another size."""
        file = self._opener(path)
        if file.size_bytes != self.size_bytes:
            file.close()
            raise CorruptionError(
                f"{path}: expected {self.size_bytes} bytes, as {self.name} has, found "
                f"{file.size_bytes}: the cache is damaged; remove this file, and load again"
            )
        return file
