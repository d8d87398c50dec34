"""An object of a store as a file whose byte ranges are read by requests."""

from __future__ import annotations

import errno
import io
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from cordwood.errors import CorruptionError, TruncatedError
from cordwood.io.memory_file import MemoryFile
from cordwood.io.open_files import Closable
from cordwood.storage.locations import Url
from cordwood.storage.object_stores.object_store_client import ObjectStore

_REQUEST_BYTES = 8 << 20  # the most of one request


class ObjectFile(Closable):
    """An object of known size, as a file.

    The size is given by the index, and compared with that of the object at each read.

    Raises CorruptionError and TruncatedError if the object is missing or has another size.
    """

    name: str
    size_bytes: int
    latency_bound = True

    def __init__(self, store: ObjectStore, name: str, size_bytes: int) -> None:
        self.name = store.url_of(name)
        self.size_bytes = size_bytes
        self._store = store
        self._key = name

    def read(self, offset: int, length: int) -> bytes:
        return b"".join(self._read(offset, length))

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        total = sum(map(len, views))
        if total > _REQUEST_BYTES:  # of one caller; units of loads are smaller
            at = offset
            for view in views:
                for start in range(0, len(view), _REQUEST_BYTES):
                    part = view[start : start + _REQUEST_BYTES]
                    _scatter(self._read(at, len(part)), [part])
                    at += len(part)
            return
        _scatter(self._read(offset, total), views)

    def map(self) -> NoReturn:
        raise io.UnsupportedOperation(
            f"{self.name}: an object in a store cannot be mapped; load it without mmap=True"
        )

    def _read(self, offset: int, length: int) -> list[memoryview]:
        if offset < 0 or length < 0:
            raise ValueError(f"{self.name}: cannot read {length} bytes at offset {offset}")
        if offset + length > self.size_bytes:
            raise TruncatedError(
                f"{self.name}: expected {length} bytes at offset {offset}, found "
                f"{max(0, self.size_bytes - offset)}: it is shorter than what it promises"
            )
        if not length:
            self._require_size(self._store.size_of(self._key))
            return []
        try:
            part = self._store.read_range(self._key, offset, offset + length)
        except TruncatedError:
            self._require_size(self._store.size_of(self._key))
            raise
        self._require_size(None if part is None else part.object_bytes)
        assert part is not None
        return part.chunks

    def _require_size(self, size_bytes: int | None) -> None:
        if size_bytes is None:
            raise CorruptionError(
                f"{self.name} is missing: the checkpoint is incomplete; copy or save it again"
            )
        if size_bytes != self.size_bytes:
            kind = CorruptionError if size_bytes > self.size_bytes else TruncatedError
            raise kind(
                f"{self.name}: expected {self.size_bytes} bytes, found {size_bytes}: it is damaged "
                "or belongs to another checkpoint; copy or save it again"
            )


def whole_object(url: Url) -> MemoryFile:
    """Return the object at a URL as a file, all of it in memory. Raises FileNotFoundError."""
    store, name = ObjectStore(url.parent), url.name
    size_bytes = store.size_of(name) if name else None
    if size_bytes is None:
        raise FileNotFoundError(errno.ENOENT, "there is nothing", url.address)
    data = bytearray(size_bytes)
    ObjectFile(store, name, size_bytes).read_into(0, [memoryview(data)])
    return MemoryFile(data, url.address)


def _scatter(chunks: Sequence[memoryview], views: Sequence[memoryview]) -> None:
    """Copy chunks, one after another, into views that have the same bytes in all."""
    sources = iter(chunks)
    source = np.empty(0, np.uint8)
    for view in views:
        target = np.frombuffer(view, np.uint8)
        while len(target):
            if not len(source):
                source = np.frombuffer(next(sources), np.uint8)
            size = min(len(source), len(target))
            np.copyto(target[:size], source[:size])
            source, target = source[size:], target[size:]
