"""diff: structure, dtypes and values, of files, directories and trees."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import assume, example, given, settings

import cordwood
from cordwood.errors import CorruptionError, MismatchError
from cordwood.testing import strategies as some

KINDS = [".safetensors", ".msgpack", ".msgpack.zst", "packs", "zarr", "zarr-zstd"]


def save(folder: Path, kind: str, tree: Any, name: str) -> Path:
    if kind.startswith("."):
        path = folder / f"{name}{kind}"
        cordwood.save(path, tree)
    else:
        layout, _, compression = kind.partition("-")
        path = folder / f"{name}-{kind}"
        options: Any = {"format": layout, "compression": compression or None}
        cordwood.save(path, tree, **options)
    return path


def tree() -> dict[str, Any]:
    return {
        "layers": [{"w": np.arange(6.0).reshape(2, 3)}, {"w": np.zeros(3, np.float32)}],
        "n": np.arange(4),
        "name": "a",
        "step": 7,
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_equal_whatever_the_formats(tmp_path: Path, kind: str, other: str) -> None:
    a, b = save(tmp_path, kind, tree(), "a"), save(tmp_path, other, tree(), "b")
    difference = cordwood.diff(a, b)
    assert difference.equal, str(difference)
    assert difference.equal_leaves == 5
    if kind == other and "msgpack" not in kind:
        assert difference.equal_by_digest == 3
        assert difference.read_bytes == 0
    assert str(difference).startswith(f"{a} and {b} are equal: 5 leaves")


@pytest.mark.parametrize("kind", KINDS)
def test_each_difference_is_a_line(tmp_path: Path, kind: str) -> None:
    other = tree()
    other["layers"][0]["w"][1, 2] += 0.5
    other["layers"][1] = {"w": np.zeros(4, np.float32), "b": np.ones(2)}
    other["n"] = np.arange(4, dtype=np.int32)
    other["step"] = 8
    del other["name"]
    difference = cordwood.diff(save(tmp_path, kind, tree(), "a"), save(tmp_path, kind, other, "b"))
    text = str(difference)
    position = "'{}'" if "msgpack" in kind else "{}"
    for line in (
        f"  layers/{position.format(0)}/w: float64[2,3]: 1 of 6 elements differ, max abs 0.5, ",
        f"  layers/{position.format(1)}/w: shape: float32[3] | float32[4]",
        "  n: dtype: int64[4] | int32[4]: the values are equal",
        "  step: 7 | 8",
        "  name: only in a (str)",
        f"  layers/{position.format(1)}/b: only in b (float64[2])",
    ):
        assert line in text
    assert text.startswith("6 differences between a = ")
    assert (difference.equal, difference.equal_leaves) == (False, 0)
    plain = json.loads(json.dumps(difference.to_json()))
    (value,) = [leaf for leaf in plain["leaves"] if leaf["what"] == "value" and leaf["size"]]
    assert (value["differing"], value["size"], value["max_abs"]) == (1, 6, 0.5)
    assert value["max_rel"] == pytest.approx(0.5 / 5.5)


def test_a_tree_beside_a_checkpoint(tmp_path: Path) -> None:
    path = save(tmp_path, "packs", tree(), "a")
    assert cordwood.diff(path, tree()).equal
    assert cordwood.diff(tree(), path).equal
    assert cordwood.diff(tree(), tree()).equal
    with cordwood.open(path) as checkpoint:
        assert str(cordwood.diff(checkpoint, {**tree(), "step": 9})).endswith("step: 7 | 9")


def test_sharded_arrays_and_keys(tmp_path: Path) -> None:
    mesh = jax.make_mesh((8,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    array = jax.device_put(jnp.arange(4096.0).reshape(64, 64), sharding)
    state = {"w": array, "key": jax.random.key(1)}
    path = save(tmp_path, "packs", state, "a")
    assert cordwood.diff(path, state).equal
    single = save(tmp_path, ".safetensors", {**state, "w": np.asarray(array)}, "b")
    difference = cordwood.diff(path, single)
    assert difference.equal
    assert difference.read_bytes >= 4096 * 4
    other = cordwood.diff(path, {**state, "key": jax.random.key(2)})
    assert "key: key<threefry2x32>[]: 1 of 2 elements differ" in str(other)
    kinds = cordwood.diff(path, {**state, "key": jax.random.key_data(state["key"])})
    assert "key: kind: key<threefry2x32>[] | uint32[2]" in str(kinds)


def test_containers_of_other_kinds_differ(tmp_path: Path) -> None:
    a: dict[str, Any] = {"x": [1, 2], "y": None, "z": {}}
    b: dict[str, Any] = {"x": (1, 2), "y": {}, "w": []}
    path = save(tmp_path, ".safetensors", a, "a")
    assert cordwood.diff(path, b).containers == (
        "x: list | tuple",
        "y: None | empty dict or node with fields",
        "z: empty dict or node with fields only in a",
        "w: empty list only in b",
    )
    theirs = tmp_path / "theirs.msgpack"
    theirs.write_bytes(flax.serialization.to_bytes({"x": [1, 2], "y": None, "z": {}}))
    assert cordwood.diff(a, theirs).equal  # Flax's bytes cannot tell lists from dicts


def test_names_that_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a.0.w": np.ones(2), "b": np.zeros(2)}, path)
    assert cordwood.diff(path, {"a": [{"w": np.ones(2)}], "b": np.zeros(2)}).equal
    renamed = cordwood.diff(path, {"c": [np.ones(2)], "b": np.zeros(2)}, rename={"a.*.w": "c/*"})
    assert renamed.equal


def test_a_part_of_both_trees_is_compared(tmp_path: Path) -> None:
    path = save(tmp_path, ".safetensors", tree(), "a")
    other = {**tree(), "step": 8, "more": 1}
    assert cordwood.diff(path, other, select="layers").equal
    assert cordwood.diff(path, other, select=["layers", "more"]).leaves[0].what == "only_b"
    with pytest.raises(MismatchError, match=r"'layer/\*'; did you mean 'layers/\*'\?"):
        cordwood.diff(path, other, select="layer/*")


def test_kinds_count_when_strict() -> None:
    a, b = {"x": jnp.ones(2), "y": jnp.asarray(1.0)}, {"x": np.ones(2, np.float32), "y": 1.0}
    assert str(cordwood.diff(a, b)).endswith("\n  y: kind: float32[] | float")
    difference = cordwood.diff(a, b, strict=True)
    assert "x: kind: jax float32[2] | numpy float32[2]" in str(difference)
    weak = cordwood.diff({"y": jnp.asarray(1.0)}, {"y": jnp.ones(())}, strict=True)
    assert "y: weak type: weak float32[] | float32[]: the values are equal" in str(weak)


def test_structure_alone_reads_nothing(tmp_path: Path) -> None:
    path = save(tmp_path, ".safetensors", tree(), "a")
    other = {**tree(), "n": np.arange(4) + 1}
    difference = cordwood.diff(path, other, values=False)
    assert difference.equal
    assert difference.read_bytes == 0
    assert str(difference).endswith("(values not compared)")
    assert "values not compared" in difference._repr_html_()
    assert "not compared" not in str(cordwood.diff(path, path))


def test_only_blocks_that_differ_are_read(tmp_path: Path) -> None:
    array = np.zeros(8 << 20, np.float32)
    a = save(tmp_path, ".safetensors", {"w": array, "v": array[: 1 << 20]}, "a")
    array[5 << 20] = 1
    b = save(tmp_path, ".safetensors", {"w": array, "v": array[: 1 << 20]}, "b")
    difference = cordwood.diff(a, b)
    assert difference.read_bytes == 4 << 20
    assert difference.equal_by_digest == 1
    (leaf,) = difference.leaves
    assert (leaf.key_path, leaf.differing, leaf.size) == ("w", 1, 8 << 20)


def test_damage_is_reported(tmp_path: Path) -> None:
    a = save(tmp_path, ".safetensors", {"w": np.zeros(1000)}, "a")
    b = save(tmp_path, ".safetensors", {"w": np.ones(1000)}, "b")
    data = bytearray(b.read_bytes())
    data[-1] ^= 1
    b.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"b\.safetensors"):
        cordwood.diff(a, b)


@given(tree=some.trees("safetensors"))
@example(tree=b"")
@settings(max_examples=100)
def test_any_tree_equals_itself(tree: Any) -> None:
    assume(not isinstance(tree, str))  # which names a path, for diff
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        cordwood.save(path, tree)
        for other in (tree, path):
            difference = cordwood.diff(path, other, strict=True)
            assert difference.equal, str(difference)
