"""One leaf in several spellings of its key path, in every argument that takes key paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.testing import assert_trees_equal
from tests.loading.tree_writers import WRITERS, Writer
from tests.shardings import mesh_of

TREE: dict[Any, Any] = {0: {"blocks": {0: {"w": jnp.arange(8.0)}, 1: {"w": jnp.zeros(8)}}}}
W = TREE[0]["blocks"][0]["w"]
SPELLINGS = ["(0)/blocks/(0)/w", "0/blocks/0/w", "[0].blocks[0].w", "[0]['blocks'][0]['w']"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    cordwood.save(tmp_path / "a", TREE)
    return tmp_path / "a"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_argument_takes_every_spelling(spelling: str, path: Path, tmp_path: Path) -> None:
    expected = {0: {"blocks": {0: {"w": W}}}}
    assert_trees_equal(cordwood.load(path, select=spelling), expected)
    assert_trees_equal(
        cordwood.load(path, like={"x": W}, select=spelling, rename={spelling: "x"}), {"x": W}
    )
    cast = cordwood.load(path, cast={spelling: "bf16"})[0]["blocks"]
    assert [block["w"].dtype.name for block in cast.values()] == ["bfloat16", "float32"]
    placed = cordwood.load(path, mesh=mesh_of(8), shardings={spelling: P("x")})[0]["blocks"]
    assert [block["w"].sharding.spec for block in placed.values()] == [P("x"), P()]
    with cordwood.open(path) as checkpoint:
        np.testing.assert_array_equal(checkpoint[spelling], W)
    cordwood.convert(path, tmp_path / "b", select=spelling, rename={spelling: ""})
    assert_trees_equal(cordwood.load(tmp_path / "b"), W)
    rest = {0: {"blocks": {1: TREE[0]["blocks"][1]}}}
    assert cordwood.diff(path, {**rest, "x": W}, rename={spelling: "x"}).equal
    assert cordwood.diff(path, rest, select=f"!{spelling}").equal


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("format", WRITERS)
def test_every_format_takes_every_spelling(spelling: str, format: str, tmp_path: Path) -> None:
    write: Writer = WRITERS[format]
    tree = {"0": TREE[0], "x": jnp.ones(2)} if format in ("msgpack", "flax") else TREE
    path = write(tmp_path, tree)
    loaded = cordwood.load(path, like=W, select=spelling, rename={spelling: ""})
    assert_trees_equal(loaded, W)


def test_an_exact_entry_for_an_integer_array_takes_every_spelling(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {0: {"ids": np.arange(3)}})
    for spelling in ("(0)/ids", "0/ids", "[0].ids"):
        loaded = cordwood.load(tmp_path / "a", cast={spelling: "int32"})
        assert loaded[0]["ids"].dtype == np.int32


def test_a_key_path_of_two_leaves_in_plain_form_is_none_of_them(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {0: np.ones(1), "0": np.ones(2)})
    with cordwood.open(tmp_path / "a") as checkpoint:
        assert (checkpoint["(0)"].shape, checkpoint["'0'"].shape) == ((1,), (2,))
        with pytest.raises(KeyError, match="has no leaf"):
            checkpoint["0"]
