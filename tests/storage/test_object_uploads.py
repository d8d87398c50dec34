"""Uploads of data objects: what arrives, what is held in memory meanwhile, and what fails."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import obstore
import pytest
from obstore import exceptions

from cordwood.encoding.digests import digest_of
from cordwood.errors import StorageError
from cordwood.index import Digests, HeaderDigest
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.memory.buffers import allocate_bytes
from cordwood.io.progress import METER
from cordwood.plan.file_plan import FilePlan, LeafBytes, leaves_of
from cordwood.storage import write_units
from cordwood.storage.object_stores import hashed_contents, object_uploads, upload_buffers
from cordwood.storage.object_stores.list_objects import object_names
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_uploads import PART_BYTES, upload_objects
from cordwood.storage.storage_protocol import NewDataFile
from cordwood.threads.stop_check import stop_check
from tests.io.file_plans import expected_file, lay_out, leaves_read_by
from tests.storage.stores import KINDS, new_url, open_url
from tests.threads import until

MIB = 1 << 20
HEADER = b"h" * 4096


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with new_url(request.param, monkeypatch) as url:
        yield open_url(url)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let parts, blocks and the units of hashing be small; return the size of a part."""
    monkeypatch.setattr(object_uploads, "PART_BYTES", 10_000)
    monkeypatch.setattr(object_uploads, "BLOCK_BYTES", 1_500)
    monkeypatch.setattr(hashed_contents, "BLOCK_BYTES", 1_500)
    monkeypatch.setattr(write_units, "BLOCK_BYTES", 1_500)
    monkeypatch.setattr(hashed_contents, "_UNIT_BYTES", 6_000)
    return 10_000


@pytest.fixture(autouse=True)
def nothing_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Every thread of uploads has ended after a test, and the event loop has nothing to say."""
    yield
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    until(lambda: "fill_all" not in running_functions())


def running_functions() -> set[str]:
    """Return the names of the functions that all threads are in."""
    return {
        frame.f_code.co_name
        for top in sys._current_frames().values()
        for frame, _ in traceback.walk_stack(top)
    }


class Buffers:
    """The buffers that were made, as long as they exist."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self._alive: list[weakref.ref[Any]] = []

        def counted(size_bytes: int, *, alignment: int) -> np.ndarray:
            buffer = allocate_bytes(size_bytes, alignment=alignment)
            self.made += 1
            self._alive.append(weakref.ref(buffer))
            return buffer

        monkeypatch.setattr(upload_buffers, "allocate_bytes", counted)

    def alive(self) -> int:
        gc.collect()
        return sum(ref() is not None for ref in self._alive)


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> Buffers:
    return Buffers(monkeypatch)


def elements(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, size, dtype=np.uint8)


def upload(store: ObjectStore, arrays: Sequence[np.ndarray], header: bytes = b"") -> bytes:
    """Upload one object; return what is stored."""
    laid = lay_out(arrays, header=header)
    (sealed,) = upload_objects(store, [NewDataFile("a", laid.plan)], Leaves(arrays))
    assert sealed == HeaderDigest(len(header), digest_of(header))
    return content(store, "a")


def content(store: ObjectStore, name: str) -> bytes:
    data = store.read(name, limit_bytes=1 << 30).data
    assert data is not None
    return data


def one_leaf(name: str, leaf: int, size: int) -> NewDataFile:
    return NewDataFile(name, FilePlan(size, (LeafBytes(leaf, 0, size),)))


def mixed() -> list[np.ndarray]:
    """Return arrays of several dtypes, strides and byte orders, one without elements."""
    rng = np.random.default_rng(0)
    return [
        elements(2_500_001),
        rng.random((70, 99)).T,
        np.zeros((0, 3)),
        np.array(258, ">i4"),
    ]


@pytest.mark.parametrize(("gap", "header"), [(b"", b""), (b"gap", HEADER), (b"", b"odd")])
@pytest.mark.parametrize("part_bytes", [PART_BYTES, MIB, 700_001])
def test_an_object_holds_what_a_file_would(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, gap: bytes, header: bytes, part_bytes: int
) -> None:
    monkeypatch.setattr(object_uploads, "PART_BYTES", part_bytes)
    data = mixed()
    laid = lay_out(data, gap=gap, header=header)
    sealed = upload_objects(store, [NewDataFile("a", laid.plan)], Leaves(data))
    assert sealed == [HeaderDigest(len(header), digest_of(header))]
    assert content(store, "a") == expected_file(data, gap=gap, header=header)


