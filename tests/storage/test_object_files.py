from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from cordwood.encoding.cordwood_metadata import digest_of
from cordwood.errors import CorruptionError, StorageError, TruncatedError
from cordwood.index import HeaderDigest
from cordwood.io.execute_load import execute_load
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import ReadableFile
from cordwood.plan.file_plan import FilePlan, LeafBytes
from cordwood.storage import object_storage
from cordwood.storage.object_storage import ObjectFile, build_object, write_objects
from cordwood.storage.object_store_client import ObjectStore
from cordwood.storage.storage_protocol import NewDataFile
from tests.io.file_plans import expected_file, lay_out, leaves_read_by, load_plan
from tests.storage.stores import KINDS, new_store

HEADER = b"h" * 4096


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return new_store(request.param, tmp_path)


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 255, 2_500_001, dtype=np.uint8),
        rng.random((70, 99)).T,
        np.zeros((0, 3)),
        np.array(258, ">i4"),
    ]


@pytest.mark.parametrize(("gap", "header"), [(b"", b""), (b"gap", HEADER), (b"", b"odd")])
def test_an_object_holds_what_a_file_would(store: ObjectStore, gap: bytes, header: bytes) -> None:
    data = arrays()
    laid = lay_out(data, gap=gap, header=header)
    sealed = write_objects(store, [NewDataFile("a", laid.plan)], Leaves(data))
    assert sealed == [HeaderDigest(len(header), digest_of(header))]
    expected = expected_file(data, gap=gap, header=header)
    assert store.read("a", limit_bytes=1 << 30).data == expected


@pytest.mark.parametrize("part", [1000, 4 << 20])
def test_loading_from_an_object(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(object_storage, "_PART_BYTES", part)
    data = arrays()
    laid = lay_out(data, header=HEADER)
    write_objects(store, [NewDataFile("a", laid.plan)], Leaves(data))
    assert laid.seal is not None
    plan, positions = load_plan(laid, data)
    file: ReadableFile = ObjectFile(store, "a", laid.plan.size_bytes)
    (buffer,) = execute_load(plan, [file], digests=[laid.seal.digests], verify=True)
    for array, at in zip(data, positions, strict=True):
        assert buffer[at : at + array.nbytes].tobytes() == expected_file([array])


def test_any_range(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_storage, "_PART_BYTES", 7)
    monkeypatch.setattr(object_storage, "_READS_IN_FLIGHT", 3)
    whole = bytes(range(50))
    store.start_write("a", whole).result()
    with ObjectFile(store, "a", 50) as file:
        assert file.name == f"{store.url}/a"
        for start in range(0, 51, 5):
            for stop in range(start, 51, 5):
                assert file.read(start, stop - start) == whole[start:stop]
                target = bytearray(stop - start)
                view = memoryview(target)
                file.read_into(start, [view[:0], view[:3], view[3:4], view[4:]])
                assert target == whole[start:stop]
        for offset, length in ((45, 6), (51, 0), (100, 1)):
            with pytest.raises(TruncatedError, match=r"store-|memory"):
                file.read(offset, length)
        with pytest.raises(ValueError, match="cannot read"):
            file.read(-1, 2)


def test_an_object_that_is_not_what_the_index_says(store: ObjectStore) -> None:
    store.start_write("a", b"0123").result()
    assert ObjectFile(store, "a", 4).read(3, 1) == b"3"
    with pytest.raises(TruncatedError, match="/a: expected 5 bytes, found fewer"):
        ObjectFile(store, "a", 5).read(0, 1)
    with pytest.raises(CorruptionError, match="/a: expected 3 bytes, found more"):
        ObjectFile(store, "a", 3).read(0, 1)
    with pytest.raises(CorruptionError, match="/b is missing"):
        ObjectFile(store, "b", 4).read(0, 1)
    file = ObjectFile(store, "a", 4)
    assert file.read(0, 1) == b"0"
    store.delete(["a"])
    with pytest.raises(CorruptionError, match="/a is missing"):
        file.read(0, 1)


def test_an_object_cannot_be_mapped(store: ObjectStore) -> None:
    with pytest.raises(io.UnsupportedOperation, match="without mmap=True"):
        ObjectFile(store, "a", 10).map()


def test_damage_in_an_object_is_found(store: ObjectStore) -> None:
    data = arrays()
    laid = lay_out(data, header=HEADER)
    whole = bytearray(build_object(laid.plan, Leaves(data)))
    whole[2_000_000] ^= 1
    store.start_write("a", bytes(whole)).result()
    assert laid.seal is not None
    plan, _ = load_plan(laid, data)
    with pytest.raises(CorruptionError, match=r"/a: bytes 1052672 to 2101248"):
        execute_load(
            plan,
            [ObjectFile(store, "a", len(whole))],
            digests=[laid.seal.digests],
            verify=True,
        )


def small_file(leaf: int) -> NewDataFile:
    return NewDataFile(f"{leaf}", FilePlan(10, (LeafBytes(leaf, 0, 10),)))


def test_few_objects_are_in_memory_at_once(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_storage, "IN_FLIGHT_BYTES", 25)
    waiting = 0
    most = 0
    start_write = ObjectStore.start_write

    class Counted:
        def __init__(self, future: object) -> None:
            self.future = future

        def result(self) -> object:
            nonlocal waiting
            waiting -= 1
            return self.future.result()  # type: ignore[attr-defined]

    def counted(self: ObjectStore, name: str, data: bytes) -> Counted:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        return Counted(start_write(self, name, data))

    monkeypatch.setattr(ObjectStore, "start_write", counted)
    one = np.ones(10, np.uint8)
    write_objects(store, [small_file(n) for n in range(9)], Leaves([one] * 9))
    assert most == 2
    assert waiting == 0
    assert len(store.names()) == 9


def test_a_failure_begins_no_further_object(store: ObjectStore) -> None:
    one = np.ones(10, np.uint8)
    fetched = []

    def fetch(number: int) -> np.ndarray:
        fetched.append(number)
        if len(fetched) == 3:
            raise StorageError(5, "the leaf is gone")
        return one

    with pytest.raises(StorageError, match="the leaf is gone"):
        write_objects(store, [small_file(n) for n in range(9)], leaves_read_by(fetch, 9))
    assert store.names() == ["0", "1"]


def test_a_plan_that_does_not_add_up(store: ObjectStore) -> None:
    plan = FilePlan(11, (LeafBytes(0, 0, 10),))
    with pytest.raises(ValueError, match=r"a plan of 11 bytes, but .* its segments end at 10"):
        write_objects(store, [NewDataFile("a", plan)], Leaves([np.ones(10, np.uint8)]))
