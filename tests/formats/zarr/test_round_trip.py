"""save, load, open, verify and gc of directories of the zarr layout."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eformer.serialization import serialization as eformer
from hypothesis import given, settings

import cordwood
from cordwood import tree_serialize_leaves
from cordwood.errors import (
    CorruptionError,
    IncompleteCheckpointError,
    MismatchError,
    NotACheckpointError,
    PrefixError,
)
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.staging.staging_directory import StagingDirectory
from cordwood.testing import assert_trees_equal
from cordwood.testing import strategies as some
from tests.formats.zarr.zarr_trees import stored_index
from tests.shardings import SHARDINGS, sharding

pytestmark = pytest.mark.usefixtures("cut_small_arrays")

Compression = Literal["zstd", "blosc", "archive"] | None
EVERY: list[Compression] = [None, "zstd", "blosc", "archive"]


@pytest.mark.parametrize("compression", EVERY)
@given(tree=some.trees("safetensors"))
@settings(max_examples=60)
def test_any_tree_comes_back(compression: Compression, tree: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        cordwood.save(path, {"root": tree}, format="zarr", compression=compression)
        cordwood.verify(path)
        assert_trees_equal(cordwood.load(path, like={"root": tree}), {"root": tree})


EXPECTED = {
    str(dtype): np.random.default_rng(0).integers(-8, 8, (24, 48, 16)).astype(jnp.dtype(dtype))
    for dtype in ("float32", "bfloat16", "int4")
}


@pytest.mark.parametrize("number", range(len(SHARDINGS)), ids=lambda n: str(SHARDINGS[n]))
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_saved_under_one_sharding_and_loaded_under_others(
    tmp_path: Path, number: int, compression: Compression
) -> None:
    path = tmp_path / "c"
    tree = jax.device_put(EXPECTED, SHARDINGS[number])
    cordwood.save(path, tree, format="zarr", compression=compression)
    for step in (0, 1, 11):  # each sharding meets three, itself among them
        expectation = SHARDINGS[(number + step) % len(SHARDINGS)]
        loaded = cordwood.load(path, shardings=expectation)
        for dtype, expected in EXPECTED.items():
            array = loaded[dtype]
            assert array.sharding == expectation
            assert array.dtype == expected.dtype
            for shard in array.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])
    with cordwood.open(path) as checkpoint:
        part = checkpoint["bfloat16"][5:17, 3, ::-2]
        np.testing.assert_array_equal(part, EXPECTED["bfloat16"][5:17, 3, ::-2])


def test_the_layout_of_what_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "c"
    cordwood.save(path, {"w": np.ones(3)}, format="zarr", metadata={"step": "1"})
    cordwood.save(path, {"w": np.zeros(3)})
    assert (path / "w" / "0").exists()
    with pytest.raises(NotACheckpointError, match="is a checkpoint of the format 'zarr': save"):
        cordwood.save(path, {}, format="packs")
    cordwood.save(tmp_path / "p", {"w": np.ones(3)})
    with pytest.raises(NotACheckpointError, match="is a checkpoint of the format 'packs'"):
        cordwood.save(tmp_path / "p", {}, format="zarr")
    with pytest.raises(ValueError, match='compression= is for format="zarr"'):
        cordwood.save(tmp_path / "p", {}, compression="zstd")
    with pytest.raises(ValueError, match='compression= is for format="zarr"'):
        cordwood.save(tmp_path / "f.safetensors", {}, compression="zstd")


def test_trees_of_one_directory_have_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "c"
    cordwood.save(path, {"w": np.ones(3)}, format="zarr", prefix="model", metadata={"a": "b"})
    assert cordwood.load(path)["w"].tolist() == [1, 1, 1]  # the only one
    cordwood.save(path, {"w": np.zeros(2)}, prefix="opt")
    with pytest.raises(PrefixError, match=r"No prefix specified. Available prefixes: \['model'"):
        cordwood.load(path)
    cordwood.save(path, [7, None])
    assert cordwood.load(path) == [7, None]
    assert cordwood.load(path, prefix="opt")["w"].tolist() == [0, 0]
    with cordwood.open(path, prefix="model") as checkpoint:
        assert checkpoint.metadata == {"a": "b"}
        assert checkpoint.format == "zarr"
    with pytest.raises(PrefixError, match="Prefix 'zz' not found"):
        cordwood.open(path, prefix="zz")


def test_a_directory_is_saved_in_the_background(tmp_path: Path) -> None:
    path = tmp_path / "c"
    tree = {
        "w": jax.device_put(jnp.arange(64.0).reshape(8, 8), sharding(jax.P("x"), 8)),
        "n": np.arange(3),
        "step": 7,
        "key": jax.random.key(0),
    }
    pending = cordwood.save_async(path, tree, format="zarr", compression="zstd")
    tree["n"] += 1
    tree["w"].delete()
    pending.wait()
    assert pending.progress.done_bytes == pending.progress.total_bytes > 0
    loaded = cordwood.load(path)
    assert np.array_equal(loaded["w"], np.arange(64.0).reshape(8, 8))
    assert loaded["n"].tolist() == [0, 1, 2]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    pending = cordwood.save_async(tmp_path / "notes", {"a": 1}, format="zarr")
    with pytest.raises(NotACheckpointError, match=r"mine\.txt"):
        pending.wait()


def test_mapped_leaves_outlive_the_next_save(tmp_path: Path) -> None:
    path = tmp_path / "c"
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    spread = jax.device_put(whole, sharding(jax.P("x"), 8))
    cordwood.save(path, {"one": whole, "many": spread}, format="zarr")
    loaded = cordwood.load(path, mmap=True, to="numpy")
    assert not loaded["one"].flags.writeable
    cordwood.save(path, {"one": whole + 1})  # the mapping stays what it was
    assert np.array_equal(loaded["one"], whole)
    assert np.array_equal(loaded["many"], whole)


def test_an_open_checkpoint_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "c"
    cordwood.save(path, {f"w{i}": np.full(9, i) for i in range(100)}, format="zarr")
    with cordwood.open(path) as checkpoint:
        cordwood.save(path, {"v": np.ones(1)})
        assert len(os.listdir(tmp_path)) == 2  # the old one is held
        assert checkpoint["w7"].load().tolist() == [7] * 9
        assert len(checkpoint.load()) == 100
    assert len(cordwood.gc(path, dry_run=True)) == 1
    assert len(cordwood.gc(path)) == 1
    assert cordwood.gc(path) == []
    assert os.listdir(tmp_path) == ["c"]


def test_gc_removes_leftovers_of_killed_saves_beside(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with pytest.raises(FileNotFoundError, match="no directory that a save could have left files"):
        cordwood.gc(path)
    dead, living = StagingDirectory(path), StagingDirectory(path)
    for stage in (dead, living):
        stage.begin()
    dead.close()
    assert cordwood.gc(path, dry_run=True) == [dead.path]
    assert os.path.isdir(dead.path)
    assert cordwood.gc(path) == [dead.path]
    assert os.listdir(tmp_path) == [os.path.basename(living.path)]
    living.abandon()


def test_without_exchange_a_checkpoint_is_found_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "c"
    cordwood.save(path, {"w": np.ones(3)}, format="zarr")
    path.rename(tmp_path / ".c.cordwood-old")  # a save that died between two renames
    assert cordwood.load(path)["w"].tolist() == [1, 1, 1]
    with cordwood.open(path) as checkpoint:
        assert list(checkpoint) == ["w"]
    assert cordwood.verify(path).leaves == 1
    assert cordwood.gc(path) == []
    cordwood.save(path, {"v": np.ones(1)}, prefix="p")
    assert os.listdir(tmp_path) == ["c"]
    assert cordwood.load(path, prefix="")["w"].tolist() == [1, 1, 1]


def test_verify_names_leaf_file_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "c"
    large = np.arange(3 << 18, dtype=np.float32)
    cordwood.save(path, {"a": {"b": large}, "c": np.ones(3)}, format="zarr")
    cordwood.save(path, [np.ones(2)], prefix="opt")
    verification = cordwood.verify(path)
    assert verification.format == "zarr"
    assert verification.leaves == 3
    assert verification.verified_bytes == large.nbytes + 24 + 16
    assert verification.unverified_bytes == 0
    with open(path / "a/b/0", "r+b") as file:
        file.seek(2_500_000)
        file.write(b"x")
    with pytest.raises(CorruptionError, match=r"bytes 2097152 to 3145728 of a/b/0: a/b"):
        cordwood.verify(path)
    with pytest.raises(CorruptionError, match=r"a/b/0: bytes 2097152 to"):
        cordwood.load(path)
    with cordwood.open(path) as checkpoint:
        assert checkpoint["a/b"][:10].tolist() == list(range(10))
        with pytest.raises(CorruptionError, match="a/b/0"):
            checkpoint["a/b"][-10:]


def test_a_directory_of_eformer_is_read_and_added_to(tmp_path: Path) -> None:
    path = tmp_path / "c"
    tree = {"a": [jnp.ones(3), jnp.arange(2)], "b": jnp.ones((2, 2), jnp.bfloat16)}
    eformer.tree_serialize_leaves(path, tree)
    assert_trees_equal(cordwood.load(path, like=tree), tree)
    loaded = cordwood.load(path)
    assert sorted(loaded["a"]) == ["0", "1"]
    checked = cordwood.verify(path)
    assert checked.verified_bytes == 0
    assert checked.unverified_bytes > 0
    with pytest.raises(MismatchError, match=r"a/1: expected int32\[3\], found int32\[2\]"):
        cordwood.load(path, like={**tree, "a": [jnp.ones(3), jnp.arange(3)]})
    cordwood.save(path, {"more": np.ones(1)}, prefix="ours")
    assert_trees_equal(cordwood.load(path, prefix="", like=tree), tree)


def test_a_directory_without_an_index_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "c" / "w").mkdir(parents=True)
    with pytest.raises(IncompleteCheckpointError, match=r"tensorstore_index.json"):
        cordwood.load(tmp_path / "c")


def wait_for_save(path: Path, tree: Any, **options: Any) -> None:
    cordwood.save_async(path, tree, **options).wait()


@pytest.mark.parametrize("save", [cordwood.save, wait_for_save])
def test_a_directory_that_is_no_checkpoint_is_not_filled(
    tmp_path: Path, save: Callable[..., None]
) -> None:
    path = tmp_path / "work"
    path.mkdir()
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        (path / name).write_text("a diary")
    expected = (
        r"has no tensorstore_index.json, and contains a.txt, b.txt, c.txt and 1 more; remove it"
    )
    with pytest.raises(NotACheckpointError, match=expected):
        save(path, {"w": np.ones(3)}, format="zarr")
    assert sorted(os.listdir(path)) == ["a.txt", "b.txt", "c.txt", "d.txt"]
    assert os.listdir(tmp_path) == ["work"]
    tree_serialize_leaves(path, {"w": np.ones(3)})  # as eFormer's does
    cordwood.save(path, {"w": np.zeros(3)}, format="zarr")
    assert (path / "a.txt").read_text() == "a diary"
    (tmp_path / "empty").mkdir()
    cordwood.save(tmp_path / "empty", {"w": np.ones(3)}, format="zarr")


def test_an_index_that_lies(tmp_path: Path) -> None:
    """Paths out of the directory, and arrays that no memory could hold."""
    path = tmp_path / "c"
    cordwood.save(path, {"w": np.ones(3)}, format="zarr")
    (tmp_path / "outside").mkdir()
    (path / "w").rename(tmp_path / "outside" / "w")
    index = stored_index(path)
    del index["cordwood"]
    for place in ("../outside/w", str(tmp_path / "outside" / "w")):
        index["arrays"][0]["path"] = place
        (path / "tensorstore_index.json").write_text(json.dumps(index))
        with pytest.raises(ValueError, match="leaves the checkpoint, or is no plain path"):
            cordwood.load(path)
    index["arrays"][0]["path"] = "w"
    (path / "tensorstore_index.json").write_text(json.dumps(index))
    (path / "w").symlink_to("../outside/w")
    with pytest.raises(CorruptionError, match="symbolic link"):
        cordwood.load(path)
    (path / "w").unlink()
    (path / "w").mkdir()
    metadata = json.loads((tmp_path / "outside/w/.zarray").read_text())
    metadata |= {"shape": [2**50], "chunks": [2**50], "compressor": {"id": "zstd"}}
    del metadata["cordwood"]
    (path / "w/.zarray").write_text(json.dumps(metadata))
    (path / "w/0").write_bytes(b"x" * 100)
    index["arrays"][0] = {"path": "w"}
    (path / "tensorstore_index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="a chunk of 100 bytes cannot hold"):
        cordwood.load(path, to="numpy")


def test_a_directory_that_is_replaced_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the question whether there is an index and its reading another save comes."""
    from cordwood.formats.zarr import existing_index
    from cordwood.formats.zarr.read_index import read_index_file

    path = tmp_path / "c"
    cordwood.tree_serialize_leaves(path, {"w": jnp.ones(8)}, prefix="a")
    read, times = read_index_file, iter(range(99))

    def replaced(directory: Any) -> Any:
        if next(times) == 0:
            cordwood.tree_serialize_leaves(path, {"w": jnp.zeros(8)}, prefix="b")
        return read(directory)

    monkeypatch.setattr(existing_index, "read_index_file", replaced)
    existing_index.refuse_to_add(path)
    with cordwood.open(path, prefix="a") as one, cordwood.open(path, prefix="b") as other:
        assert [*one["w"][:], *other["w"][:]] == [1] * 8 + [0] * 8


def test_a_directory_that_saves_keep_replacing_is_not_read_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordwood.save(tmp_path / "c", {"w": jnp.ones(8)}, format="zarr")
    monkeypatch.setattr(LocalDirectory, "is_still_at", lambda _, path: False)
    with pytest.raises(OSError, match="other saves keep replacing it; load it again"):
        cordwood.open(tmp_path / "c")
