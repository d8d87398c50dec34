"""Directories for the Hugging Face hub, and data files of a given size."""

from __future__ import annotations

import json
import os
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import cordwood
from cordwood.errors import (
    CorruptionError,
    LossError,
    NotACheckpointError,
    UnsupportedFormatError,
    UnsupportedLeafError,
)
from cordwood.storage import syscalls
from tests.alarms import interruptions
from tests.golden.hugging_face_shards import FOLDER

TREE: dict[str, Any] = OrderedDict(
    model={
        "embed": {"weight": np.arange(600.0).reshape(30, 20)},
        "layers": [{"w": jnp.arange(16).astype(jnp.bfloat16)}, {"w": np.ones((40, 40), np.int8)}],
        "none": np.zeros((0, 3), np.float32),
    },
    lm_head=np.array([1, 2, 3], np.float32),
)
NAMES = ["model.embed.weight", "model.layers.0.w", "model.layers.1.w", "model.none", "lm_head"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    cordwood.save(tmp_path / "source", TREE)
    return tmp_path / "source"


def arrays() -> dict[str, Any]:
    return dict(zip(NAMES, map(np.asarray, jax.tree.leaves(dict(TREE))), strict=True))


def files(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def equal(found: Any) -> bool:
    layers = TREE["model"]["layers"]
    expected = {
        "model.embed.weight": TREE["model"]["embed"]["weight"],
        "model.layers.0.w": np.asarray(layers[0]["w"]),
        "model.layers.1.w": layers[1]["w"],
        "model.none": TREE["model"]["none"],
        "lm_head": TREE["lm_head"],
    }
    return set(found) == set(expected) and all(
        found[name].dtype == array.dtype and np.array_equal(found[name], array)
        for name, array in expected.items()
    )


def test_a_conversion_for_the_hub_writes_one_file(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "hub"
    done = cordwood.convert(source, path, format="hugging_face")
    assert (done.format, done.leaves, done.lost) == ("hugging_face", 5, ())
    assert files(path) == ["model.safetensors"]
    assert equal(safetensors.numpy.load_file(path / "model.safetensors"))
    assert equal(cordwood.load(path))
    assert cordwood.load(path, nest=True)["model"]["layers"]["1"]["w"].shape == (40, 40)
    assert cordwood.verify(path).unverified_bytes == 0


def test_a_large_conversion_for_the_hub_writes_shards_and_their_index(
    tmp_path: Path, source: Path
) -> None:
    path = tmp_path / "hub"
    cordwood.convert(source, path, format="hugging_face", max_shard_bytes=2000)
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index_name = "model.safetensors.index.json"
    assert files(path) == [*shards, index_name]
    index = json.loads((path / index_name).read_text())
    assert index["metadata"] == {"total_size": 4800 + 32 + 1600 + 12, "writer": "cordwood"}
    read: dict[str, Any] = {}
    for shard in shards:
        tensors = safetensors.numpy.load_file(path / shard)
        assert all(index["weight_map"][name] == shard for name in tensors)
        assert len(tensors) == 1 or sum(a.nbytes for a in tensors.values()) <= 2000
        with safetensors.safe_open(path / shard, "numpy") as file:
            assert file.metadata()["format"] == "pt"
        read |= tensors
    assert equal(read)
    assert equal(cordwood.load(path))
    assert set(cordwood.load(path)) == set(index["weight_map"])
    assert cordwood.detect(path).format == "safetensors-shards"
    loaded = cordwood.load(path, like={"lm_head": np.zeros(3, np.float32)}, extra="ignore")
    assert loaded["lm_head"].tolist() == [1, 2, 3]


def test_all_of_it_is_verified(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "hub"
    cordwood.convert(source, path, format="hugging_face", max_shard_bytes=2000)
    assert cordwood.verify(path).unverified_bytes == 0
    for shard in sorted(path.glob("*.safetensors")):
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        for call in (cordwood.load, cordwood.verify):
            with pytest.raises(CorruptionError, match=shard.name):
                call(path)
        data[-1] ^= 1
        shard.write_bytes(data)


def test_names_and_metadata_stay_from_hub_to_hub(tmp_path: Path) -> None:
    """From hub to hub: names and metadata stay."""
    path = tmp_path / "hub"
    cordwood.convert(FOLDER, path, format="hugging_face", cast="bf16", max_shard_bytes=20)
    assert len(files(path)) > 2
    assert list(cordwood.load(path)) == list(cordwood.load(FOLDER))
    with cordwood.open(path) as theirs:
        assert theirs.metadata["format"] == "pt"


def test_values_that_the_hub_cannot_hold_are_losses(tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "hub"
    tree = {"w": np.ones(3), "step": 7, "none": None, "key": jax.random.key(1), "text": "a" * 9000}
    cordwood.save(source, tree, metadata={"who": "me"})
    with pytest.raises(LossError) as error:
        cordwood.convert(source, path, format="hugging_face")
    lines = str(error.value).splitlines()[1:]
    assert lines[0].startswith("  2 values that are no arrays: ")
    assert "step" in lines[0]
    assert lines[1] == "  1 PRNG key array, of which only the key data stays: key"
    assert not path.exists()
    done = cordwood.convert(source, path, format="hugging_face", lossy=True)
    assert len(done.lost) == 2
    assert set(cordwood.load(path)) == {"w", "key"}
    cordwood.save(tmp_path / "i4", {"q": jnp.arange(4).astype(jnp.int4)})
    with pytest.raises(UnsupportedLeafError, match="q: safetensors has no int4: cast it"):
        cordwood.convert(tmp_path / "i4", tmp_path / "other", format="hugging_face")
    assert not (tmp_path / "other").exists()


def test_names_that_collide(tmp_path: Path) -> None:
    source, upload = tmp_path / "source", tmp_path / "upload"
    cordwood.save(source, {"a": {"b": np.ones(2)}, "a.b": np.zeros(3), "c": np.ones(1)})
    with pytest.raises(
        LossError, match=r"1 name that the hub's tools would mix up: .* as 'a\.b~2'"
    ):
        cordwood.convert(source, upload, format="hugging_face")
    assert not upload.exists()
    done = cordwood.convert(source, upload, format="hugging_face", lossy=True)
    assert len(done.lost) == 1
    names = sorted(safetensors.numpy.load_file(upload / "model.safetensors"))
    assert names == ["a.b", "a.b~2", "c"]


def test_the_record_of_a_run_stays_at_home(tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path / "run", save=1) as manager:
        manager.save(5, {"w": np.ones(3)}, metrics={"loss": 0.5})
    for name in ("hub", "5"):
        cordwood.convert(tmp_path / "run" / "5", tmp_path / name, format="hugging_face")
        with cordwood.open(tmp_path / name) as checkpoint:
            assert dict(checkpoint.metadata) == {"format": "pt"}


def test_a_conversion_for_the_hub_replaces_nothing(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "hub"
    path.mkdir()
    cordwood.convert(source, path, format="hugging_face")  # empty
    for overwrite in (False, True):
        with pytest.raises(NotACheckpointError, match="not replaced or added to"):
            cordwood.convert(source, path, format="hugging_face", overwrite=overwrite)
    with pytest.raises(UnsupportedFormatError, match="Hugging Face hub is local"):
        cordwood.convert(source, "memory://hub", format="hugging_face")
    with pytest.raises(ValueError, match="the format hugging_face is one of directories"):
        cordwood.convert(source, tmp_path / "a.safetensors", format="hugging_face")
    with pytest.raises(ValueError, match="to_prefix= is for directories"):
        cordwood.convert(source, tmp_path / "b", format="hugging_face", to_prefix="p")
    with pytest.raises(ValueError, match='compression= is for format="zarr"'):
        cordwood.convert(source, tmp_path / "b", format="hugging_face", compression="zstd")
    assert files(tmp_path) == ["hub", "source"]


class Failing(syscalls.SystemCalls):
    """A disk that fails at a write."""

    def __init__(self, at: int) -> None:
        self.left = at

    def fsync(self, fd: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, os.strerror(5))
        super().fsync(fd)


def test_a_failure_leaves_nothing(tmp_path: Path, source: Path) -> None:
    failures = 0
    for at in range(100):
        path = tmp_path / f"hub-{at}"
        try:
            with syscalls.override(Failing(at)):
                cordwood.convert(source, path, format="hugging_face", max_shard_bytes=2000)
        except OSError as e:
            failures += 1
            assert path.name in str(e)  # noqa: PT017
            if path.exists():  # the last flush, of the directory above
                assert equal(cordwood.load(path))
                continue
            assert files(tmp_path) == ["source"]
        else:
            break
    assert failures > 4
    assert equal(cordwood.load(path))


@pytest.mark.parametrize("place", ["local", "memory://shard-sizes/1"])
def test_the_size_of_data_files(tmp_path: Path, place: str) -> None:
    path: Any = tmp_path / "packs" if place == "local" else place
    tree = {f"w{n}": np.full(250, n, np.float32) for n in range(40)}
    cordwood.save(path, tree, max_shard_bytes=2500)
    with cordwood.open(path) as checkpoint:
        assert len(checkpoint._reader.files) == 20
    np.testing.assert_array_equal(cordwood.load(path)["w7"], tree["w7"])
    assert cordwood.verify(path).unverified_bytes == 0
    cordwood.convert(path, tmp_path / "again", max_shard_bytes=10_000)
    assert len(list((tmp_path / "again").glob("data-*"))) == 4
    assert (tmp_path / "again" / "model.safetensors.index.json").exists()


@pytest.mark.parametrize("name", ["a.safetensors", "a.msgpack"])
def test_sizes_are_of_directories(tmp_path: Path, name: str) -> None:
    for call in (
        lambda: cordwood.save(tmp_path / name, {"w": 1}, max_shard_bytes=100),
        lambda: cordwood.save(tmp_path / "z", {"w": 1}, format="zarr", max_shard_bytes=100),
    ):
        with pytest.raises(ValueError, match='is for format="packs" and "hugging_face"'):
            call()
    for size in (0, -1, True, 1.5, "5GB"):
        with pytest.raises(ValueError, match="expected an int of at least 1"):
            cordwood.save(tmp_path / "d", {"w": 1}, max_shard_bytes=size)  # type: ignore[arg-type]
    assert files(tmp_path) == []


@pytest.mark.filterwarnings(  # Python loses an interrupt that comes in `__del__`
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_an_interrupt_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "source", {f"w{n}": np.zeros(1 << 20, np.uint8) for n in range(8)})
    path = tmp_path / "hub"

    def convert() -> None:
        options: Any = {"format": "hugging_face", "max_shard_bytes": 2 << 20}
        cordwood.convert(tmp_path / "source", path, **options)
        shutil.rmtree(path)

    convert()
    cuts = 0
    for cut in interruptions(convert, times=60):
        cuts += cut
        assert set(files(tmp_path)) <= {"source", "hub"}
        if path.exists():  # it came after the rename, or while this test removed it
            shutil.rmtree(path)
    assert cuts > 10