@pytest.mark.parametrize("header_bytes", [0, 1, 1_499, 1_500, 4_096, 9_999, 10_000, 10_001, 25_003])
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_sizes_about_a_whole_number_of_parts(
    store: ObjectStore, small_parts: int, header_bytes: int, parts: int, more: int
) -> None:
    size = parts * small_parts + more - header_bytes
    data = [elements(size)] if size > 0 else []
    header = bytes(elements(header_bytes, 1))
    assert upload(store, data, header) == expected_file(data, header=header)


@pytest.mark.parametrize("size", [0, 1])
def test_an_object_with_hardly_a_byte(store: ObjectStore, size: int) -> None:
    assert upload(store, [elements(size)]) == bytes(elements(size))


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_parts_of_the_real_size(store: ObjectStore, more: int) -> None:
    data = [elements(2 * PART_BYTES + more - len(HEADER))]
    assert upload(store, data, HEADER) == expected_file(data, header=HEADER)


def test_a_header_larger_than_a_part(store: ObjectStore) -> None:
    header = bytes(elements(PART_BYTES + 100, 1))
    data = [elements(3 * MIB), elements(5, 2)]
    assert upload(store, data, header) == expected_file(data, header=header)


def test_a_part_is_sent_once_and_a_small_object_by_one_request(
    store: ObjectStore, small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put_async
    sent: list[tuple[bool, int]] = []

    async def counted(store: Any, key: str, data: Any, **options: Any) -> Any:
        if not options["use_multipart"]:
            sent.append((False, len(data)))
            return await put(store, key, data, **options)

        async def parts() -> Any:
            async for part in data:
                sent.append((True, len(part)))
                yield part

        return await put(store, key, parts(), **options)

    monkeypatch.setattr(obstore, "put_async", counted)
    upload(store, [elements(small_parts)])
    assert sent == [(False, small_parts)]
    sent.clear()
    upload(store, [elements(2 * small_parts + 1)])
    assert sent == [(True, small_parts), (True, small_parts), (True, 1)]


def test_more_than_all_buffers_together(store: ObjectStore, buffers: Buffers) -> None:
    """Two objects, and one part more than there are buffers."""
    half = (object_uploads.BUFFERS + 1) * PART_BYTES // 2
    sizes = [half + 1, half - 1]
    arrays = [np.resize(elements(MIB, seed), size) for seed, size in enumerate(sizes)]
    files = [one_leaf(str(leaf), leaf, size) for leaf, size in enumerate(sizes)]
    upload_objects(store, files, Leaves(arrays))
    for leaf, array in enumerate(arrays):
        assert content(store, str(leaf)) == array.tobytes()
    assert 2 <= buffers.made <= object_uploads.BUFFERS
    del array
    until(lambda: buffers.alive() == 0)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("count", [8, 9, 12])
def test_uploads_share_few_buffers(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, buffers: Buffers, count: int
) -> None:
    """Four objects at once, each with two parts ahead: eight buffers are enough to go on."""
    monkeypatch.setattr(object_uploads, "BUFFERS", count)
    arrays = [elements(70_003 + leaf, leaf) for leaf in range(9)]
    files = [one_leaf(str(leaf), leaf, array.size) for leaf, array in enumerate(arrays)]
    upload_objects(store, files, Leaves(arrays))
    for leaf, array in enumerate(arrays):
        assert content(store, str(leaf)) == array.tobytes()
    assert buffers.made <= count
    until(lambda: buffers.alive() == 0)


def test_a_buffer_is_not_filled_again_before_its_part_is_stored(
    small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that keeps the first two parts for long, and looks at them last."""
    store = open_url("memory://tests-of-uploads/kept")
    kept: list[memoryview] = []

    async def late(store: Any, key: str, data: Any, **_: Any) -> None:
        async for part in data:
            kept.append(part)
            await asyncio.sleep(0)
            if len(kept) == 2:
                break
        await asyncio.sleep(0.01)
        whole = b"".join(kept)
        kept.clear()
        async for part in data:
            whole += bytes(part)
            del part
        await put(store, key, whole, use_multipart=False)

    put = obstore.put_async
    monkeypatch.setattr(obstore, "put_async", late)
    monkeypatch.setattr(ObjectStore, "bytes_to_send", lambda self, data: data)
    monkeypatch.setattr(object_uploads, "BUFFERS", 7)
    array = elements(30 * small_parts)
    upload_objects(store, [one_leaf("a", 0, array.size)], Leaves([array]))
    assert content(store, "a") == array.tobytes()


class Progress:
    """A meter that adds up."""

    def __init__(self) -> None:
        self.done = 0
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        with self._lock:
            self.done += count


@pytest.mark.parametrize("size", [500, 35_001])
def test_progress_counts_each_byte_once(store: ObjectStore, small_parts: int, size: int) -> None:
    meter: Any = Progress()
    token = METER.set(meter)
    try:
        upload(store, [elements(size)])
    finally:
        METER.reset(token)
    assert meter.done == size
    assert (size > small_parts) == (size == 35_001)


# Leaves


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [500, 35_001])
def test_a_leaf_is_released_once_its_object_is_stored(store: ObjectStore, size: int) -> None:
    arrays: list[np.ndarray] = [elements(size), elements(size)]
    alive = [weakref.ref(array) for array in arrays]
    leaves = Leaves(arrays)
    arrays.clear()
    upload_objects(store, [one_leaf("0", 0, size)], leaves)
    gc.collect()
    assert [ref() is not None for ref in alive] == [False, True]
    upload_objects(store, [one_leaf("1", 1, size)], leaves)
    gc.collect()
    assert [ref() is not None for ref in alive] == [False, False]


@pytest.mark.usefixtures("small_parts")
def test_a_leaf_in_two_objects_is_released_after_both(store: ObjectStore) -> None:
    arrays = [elements(60_000)]
    whole = arrays[0].tobytes()
    alive = weakref.ref(arrays[0])
    leaves = Leaves(arrays)
    arrays.clear()
    files = [
        NewDataFile("0", FilePlan(25_000, (LeafBytes(0, 0, 25_000),))),
        NewDataFile("1", FilePlan(35_000, (LeafBytes(0, 25_000, 60_000),))),
    ]
    leaves.expect([leaf for file in files for leaf in leaves_of(file.plan.segments)])
    upload_objects(store, files[:1], leaves)
    gc.collect()
    assert alive() is not None
    upload_objects(store, files[1:], leaves)
    gc.collect()
    assert alive() is None
    assert content(store, "0") + content(store, "1") == whole


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [500, 35_001])
@pytest.mark.parametrize("at", [0, -1])
def test_a_leaf_that_changes_while_it_is_saved(
    store: ObjectStore, buffers: Buffers, size: int, at: int
) -> None:
    """It changes after it was hashed, when the header is made."""
    array = elements(size)

    def change(_: Digests) -> bytes:
        array[at] ^= 1
        return HEADER

    plan = FilePlan(4096 + size, (LeafBytes(0, 0, size),), 4096, change)
    with pytest.raises(StorageError, match="a leaf changed while it was saved") as caught:
        upload_objects(store, [NewDataFile("a", plan)], Leaves([array]))
    assert f"{store.url}/a" in str(caught.value)
    assert object_names(store) == []
    del caught
    until(lambda: buffers.alive() == 0)


def test_a_plan_that_does_not_add_up(store: ObjectStore) -> None:
    plan = FilePlan(11, (LeafBytes(0, 0, 10),))
    with pytest.raises(ValueError, match=r"a plan of 11 bytes, but .* its segments end at 10"):
        upload_objects(store, [NewDataFile("a", plan)], Leaves([np.ones(10, np.uint8)]))
    assert object_names(store) == []


@pytest.mark.parametrize("size", [500, 35_001])
def test_a_leaf_with_fewer_bytes_than_planned(
    store: ObjectStore, small_parts: int, size: int
) -> None:
    with pytest.raises(ValueError, match=f"leaf 0: expected bytes .* found {size - 1} in all"):
        upload_objects(store, [one_leaf("a", 0, size)], Leaves([elements(size - 1)]))
    assert object_names(store) == []


# Failures


def test_a_failure_begins_no_further_object(store: ObjectStore) -> None:
    one = np.ones(10, np.uint8)
    lock = threading.Lock()
    fetched: list[int] = []

    def fetch(number: int) -> np.ndarray:
        with lock:
            fetched.append(number)
            if number == 2:
                raise StorageError(5, "the leaf is gone")
        return one

    files = [one_leaf(str(leaf), leaf, 10) for leaf in range(200)]
    with pytest.raises(StorageError, match="the leaf is gone"):
        upload_objects(store, files, leaves_read_by(fetch, 200))
    assert len(set(fetched)) < 200
    assert "2" not in object_names(store)


class Stuck:
    """A store in which uploads of certain names fail once all others are under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, others: int) -> None:
        self.under_way = threading.Semaphore(0)
        self.given_up: list[str] = []
        self._others = others
        self._put = obstore.put_async
        monkeypatch.setattr(obstore, "put_async", self.put)

    async def put(self, store: Any, key: str, data: Any, **options: Any) -> Any:
        name = key.rpartition("/")[2]
        if name == "bad":
            while self._others and self.under_way.acquire(blocking=False):
                self._others -= 1
            while self._others:
                await asyncio.sleep(0.001)
                self._others -= self.under_way.acquire(blocking=False)
            raise exceptions.GenericError("status: 400 Bad Request: it is bad")
        try:
            async for _ in data:
                self.under_way.release()
                while True:  # it never has room for another part
                    await asyncio.sleep(0.001)
                    await self._look(data)
        except BaseException:
            self.given_up.append(name)
            raise

    async def _look(self, data: Any) -> None:
        """Take the next part, as obstore does when one has arrived; it tells of the failure."""
        await data.__anext__()


def test_a_failure_gives_the_other_uploads_up(
    small_parts: int, monkeypatch: pytest.MonkeyPatch, buffers: Buffers
) -> None:
    store = open_url("memory://tests-of-uploads/given-up")
    stuck = Stuck(monkeypatch, others=3)
    arrays = [elements(100 * small_parts, leaf) for leaf in range(3)] + [elements(50)]
    names = ["0", "1", "2", "bad"]
    files = [one_leaf(name, leaf, arrays[leaf].size) for leaf, name in enumerate(names)]
    with pytest.raises(StorageError, match="it is bad") as caught:
        upload_objects(store, files, Leaves(arrays))
    assert sorted(stuck.given_up) == ["0", "1", "2"]
    assert object_names(store) == []
    del caught
    until(lambda: buffers.alive() == 0)


def test_an_upload_that_hangs_is_cancelled(
    small_parts: int, monkeypatch: pytest.MonkeyPatch, buffers: Buffers
) -> None:
    """A store that neither takes a part nor ends: it is waited for, but not for long."""
    from cordwood.storage.object_stores import multipart_upload

    monkeypatch.setattr(multipart_upload, "_ABORT_SECONDS", 0.01)
    store = open_url("memory://tests-of-uploads/hangs")
    hanging = threading.Event()
    cancelled = threading.Event()

    async def hang(*_: Any, **__: Any) -> None:
        hanging.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr(obstore, "put_async", hang)

    class Interrupted(BaseException):
        pass

    def check() -> None:
        if hanging.is_set():
            raise Interrupted

    array = elements(5 * small_parts)
    with pytest.raises(Interrupted), stop_check(check):
        upload_objects(store, [one_leaf("a", 0, array.size)], Leaves([array]))
    assert cancelled.wait(30)
    until(lambda: buffers.alive() == 0)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [500, 35_001])
