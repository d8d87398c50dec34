from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest

from cordwood.errors import CorruptionError, TruncatedError
from cordwood.io.execute_load import execute_load
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import ReadableFile
from cordwood.storage.object_stores import object_file
from cordwood.storage.object_stores.object_file import ObjectFile
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_uploads import upload_objects
from cordwood.storage.storage_protocol import NewDataFile
from tests.io.file_plans import expected_file, lay_out, load_plan
from tests.storage.stores import KINDS, new_url, open_url

HEADER = b"h" * 4096


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with new_url(request.param, monkeypatch) as url:
        yield open_url(url)


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 255, 2_500_001, dtype=np.uint8),
        rng.random((70, 99)).T,
        np.zeros((0, 3)),
        np.array(258, ">i4"),
    ]


@pytest.mark.parametrize("part", [100_000, 4 << 20])
def test_loading_from_an_object(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(object_file, "_REQUEST_BYTES", part)
    data = arrays()
    laid = lay_out(data, header=HEADER)
    upload_objects(store, [NewDataFile("a", laid.plan)], Leaves(data))
    assert laid.seal is not None
    plan, positions = load_plan(laid, data)
    file: ReadableFile = ObjectFile(store, "a", laid.plan.size_bytes)
    (buffer,) = execute_load(plan, [file], digests=[laid.seal.digests], verify=True)
    for array, at in zip(data, positions, strict=True):
        assert buffer[at : at + array.nbytes].tobytes() == expected_file([array])


def test_any_range_of_an_object_is_read(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_file, "_REQUEST_BYTES", 7)
    whole = bytes(range(50))
    store.write("a", whole)
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
            with pytest.raises(TruncatedError, match=str(store.url)):
                file.read(offset, length)
        with pytest.raises(ValueError, match="cannot read"):
            file.read(-1, 2)


def test_an_object_that_is_not_what_the_index_says(store: ObjectStore) -> None:
    store.write("a", b"0123")
    assert ObjectFile(store, "a", 4).read(3, 1) == b"3"
    with pytest.raises(TruncatedError, match="/a: expected 5 bytes, found 4"):
        ObjectFile(store, "a", 5).read(0, 1)
    with pytest.raises(CorruptionError, match="/a: expected 3 bytes, found 4"):
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
    whole = bytearray(expected_file(data, header=HEADER))
    upload_objects(store, [NewDataFile("a", laid.plan)], Leaves(data))
    assert store.read("a", limit_bytes=1 << 30).data == bytes(whole)
    whole[2_000_000] ^= 1
    store.write("a", bytes(whole))
    assert laid.seal is not None
    plan, _ = load_plan(laid, data)
    with pytest.raises(CorruptionError, match=r"/a: bytes 1052672 to 2101248"):
        execute_load(
            plan,
            [ObjectFile(store, "a", len(whole))],
            digests=[laid.seal.digests],
            verify=True,
        )
