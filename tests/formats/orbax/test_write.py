"""Checkpoints that cordwood writes for Orbax: restored by it, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import cordwood
from cordwood.errors import (
    LossError,
    NotACheckpointError,
    UnsupportedFormatError,
    UnsupportedLeafError,
)
from cordwood.testing import assert_trees_equal
from tests.formats.orbax.restored_by_orbax import DOORS, as_numpy, restore_standard, sharded


def converted(folder: Path, tree: Any, **options: Any) -> Path:
    cordwood.save(folder / "source", tree)
    cordwood.convert(folder / "source", folder / "orbax", format="orbax", **options)
    return folder / "orbax"


def every_kind() -> dict[str, Any]:
    return {
        "both": sharded(jnp.arange(64 * 32, dtype=jnp.float32).reshape(64, 32), "rows", "columns"),
        "bf16": jnp.linspace(-1, 1, 7, dtype=jnp.bfloat16),
        "fp8": jnp.ones((4, 4), jnp.float8_e4m3fn),
        "int4": jnp.arange(-4, 4, dtype=jnp.int4).reshape(2, 4),
        "complex": np.array([1 + 2j, 3]),
        "no elements": np.zeros((0, 3), np.float32),
        "list": [jnp.int32(3), np.arange(5, dtype=np.int8), np.array([True, False])],
        "a/b": np.arange(3),
        "state": {"default": np.arange(2), "d": {"metrics": np.ones(1)}},
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
    return converted(tmp_path_factory.mktemp("kinds"), every_kind())


@pytest.mark.parametrize("door", DOORS)
def test_orbax_restores_every_kind_of_leaf(of_every_kind: Path, door: str) -> None:
    restored = DOORS[door](of_every_kind)
    assert_trees_equal(dict(sorted(restored.items())), dict(sorted(as_numpy(every_kind()).items())))


def test_cordwood_reads_what_it_wrote_for_orbax(of_every_kind: Path) -> None:
    assert cordwood.detect(of_every_kind).format == "orbax"
    assert_trees_equal(as_numpy(cordwood.load(of_every_kind)), as_numpy(every_kind()))
    assert_trees_equal(cordwood.load(of_every_kind, like=every_kind()), every_kind())
    assert cordwood.verify(of_every_kind).leaves == len(jax.tree.leaves(every_kind()))


@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
@pytest.mark.parametrize("door", DOORS)
def test_orbax_restores_keys_as_keys(tmp_path: Path, door: str) -> None:
    tree = {"key": jax.random.key(3), "keys": jax.random.split(jax.random.key(1, impl="rbg"), 4)}
    path = converted(tmp_path, tree)
    for restored in (DOORS[door](path), cordwood.load(path)):
        for name, keys in tree.items():
            assert restored[name].dtype == keys.dtype
            assert np.array_equal(jax.random.key_data(restored[name]), jax.random.key_data(keys))


def test_a_target_brings_back_meshes_and_tuples(tmp_path: Path) -> None:
    tree = {
        "w": np.arange(64 * 32, dtype=np.float32).reshape(64, 32),
        "pair": (np.arange(2, dtype=np.int32), 5),
    }
    path = converted(tmp_path, tree, lossy=True)
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    sharding = NamedSharding(mesh, PartitionSpec("b"))
    target = {
        "w": jax.ShapeDtypeStruct((64, 32), np.float32, sharding=sharding),
        "pair": (np.zeros(2, np.int32), 0),
    }
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(path, target)
    assert restored["w"].sharding.spec == PartitionSpec("b")
    assert_trees_equal(as_numpy(restored), as_numpy(tree))


@pytest.mark.parametrize("tree", [np.arange(3), {"": np.arange(3)}, {}])
def test_trees_of_one_leaf_or_none(tmp_path: Path, tree: Any) -> None:
    path = converted(tmp_path, tree)
    assert_trees_equal(ocp.PyTreeCheckpointer().restore(path), tree)
    assert_trees_equal(cordwood.load(path), tree)


def test_many_leaves(tmp_path: Path) -> None:
    tree = {f"layer_{i}": {"w": np.full(2, i, np.int32), "n": i} for i in range(250)}
    cordwood.save(tmp_path / "orbax", tree, format="orbax")
    assert_trees_equal(
        as_numpy(ocp.PyTreeCheckpointer().restore(tmp_path / "orbax")), as_numpy(tree)
    )


def test_chunks_are_the_parts_on_devices(tmp_path: Path) -> None:
    array = np.arange(4 << 18, dtype=np.int32).reshape(4, 1 << 18)
    cordwood.save(tmp_path / "orbax", {"w": sharded(array, "rows")}, format="orbax")
    names = {file.name for file in (tmp_path / "orbax" / "w").iterdir()}
    assert names == {".zarray", "0.0", "1.0", "2.0", "3.0"}
    assert np.array_equal(restore_standard(tmp_path / "orbax")["w"], array)


def test_strings_beside_the_tree_are_custom_metadata(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "orbax", {"w": np.ones(2)}, format="orbax", metadata={"by": "me"})
    with ocp.StandardCheckpointer() as checkpointer:
        assert checkpointer.metadata(tmp_path / "orbax").custom_metadata == {"by": "me"}


def test_a_step_of_orbax_made_from_one_of_cordwood(tmp_path: Path) -> None:
    tree = {"w": np.arange(5.0), "step": 10}
    with cordwood.CheckpointManager(tmp_path / "run", save=1) as manager:
        manager.save(10, tree, metrics={"loss": 0.5})
    cordwood.convert(tmp_path / "run" / "10", tmp_path / "back" / "10" / "default", format="orbax")
    with ocp.CheckpointManager(tmp_path / "back") as orbax_manager:
        assert orbax_manager.latest_step() == 10
        assert_trees_equal(
            as_numpy(orbax_manager.restore(10, args=ocp.args.StandardRestore())), as_numpy(tree)
        )


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        (b"bytes", "Orbax stores no bytes"),
        (1j, "Orbax stores no complex"),
        (1 << 63, "Orbax stores integers of 64 bits"),
        (np.array("2020-01-01", "datetime64[s]"), r"Orbax stores no arrays of datetime64\[s\]"),
    ],
)
def test_a_leaf_that_orbax_cannot_hold_is_refused(tmp_path: Path, leaf: Any, reason: str) -> None:
    with pytest.raises(UnsupportedLeafError, match=f"^params/w: {reason}; leave it out .*select="):
        converted(tmp_path, {"params": {"w": leaf, "v": np.ones(1)}})
    assert [each.name for each in tmp_path.iterdir()] == ["source"]
    cordwood.convert(
        tmp_path / "source", tmp_path / "orbax", format="orbax", select=["**", "!params/w"]
    )
    assert_trees_equal(restore_standard(tmp_path / "orbax"), {"params": {"v": np.ones(1)}})


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": {"b": np.ones(1)}, "a.b": np.ones(1)}, r"^a\.b: Orbax has one name .* a/b: 'a\.b'"),
        ({1: {"x": 1}, "1": {"y": 1}}, "^'?1'?: Orbax has one name for two keys: '1'"),
        ({"a": np.ones(1), "a/0": np.ones(1)}, "a directory 'a/0', which cannot be"),
        ({"": np.ones(1), "0": np.ones(1)}, "a directory '0', which cannot be"),
        ({"../x": np.ones(1)}, "a directory '../x', which cannot be"),
        ({"/x": 1}, "a directory '/x', which cannot be"),
        ({"x" * 256: np.ones(1)}, "which cannot be"),
        ({"x\0": np.ones(1)}, "which cannot be"),
        ({"\ud800": np.ones(1)}, "which cannot be"),
        ({"\ud800": jax.random.key(0)}, "which cannot be"),
        ({"checkpoint": np.ones(1)}, "a directory 'checkpoint', which cannot be"),
        ({"_METADATA": np.ones(1)}, "a directory '_METADATA', which cannot be"),
        ({"manifest": {"ocdbt": np.ones(1)}}, "a directory 'manifest.ocdbt', which cannot be"),
    ],
)
def test_names_that_orbax_would_confuse_are_refused(
    tmp_path: Path, tree: Any, message: str
) -> None:
    with pytest.raises(UnsupportedLeafError, match=message):
        cordwood.save(tmp_path / "orbax", tree, format="orbax")
    assert list(tmp_path.iterdir()) == []


class Pair(NamedTuple):
    x: Any
    y: Any


def test_what_orbax_does_not_record_is_a_loss(tmp_path: Path) -> None:
    tree = {
        "tuple": (np.ones(1), 2),
        "pair": Pair(1, 2),
        "scalar": np.float32(2),
        "keyed": {1: 2},
        "weak": jnp.asarray(3.0),
    }
    with pytest.raises(LossError) as error:
        converted(tmp_path, tree)
    assert str(error.value).splitlines()[1:] == [
        "  1 tuple (a list without a target): tuple",
        "  1 node with fields (a dict without a target): pair",
        "  1 numpy scalar (an array of shape ()): scalar",
        "  1 dict with keys that are not strings (they become strings): keyed",
        "  1 weak type: weak",
    ]
    done = cordwood.convert(tmp_path / "source", tmp_path / "orbax", format="orbax", lossy=True)
    assert len(done.lost) == 5
    assert restore_standard(tmp_path / "orbax")["pair"] == {"x": 1, "y": 2}
    assert_trees_equal(cordwood.load(tmp_path / "orbax", like=tree)["pair"], Pair(1, 2))


def test_nothing_is_replaced_and_stores_are_refused(tmp_path: Path) -> None:
    tree = {"w": np.ones(2)}
    cordwood.save(tmp_path / "orbax", tree, format="orbax")
    for overwrite in (False, True):
        with pytest.raises(NotACheckpointError, match="an Orbax checkpoint is not replaced"):
            converted(tmp_path, tree, overwrite=overwrite)
    with pytest.raises(UnsupportedFormatError, match="is local; upload it from there"):
        cordwood.save("memory://bucket/orbax", tree, format="orbax")
