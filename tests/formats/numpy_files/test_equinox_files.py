"""Files that equinox writes, read into a `like`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood.errors import FormatError, MismatchError, UnsupportedFormatError
from tests.golden.equinox_files import PATH, TREE


class Model(equinox.Module):
    mlp: equinox.nn.MLP
    scale: float
    step: int
    name: str
    key: jax.Array
    table: np.ndarray
    half: jax.Array

    def __init__(self, seed: int, width: int = 8) -> None:
        key = jax.random.PRNGKey(seed)
        self.mlp = equinox.nn.MLP(2, 3, width, 2, key=key)
        self.scale = 0.5 + seed
        self.step = seed
        self.name = f"model {seed}"
        self.key = key
        self.table = np.arange(4, dtype=np.int32) + seed
        self.half = jnp.full(3, seed, jnp.bfloat16)


def same(result: Any, expected: Any) -> None:
    leaves, others = jax.tree.leaves(result), jax.tree.leaves(expected)
    assert str(jax.tree.structure(result)) == str(jax.tree.structure(expected))
    for leaf, other in zip(leaves, others, strict=True):
        assert type(leaf) is type(other)
        if isinstance(other, jax.Array | np.ndarray):
            assert (leaf.shape, leaf.dtype) == (other.shape, other.dtype)
            np.testing.assert_array_equal(leaf, other)
        elif not callable(other):
            assert leaf == other


@pytest.fixture
def path(tmp_path: Path) -> Path:
    equinox.tree_serialise_leaves(tmp_path / "model.eqx", Model(3))
    return tmp_path / "model.eqx"


def test_the_golden_file_of_equinox_is_read() -> None:
    result = cordwood.load(PATH, like=jax.tree.map(lambda leaf: leaf, TREE))
    same(result, TREE)
    for leaf, other in zip(jax.tree.leaves(result), jax.tree.leaves(TREE), strict=True):
        assert type(leaf) is type(other)


def test_as_equinox_reads_it(path: Path) -> None:
    like = Model(9)
    result = cordwood.load(path, like=like)
    same(result, equinox.tree_deserialise_leaves(path, like))
    assert (result.scale, result.step, result.name) == (3.5, 3, "model 9")  # no string is stored
    assert result.mlp.activation is like.mlp.activation
    assert like.step == 9


def test_an_abstract_like_is_filled(path: Path) -> None:
    like = equinox.filter_eval_shape(Model, 0)
    result = cordwood.load(path, like=like)
    np.testing.assert_array_equal(result.mlp.layers[0].weight, Model(3).mlp.layers[0].weight)
    assert isinstance(result.half, jax.Array)


def test_onto_a_mesh_and_mapped(path: Path) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    result = cordwood.load(
        path, like=Model(0), mesh=mesh, rules=[(r"0/weight", jax.P("x")), ("", jax.P())]
    )
    assert result.mlp.layers[0].weight.sharding.spec == jax.P("x")
    same(cordwood.load(path, like=Model(0), mmap=True).mlp, Model(3).mlp)


def test_a_file_of_equinox_needs_like(path: Path) -> None:
    with pytest.raises(
        MismatchError, match=r"model\.eqx holds 11 arrays without names .*: pass like="
    ):
        cordwood.load(path)
    with cordwood.open(path) as checkpoint:
        assert list(checkpoint)[:2] == ["0", "1"]
        np.testing.assert_array_equal(
            checkpoint["0"][1:3, 0], Model(3).mlp.layers[0].weight[1:3, 0]
        )
        with pytest.raises(MismatchError, match="pass like="):
            checkpoint.load()
    assert cordwood.verify(path).unverified_bytes == path.stat().st_size


def test_every_array_of_another_width_is_named(path: Path) -> None:
    with pytest.raises(MismatchError) as caught:
        cordwood.load(path, like=Model(0, width=9))
    text = str(caught.value)
    assert f"5 leaves of {path} do not fit `like`" in text
    assert "mlp/layers/0/weight: expected float32[9,2], found float32[8,2]" in text
    assert "mlp/layers/2/weight: expected float32[3,9], found float32[3,8]" in text


def test_other_dtypes_and_kinds(tmp_path: Path) -> None:
    path = tmp_path / "x.eqx"
    equinox.tree_serialise_leaves(path, {"a": jnp.ones(2), "n": 7, "f": 2.0, "b": True})
    like: dict[str, Any] = {"a": jnp.ones(2, jnp.bfloat16), "n": 0.0, "f": 0, "b": 1}
    with pytest.raises(MismatchError) as caught:
        cordwood.load(path, like=like)
    for line in (
        r"a: expected bfloat16[2], found float32[2] (cast=True converts it)",
        r"n: expected float, found int64[] (cast=True converts it)",
        r"f: expected int, found float64[] (cast=True converts it)",
        r"b: expected int, found bool[] (cast=True converts it)",
    ):
        assert line in str(caught.value)
    result = cordwood.load(path, like=like, cast=True)
    assert result["a"].dtype == jnp.bfloat16
    assert (result["n"], result["f"], result["b"]) == (7.0, 2, 1)
    assert [type(result[name]) for name in "nfb"] == [float, int, int]


def test_other_numbers_of_leaves(path: Path, tmp_path: Path) -> None:
    like: Any = {"model": Model(0), "zero": jnp.ones(1)}
    with pytest.raises(
        MismatchError,
        match=r"expected 12 arrays and numbers, found 11 in the file: zero is the first that",
    ):
        cordwood.load(path, like=like)
    with pytest.raises(
        MismatchError,
        match=r"expected 6 arrays .* found 11 .*: array 6, float64\[\], is the first one too many",
    ):
        cordwood.load(path, like=Model(0).mlp)


def test_an_empty_file_is_a_tree_without_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.eqx"
    equinox.tree_serialise_leaves(path, {"name": "x"})
    assert cordwood.load(path, like={"name": "y"}) == {"name": "y"}


def test_key_data_become_prng_keys(tmp_path: Path) -> None:
    path = tmp_path / "x.eqx"
    keys = jax.random.split(jax.random.key(5), 3)
    equinox.tree_serialise_leaves(path, {"k": jax.random.key_data(keys)})
    result = cordwood.load(path, like={"k": jax.random.split(jax.random.key(0), 3)})
    np.testing.assert_array_equal(jax.random.key_data(result["k"]), jax.random.key_data(keys))
    with pytest.raises(MismatchError, match=r"k: expected key<threefry2x32>\[2\], found"):
        cordwood.load(path, like={"k": jax.random.split(jax.random.key(0))})


def test_types_that_npy_does_not_tell(tmp_path: Path) -> None:
    path = tmp_path / "x.eqx"
    equinox.tree_serialise_leaves(path, [jnp.ones(1), jnp.ones(1, jnp.float8_e4m3fn)])
    with pytest.raises(MismatchError, match=r"float8 types.*missing=\"keep\" keeps that of"):
        cordwood.load(path, like=[jnp.ones(1), jnp.ones(1, jnp.float8_e4m3fn)])


def test_files_of_equinox_are_detected_and_not_written(path: Path, tmp_path: Path) -> None:
    assert cordwood.detect(path).format == "eqx"
    np.save(tmp_path / "one.npy", np.ones(1))
    (tmp_path / "one.npy").rename(tmp_path / "one.eqx")
    assert cordwood.detect(tmp_path / "one.eqx").format == "eqx"
    (tmp_path / "one.eqx").rename(tmp_path / "one")
    assert cordwood.detect(tmp_path / "one").format == "npy"
    path.rename(tmp_path / "model")
    assert cordwood.detect(tmp_path / "model").format == "eqx"
    assert cordwood.load(tmp_path / "model", like=Model(0)).step == 3
    with pytest.raises(UnsupportedFormatError, match="eqx is read, and not written"):
        cordwood.save(tmp_path / "new.eqx", {"a": 1})


def test_a_line_of_json_in_front_is_the_metadata(tmp_path: Path) -> None:
    """The documentation of equinox saves hyperparameters so."""
    path = tmp_path / "model.eqx"
    hyperparameters = {
        "width": 8,
        "name": "small é",
        "dropout": 0.1,
        "layers": [1, 2],
        "bias": None,
    }
    with path.open("wb") as file:
        file.write((json.dumps(hyperparameters) + "\n").encode())
        equinox.tree_serialise_leaves(file, Model(3))
    assert cordwood.load(path, like=Model(0)).scale == 3.5
    with cordwood.open(path) as checkpoint:
        metadata = dict(checkpoint.metadata)
    assert metadata.pop("name") == "small é"
    hyperparameters.pop("name")
    assert {name: json.loads(text) for name, text in metadata.items()} == hyperparameters
    assert cordwood.detect(path).format == "eqx"
    path.rename(tmp_path / "model.bin")
    assert cordwood.load(tmp_path / "model.bin", like=Model(0)).step == 3


def test_a_line_in_front_that_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "model.eqx"
    with path.open("wb") as file:
        file.write(b"[8, 2]\n")
        equinox.tree_serialise_leaves(file, [jnp.ones(2)])
    assert cordwood.open(path).metadata == {"json": "[8, 2]"}
    np.testing.assert_array_equal(cordwood.load(path, like=[jnp.zeros(2)])[0], np.ones(2))


def test_a_line_in_front_that_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "model.eqx"
    with path.open("wb") as file:
        file.write(b"{width: 8}\n")
        equinox.tree_serialise_leaves(file, [jnp.ones(2)])
    with pytest.raises(FormatError, match="the line in front of the arrays is not JSON"):
        cordwood.load(path, like=[jnp.zeros(2)])
