"""Archives that are written straight to an object store: whole or not there, and never mixed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cordwood
from cordwood.bulk.task_size import task_size
from cordwood.errors import (
    CorruptionError,
    IncompleteCheckpointError,
    LossError,
    NotACheckpointError,
    UnsupportedFormatError,
)
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.testing import assert_trees_equal
from tests.bulk.executors import InlineExecutor
from tests.storage.stores import StoredObjects, new_url, open_url

WEIGHTS = np.random.default_rng(0).standard_normal((640, 1024), np.float32)
TREE: dict[str, Any] = {
    "params": [WEIGHTS.astype(ml_dtypes.bfloat16), {"bias": np.arange(8.0)}],
    "step": 3,
    "name": "run",
}


@pytest.fixture(params=["memory", "moto"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with new_url(request.param, monkeypatch) as new:
        yield f"{new}/archive"


@pytest.fixture
def source(tmp_path: Path) -> str:
    cordwood.save(tmp_path / "source", TREE, metadata={"note": "last"})
    return str(tmp_path / "source")


def convert(source: str, destination: Any, **options: Any) -> cordwood.results.Conversion:
    return cordwood.convert(source, destination, format="zarr", compression="archive", **options)


def test_an_archive_in_a_store_has_the_bytes_of_one_on_a_disk(
    tmp_path: Path, url: str, source: str
) -> None:
    convert(source, tmp_path / "local")
    assert convert(source, url).format == "zarr"
    local = [path for path in (tmp_path / "local").rglob("*") if path.is_file()]
    assert dict(StoredObjects(url)) == {
        str(path.relative_to(tmp_path / "local")): path.read_bytes() for path in local
    }
    assert cordwood.verify(url).unverified_bytes == 0
    assert_trees_equal(cordwood.load(url), TREE)
    with cordwood.open(url) as checkpoint:
        assert checkpoint.metadata == {"note": "last"}
        assert (checkpoint["params/0"][3:5] == TREE["params"][0][3:5]).all()
    convert(url, tmp_path / "back")
    assert_trees_equal(cordwood.load(tmp_path / "back"), TREE)


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_archive_in_a_store_is_never_replaced(url: str, source: str, overwrite: bool) -> None:
    convert(source, url)
    before = dict(StoredObjects(url))
    with pytest.raises(FileExistsError, match="never replaced: write to another path, or remove"):
        convert(source, url, overwrite=overwrite)
    with pytest.raises(FileExistsError, match="never replaced"):
        cordwood.save(url, {"w": 1.5}, format="zarr", compression="zstd")
    with pytest.raises(NotACheckpointError):
        cordwood.save(url, TREE)
    assert dict(StoredObjects(url)) == before


def interrupt(source: str, url: str, monkeypatch: pytest.MonkeyPatch) -> StoredObjects:
    """Convert to a store, and stop before the index; return what is there."""

    def stop(store: ObjectStore, name: str, data: bytes) -> None:
        raise PermissionError(f"stopped before {name}")

    with monkeypatch.context() as patch:
        patch.setattr("cordwood.formats.zarr.write_to_store.write_new_object", stop)
        with pytest.raises(PermissionError, match="stopped before tensorstore"):
            convert(source, url)
    return StoredObjects(url)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_an_interrupted_archive_is_none_and_the_same_call_goes_on(
    url: str, source: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = interrupt(source, url, monkeypatch)
    for name in sorted(objects)[count:]:
        del objects[name]
    remains = {name: open_url(url).read(name, limit_bytes=1 << 30) for name in objects}
    assert len(remains) == count
    with pytest.raises((IncompleteCheckpointError, CorruptionError)):
        cordwood.load(url)
    convert(source, url)
    for name, stored in remains.items():  # its tag says that it was not written again
        assert open_url(url).read(name, limit_bytes=1 << 30) == stored
    assert_trees_equal(cordwood.load(url), TREE)


def test_remains_of_another_tree_are_not_taken_for_those_of_this_one(
    tmp_path: Path, url: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**TREE, "params": [WEIGHTS[::-1].astype(ml_dtypes.bfloat16), {"bias": np.zeros(8)}]}
    cordwood.save(tmp_path / "other", other)
    remains = dict(interrupt(str(tmp_path / "other"), url, monkeypatch))
    with pytest.raises(FileExistsError, match="write to another path"):
        convert(source, url)
    assert dict(StoredObjects(url)) == remains
    convert(source, f"{url}-2")  # the remedy
    assert_trees_equal(cordwood.load(f"{url}-2"), TREE)


def test_other_objects_there_stay(url: str, source: str) -> None:
    objects = StoredObjects(url)
    objects["notes.txt"] = b"mine"
    with pytest.raises(NotACheckpointError, match=r"other objects.*notes\.txt"):
        convert(source, url)
    del objects["notes.txt"]
    objects["else/.zarray"] = b"{}"  # of a tree with other names
    with pytest.raises(NotACheckpointError, match=r"else/\.zarray"):
        convert(source, url)
    assert list(objects) == ["else/.zarray"]


def test_what_a_store_has_no_place_for_is_said_with_a_remedy(
    tmp_path: Path, url: str, source: str
) -> None:
    with pytest.raises(UnsupportedFormatError, match='compression="archive"'):
        cordwood.convert(source, url, format="zarr")
    with pytest.raises(ValueError, match=r"to_prefix= is for .*hold one tree"):
        convert(source, url, to_prefix="ema")
    cordwood.save(tmp_path / "two", {"w": np.ones(3)})
    cordwood.save(tmp_path / "two", {"w": np.zeros(3)}, prefix="ema")
    with pytest.raises(LossError, match="choose a tree with prefix="):
        convert(str(tmp_path / "two"), url)
    assert not StoredObjects(url)
    convert(str(tmp_path / "two"), url, prefix="ema")
    assert not cordwood.load(url)["w"].any()


def test_damage_of_the_source_leaves_no_archive(tmp_path: Path, url: str, source: str) -> None:
    (pack,) = Path(source).glob("*.safetensors")
    data = bytearray(pack.read_bytes())
    data[-(1 << 19)] ^= 1
    pack.write_bytes(data)
    with pytest.raises(CorruptionError, match="digest"):
        convert(source, url)
    assert "tensorstore_index.json" not in StoredObjects(url)


def test_workers_and_jobs_write_the_objects_of_an_archive(
    tmp_path: Path, url: str, source: str
) -> None:
    convert(source, f"{url}-alone")
    alone = dict(StoredObjects(f"{url}-alone"))
    with task_size(1 << 20):
        executor = InlineExecutor()
        convert(source, url, executor=executor)
        assert executor.calls > 1
        assert dict(StoredObjects(url)) == alone
        for i in range(2):
            convert(source, f"{url}-2", part=(i, 2), journal=tmp_path / "j")
        assert "tensorstore_index.json" not in StoredObjects(f"{url}-2")
        del StoredObjects(f"{url}-2")["params/0/0.0"]  # is written again
        convert(source, f"{url}-2", journal=tmp_path / "j")
    assert dict(StoredObjects(f"{url}-2")) == alone
