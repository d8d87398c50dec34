"""Directories of packs that Orbax reads too: restored by it, and still checkpoints of cordwood."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1

import cordwood
from cordwood.errors import (
    CorruptionError,
    NotACheckpointError,
    UnsupportedFormatError,
    UnsupportedLeafError,
)
from cordwood.testing import assert_trees_equal
from tests.formats.orbax.restored_by_orbax import DOORS, as_numpy, restore_standard, sharded

Pair = namedtuple("Pair", ["one", "two"])


def every_kind() -> dict[str, Any]:
    return {
        "both": sharded(jnp.arange(64 * 32, dtype=jnp.float32).reshape(64, 32), "rows", "columns"),
        "columns": sharded(jnp.arange(24, dtype=jnp.int16).reshape(3, 8), None, "columns"),
        "bf16": jnp.linspace(-1, 1, 7, dtype=jnp.bfloat16),
        "fp8": jnp.ones((4, 4), jnp.float8_e4m3fn),
        "int4": jnp.arange(-4, 4, dtype=jnp.int4).reshape(2, 4),
        "complex": np.array([1 + 2j, 3]),
        "no elements": np.zeros((0, 3), np.float32),
        "list": [jnp.int32(3), np.arange(5, dtype=np.int8), np.array([True, False])],
        "a/b": np.arange(3),
        "NaN": np.array([np.nan, -0.0, np.inf]),
        "step": 7,
        "negative": -(1 << 63),
        "rate": 0.1,
        "flag": True,
        "name": "Grüße",
        "none": None,
        "empty": {},
        "no list": [],
    }


@pytest.fixture(scope="module")
def of_every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kinds") / "100"
    cordwood.save(path, every_kind(), orbax=True)
    return path


@pytest.mark.parametrize("door", DOORS)
def test_orbax_restores_every_kind_of_leaf(of_every_kind: Path, door: str) -> None:
    restored = DOORS[door](of_every_kind)
    assert_trees_equal(dict(sorted(restored.items())), dict(sorted(as_numpy(every_kind()).items())))


def test_it_remains_a_checkpoint_of_cordwood(of_every_kind: Path) -> None:
    assert cordwood.detect(of_every_kind).format == "packs"
    assert_trees_equal(cordwood.load(of_every_kind, like=every_kind()), every_kind())
    assert not cordwood.verify(of_every_kind).stale
    assert not cordwood.gc(of_every_kind)


@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
@pytest.mark.parametrize("door", DOORS)
def test_orbax_restores_keys_as_keys(tmp_path: Path, door: str) -> None:
    tree = {"key": jax.random.key(3), "keys": jax.random.split(jax.random.key(1, impl="rbg"), 4)}
    cordwood.save(tmp_path / "keys", tree, orbax=True)
    restored = DOORS[door](tmp_path / "keys")
    for name, keys in tree.items():
        assert restored[name].dtype == keys.dtype
        assert np.array_equal(jax.random.key_data(restored[name]), jax.random.key_data(keys))


def test_orbax_restores_onto_another_mesh_and_into_other_containers(tmp_path: Path) -> None:
    tree = {
        "w": sharded(jnp.arange(64 * 32.0).reshape(64, 32), "rows", "columns"),
        "pair": (np.arange(2, dtype=np.int32), Pair(5, None)),
    }
    cordwood.save_async(tmp_path / "step", tree, orbax=True).wait()
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    sharding = NamedSharding(mesh, PartitionSpec("b"))
    target = {
        "w": jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=sharding),
        "pair": (np.zeros(2, np.int32), Pair(0, None)),
    }
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "step", target)
    assert restored["w"].sharding.spec == PartitionSpec("b")
    assert np.array_equal(restored["w"], tree["w"])
    assert_trees_equal(restored["pair"], tree["pair"])


def test_a_leaf_that_is_the_whole_tree(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "leaf", np.arange(3), orbax=True)
    assert np.array_equal(ocp.PyTreeCheckpointer().restore(tmp_path / "leaf"), np.arange(3))


def test_a_name_makes_the_tree_an_item(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "step", {"w": np.arange(3)}, orbax="state")
    assert np.array_equal(restore_standard(tmp_path / "step" / "state")["w"], np.arange(3))
    with v1.training.Checkpointer(tmp_path) as checkpointer:
        assert not checkpointer.checkpoints  # `step` is no number


def test_no_byte_of_an_array_is_there_twice(tmp_path: Path) -> None:
    tree = {f"layer {n}": np.random.default_rng(n).normal(size=(64, 64)) for n in range(20)}
    sizes = []
    for orbax in (False, True, "default"):
        cordwood.save(tmp_path / "step", tree, orbax=orbax)
        files = [path for path in (tmp_path / "step").rglob("*") if not path.is_symlink()]
        sizes.append(sum(path.stat().st_size for path in files if path.is_file()))
    assert max(sizes) - sizes[0] < 20 * 180 + 800


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        (b"bytes", "Orbax stores no bytes"),
        (1j, "Orbax stores no complex"),
        (1 << 63, "Orbax stores integers of 64 bits"),
        (np.array("2020-01-01", "datetime64[s]"), r"no arrays of datetime64\[s\]"),
        ("x" * 5000, "a str of this size is stored as an array"),
        (np.zeros((1,) * 32), "32 dimensions; Orbax takes fewer than 32"),
    ],
)
def test_a_leaf_that_orbax_cannot_read_is_refused(tmp_path: Path, leaf: Any, reason: str) -> None:
    with pytest.raises(UnsupportedLeafError, match=f"^params/w: .*{reason}"):
        cordwood.save(tmp_path / "step", {"params": {"w": leaf}}, orbax=True)
    assert not os.listdir(tmp_path)


def test_two_leaves_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLeafError, match=r"^a\.b: Orbax has one name for it and a/b"):
        cordwood.save(tmp_path / "step", {"a": {"b": np.ones(1)}, "a.b": np.ones(1)}, orbax=True)


def test_other_destinations_are_refused(tmp_path: Path) -> None:
    tree = {"w": np.ones(3)}
    for name in ("w.safetensors", "w.msgpack"):
        with pytest.raises(ValueError, match=r'orbax= is for .* format="orbax" writes'):
            cordwood.save(tmp_path / name, tree, orbax=True)
    with pytest.raises(ValueError, match="orbax= is for a tree without a prefix"):
        cordwood.save(tmp_path / "step", tree, prefix="ema", orbax=True)
    with pytest.raises(TypeError, match="expected True, False or the name of an item, found 1"):
        cordwood.save(tmp_path / "step", tree, orbax=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in a directory 'a/b', which cannot be"):
        cordwood.save(tmp_path / "step", tree, orbax="a/b")
    assert not os.listdir(tmp_path)


def test_a_store_is_refused_with_the_way_there_is(tmp_path: Path) -> None:
    tree, url = {"w": np.ones(3)}, "memory://orbax-index/step"
    with pytest.raises(UnsupportedFormatError, match=r'convert\(.*, format="orbax"\)'):
        cordwood.save(url, tree, orbax=True)
    cordwood.save(url, tree)
    cordwood.convert(url, tmp_path / "step", format="orbax")
    assert np.array_equal(restore_standard(tmp_path / "step")["w"], np.ones(3))


def test_a_file_of_others_is_never_replaced(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "step", {"w": np.ones(3)})
    (tmp_path / "step" / "default").mkdir()
    (tmp_path / "step" / "default" / "_METADATA").write_text("mine")
    with pytest.raises(NotACheckpointError, match="default/_METADATA: the index for Orbax"):
        cordwood.save(tmp_path / "step", {"w": np.zeros(3)}, orbax="default")
    assert (tmp_path / "step" / "default" / "_METADATA").read_text() == "mine"
    assert np.array_equal(cordwood.load(tmp_path / "step")["w"], np.ones(3))


@pytest.mark.parametrize("orbax", [True, "default"])
def test_a_later_save_replaces_the_index_or_removes_it(tmp_path: Path, orbax: bool | str) -> None:
    path, tree = tmp_path / "step", {"w": np.ones(3), "name": "first"}
    cordwood.save(path, tree, orbax=orbax)
    cordwood.save(path, {"w": np.zeros(4)}, orbax=orbax)
    inside = path if orbax is True else path / "default"
    assert_trees_equal(restore_standard(inside), {"w": np.zeros(4)})
    assert not (inside / "_strings.json").exists()
    cordwood.save(path, tree, prefix="other")
    assert_trees_equal(restore_standard(inside), {"w": np.zeros(4)})
    cordwood.save(path, tree)
    assert sorted(name.partition("-")[0] for name in os.listdir(path)) == [
        *("cordwood.json", "data", "data")
    ]


@pytest.fixture
def step(tmp_path: Path) -> Path:
    cordwood.save(tmp_path / "step", {"w": np.arange(6), "key": jax.random.key(1)}, orbax="state")
    return tmp_path / "step"


def files_for_orbax(path: Path) -> Iterator[Path]:
    yield path / "_CHECKPOINT_METADATA"
    for each in sorted((path / "state").rglob("*")):
        if each.is_symlink() or each.is_file():
            yield each


def test_verify_finds_every_file_that_is_not_of_the_index(step: Path) -> None:
    for path in files_for_orbax(step):
        if path.is_symlink():
            path.unlink()
            path.symlink_to("/etc/hostname")
        else:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        name = path.relative_to(step)
        with pytest.raises(CorruptionError, match=f"{name} is not the one of this index: gc"):
            cordwood.verify(step)
        assert cordwood.gc(step).rewritten == [f"{step}/{name}"]
        assert not cordwood.verify(step).stale


def test_files_that_a_killed_save_has_not_written_are_stale_and_written_by_gc(step: Path) -> None:
    contents = {path: path.lstat().st_size for path in files_for_orbax(step)}
    shutil.rmtree(step / "state")
    assert set(cordwood.verify(step).stale) == {
        str(path.relative_to(step)) for path in contents if path.parent != step
    }
    assert len(cordwood.gc(step, dry_run=True).rewritten) == len(contents) - 1
    cordwood.gc(step)
    assert {path: path.lstat().st_size for path in files_for_orbax(step)} == contents
    assert np.array_equal(restore_standard(step / "state")["w"], np.arange(6))


def test_a_link_in_place_of_the_folder_is_not_followed(step: Path, tmp_path: Path) -> None:
    (step / "state").rename(tmp_path / "elsewhere")
    (step / "state").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptionError, match="is, or lies behind, a symbolic link"):
        cordwood.verify(step)


def test_a_copy_has_the_index_too_and_one_in_a_store_has_none(step: Path, tmp_path: Path) -> None:
    cordwood.copy(step, tmp_path / "copy")
    assert cordwood.copy(step, tmp_path / "copy").files == 0
    assert np.array_equal(restore_standard(tmp_path / "copy" / "state")["w"], np.arange(6))
    cordwood.copy(step, "memory://orbax-index/copy")
    assert not cordwood.verify("memory://orbax-index/copy").stale
    cordwood.copy("memory://orbax-index/copy", tmp_path / "back")
    assert not (tmp_path / "back" / "state").exists()


def test_a_conversion_has_no_index_for_orbax(step: Path, tmp_path: Path) -> None:
    cordwood.convert(step, tmp_path / "w.safetensors")
    with cordwood.open(tmp_path / "w.safetensors") as checkpoint:
        assert "cordwood-orbax" not in checkpoint.metadata
    cordwood.convert(step, tmp_path / "other")
    assert not cordwood.verify(tmp_path / "other").stale
    assert not (tmp_path / "other" / "state").exists()
