"""Files in an object store: byte ranges are read by concurrent requests; objects written whole."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from cordwood.encoding.digests import digest_of, digests_of
from cordwood.errors import CorruptionError, TruncatedError
from cordwood.index import HeaderDigest
from cordwood.io.file_contents import FileContents
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import FilePlan, build_header, segment_offsets
from cordwood.storage.object_store_client import ObjectStore, has_object, storage_error
from cordwood.storage.open_files import Closable
from cordwood.storage.storage_protocol import NewDataFile

_PART_BYTES = 4 << 20  # the size of one request
_READS_IN_FLIGHT = 8  # the most concurrent requests of one call
IN_FLIGHT_BYTES = 256 << 20  # the most bytes in concurrent requests of one call that writes


class ObjectFile(Closable):
    """An object of known size, as a file.

    The size is given by the index, and checked before the first read.

    Raises CorruptionError and TruncatedError if the object is missing or has another size.
    """

    name: str
    size_bytes: int
    latency_bound = True
    _checked = False

    def __init__(self, store: ObjectStore, name: str, size_bytes: int) -> None:
        self.name = store.url_of(name)
        self.size_bytes = size_bytes
        self._store = store
        self._key = name

    def read(self, offset: int, length: int) -> bytes:
        if 0 < length <= _PART_BYTES:
            self._require(offset, length)
            return self._finish(self._store.start_read(self._key, offset, offset + length), offset)
        whole = bytearray(length)
        self.read_into(offset, [memoryview(whole)])
        return bytes(whole)

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        total = sum(map(len, views))
        self._require(offset, total)
        end = offset + total
        parts = ((a, min(a + _PART_BYTES, end)) for a in range(offset, end, _PART_BYTES))
        started: deque[tuple[int, Any]] = deque()
        target = _Scatter(views)
        for a, b in parts:
            if len(started) == _READS_IN_FLIGHT:
                at, future = started.popleft()
                target.put(self._finish(future, at))
            started.append((a, self._store.start_read(self._key, a, b)))
        for at, future in started:
            target.put(self._finish(future, at))

    def map(self) -> NoReturn:
        raise io.UnsupportedOperation(
            f"{self.name}: an object in a store cannot be mapped; load it without mmap=True"
        )

    def _require(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0:
            raise ValueError(f"{self.name}: cannot read {length} bytes at offset {offset}")
        if offset + length > self.size_bytes:
            raise TruncatedError(
                f"{self.name}: expected {length} bytes at offset {offset}, found "
                f"{max(0, self.size_bytes - offset)}: it is shorter than what it promises"
            )
        if not self._checked:
            self._check_size()
            self._checked = True

    def _check_size(self) -> None:
        longer = self._store.has_byte_at(self._key, self.size_bytes)
        if longer is None:
            raise self._missing()
        if longer or (
            self.size_bytes and not self._store.has_byte_at(self._key, self.size_bytes - 1)
        ):
            kind = CorruptionError if longer else TruncatedError
            raise kind(
                f"{self.name}: expected {self.size_bytes} bytes, found "
                f"{'more' if longer else 'fewer'}: it is damaged or belongs to another checkpoint; "
                "copy or save it again"
            )

    def _missing(self) -> CorruptionError:
        return CorruptionError(
            f"{self.name} is missing: the checkpoint is incomplete; copy or save it again"
        )

    def _finish(self, future: Any, offset: int) -> bytes:
        try:
            result = future.result()
        except ValueError as e:
            raise storage_error(e, self.name, f"reading it at byte {offset}") from e
        if not has_object(result, self.name):
            raise self._missing()
        value: bytes = result.value
        return value


class _Scatter:
    """A sequence of byte views that are filled one after another."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views = deque(views)

    def put(self, data: bytes) -> None:
        source = np.frombuffer(data, np.uint8)
        while len(source):
            view = self._views[0]
            count = min(len(view), len(source))
            np.copyto(np.frombuffer(view[:count], np.uint8), source[:count])
            source = source[count:]
            if count < len(view):
                self._views[0] = view[count:]
            else:
                self._views.popleft()


def write_objects(
    store: ObjectStore, files: Iterable[NewDataFile], leaves: Leaves
) -> list[HeaderDigest]:
    """Write objects with several concurrent requests; all are stored when this returns.

    At most IN_FLIGHT_BYTES, or one object, are in flight. While an object is passed to TensorStore,
    which copies it, it is in memory three times. After an exception no more requests are started,
    and those in flight are waited for, so that the caller can delete all objects.

    Returns the digests of their headers.
    """
    started: deque[tuple[str, int, Any]] = deque()
    header_digests: list[HeaderDigest] = []
    failure: BaseException | None = None
    bytes_in_flight = 0

    def finish_oldest() -> None:
        nonlocal bytes_in_flight
        name, size, future = started.popleft()
        bytes_in_flight -= size
        try:
            future.result()
        except ValueError as e:
            raise storage_error(e, store.url_of(name), "writing it") from e

    try:
        for name, plan in files:
            while started and bytes_in_flight + plan.size_bytes > IN_FLIGHT_BYTES:
                finish_oldest()
            data = build_object(plan, leaves)
            header = memoryview(data)[: plan.header_bytes]
            header_digests.append(HeaderDigest(plan.header_bytes, digest_of(header)))
            started.append((name, len(data), store.start_write(name, data)))
            bytes_in_flight += len(data)
            del data, header
    except BaseException as e:  # noqa: BLE001  (raised below, once no request is in flight)
        failure = e
    while started:
        try:
            finish_oldest()
        except BaseException as e:  # noqa: BLE001
            failure = failure or e
    if failure is not None:
        raise failure
    return header_digests


def build_object(plan: FilePlan, leaves: Leaves) -> bytes:
    """Return the bytes of an object: filled with the leaves, hashed and sealed.

    Raises ValueError for a plan whose sizes disagree with each other or with the leaves.
    """
    ends = segment_offsets(plan)
    whole = io.BytesIO()  # `getvalue` returns its memory as bytes, without a copy
    if plan.size_bytes:
        whole.seek(plan.size_bytes - 1)
        whole.write(b"\0")
    with whole.getbuffer() as view:
        if len(view) > plan.header_bytes:
            FileContents(plan.segments, ends, leaves.part).fill(view[plan.header_bytes :], 0, 0)
        if plan.make_header is not None:
            digests = digests_of([view[plan.header_bytes :]], start=plan.header_bytes)
            view[: plan.header_bytes] = build_header(plan, digests)
    return whole.getvalue()