def test_an_interrupt_ends_an_upload(store: ObjectStore, buffers: Buffers, size: int) -> None:
    """It comes when the leaf is hashed, or when the header is made; nothing is stored."""

    class Interrupted(BaseException):
        pass

    made = threading.Event()

    def header(_: Digests) -> bytes:
        made.set()
        return HEADER

    def check(when: Callable[[], bool]) -> Callable[[], None]:
        def raise_it() -> None:
            if when():
                raise Interrupted

        return raise_it

    plan = FilePlan(4096 + size, (LeafBytes(0, 0, size),), 4096, header)
    with pytest.raises(Interrupted), stop_check(check(lambda: True)):
        upload_objects(store, [NewDataFile("a", plan)], Leaves([elements(size)]))
    assert not made.is_set()
    assert object_names(store) == []
    until(lambda: buffers.alive() == 0)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [500, 35_001])
def test_an_upload_whose_answer_is_lost_has_succeeded(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    put = obstore.put_async

    async def lose(*args: Any, **options: Any) -> None:
        await put(*args, **options)
        raise exceptions.GenericError("status: 400 Bad Request")

    monkeypatch.setattr(obstore, "put_async", lose)
    array = elements(size)
    upload_objects(store, [one_leaf("a", 0, size)], Leaves([array]))
    assert content(store, "a") == array.tobytes()
