"""Files in an object store: read by ranges, several at once, and written whole."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np

from cordwood.engine.digest import digests_of
from cordwood.engine.gather import LeafStore
from cordwood.engine.kvstore import ObjectStore, storage_error
from cordwood.errors import TruncatedError
from cordwood.plan.save import FilePlan, LeafBytes

__all__ = ["NewObject", "ObjectFile", "object_bytes", "write_objects"]

_PART_BYTES = 4 << 20  # of one request
_READS_IN_FLIGHT = 8  # of one call
_WRITES_IN_FLIGHT = 4


class ObjectFile:
    """An object of known size, as a file.

    The size comes from the index: that an object is shorter is found when it is read.
    """

    name: str
    size_bytes: int

    def __init__(self, store: ObjectStore, name: str, size_bytes: int) -> None:
        self.name = store.name_of(name)
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

    def close(self) -> None:
        """Nothing to do: an object is not held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _require(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0:
            raise ValueError(f"{self.name}: cannot read {length} bytes at offset {offset}")
        if offset + length > self.size_bytes:
            raise TruncatedError(
                f"{self.name}: expected {length} bytes at offset {offset}, found "
                f"{max(0, self.size_bytes - offset)}: it is shorter than what it promises"
            )

    def _finish(self, future: Any, offset: int) -> bytes:
        try:
            result = future.result()
        except ValueError as e:
            raise storage_error(e, self.name, f"reading it at byte {offset}") from e
        if result.state == "missing":
            raise FileNotFoundError(2, "the checkpoint lacks this object", self.name)
        value: bytes = result.value
        return value


class _Scatter:
    """Byte views, filled one after another."""

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


class NewObject(NamedTuple):
    """An object to write: its plan, and where its leaves come from."""

    name: str
    plan: FilePlan
    fetch: Callable[[int], np.ndarray]


def write_objects(store: ObjectStore, objects: Iterable[NewObject]) -> None:
    """Write objects, a few on their way at any time; all are there when this returns.

    Memory: each on its way takes its size, and one of them three times that for a moment
    (TensorStore copies what it is given). On an exception nothing more is begun; what was begun is
    waited for, so that the caller can delete all of it.
    """
    started: deque[tuple[str, Any]] = deque()
    failure: BaseException | None = None

    def finish_oldest() -> None:
        name, future = started.popleft()
        try:
            future.result()
        except ValueError as e:
            raise storage_error(e, store.name_of(name), "writing it") from e

    try:
        for item in objects:
            while len(started) >= _WRITES_IN_FLIGHT:
                finish_oldest()
            started.append((item.name, store.start_write(item.name, object_bytes(item))))
    except BaseException as e:  # noqa: BLE001  (raised below, once nothing is on its way)
        failure = e
    while started:
        try:
            finish_oldest()
        except BaseException as e:  # noqa: BLE001
            failure = failure or e
    if failure is not None:
        raise failure


def object_bytes(item: NewObject) -> bytes:
    """What an object holds, filled, hashed and sealed."""
    plan = item.plan
    lengths = [s.stop - s.start if isinstance(s, LeafBytes) else len(s.data) for s in plan.segments]
    ends = list(accumulate(lengths, initial=plan.header_bytes))
    if ends[-1] != plan.size_bytes or (plan.seal is None) != (plan.header_bytes == 0):
        raise ValueError(f"{item.name}: its segments end at {ends[-1]}, not at {plan.size_bytes}")
    whole = io.BytesIO()  # gives its memory away as bytes, without a copy
    if plan.size_bytes:
        whole.seek(plan.size_bytes - 1)
        whole.write(b"\0")
    with whole.getbuffer() as view:
        LeafStore(plan.segments, ends, item.fetch).fill(view[plan.header_bytes :], 0, 0)
        if plan.seal is not None:
            digests = digests_of([view[plan.header_bytes :]], start=plan.header_bytes)
            header = plan.seal(digests)
            if len(header) != plan.header_bytes:
                raise ValueError(
                    f"{item.name}: the seal returned {len(header)} bytes for a header of "
                    f"{plan.header_bytes}"
                )
            view[: plan.header_bytes] = header
    return whole.getvalue()
