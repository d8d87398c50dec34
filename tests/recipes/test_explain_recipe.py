"""The table of what a recipe makes."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood.errors import FormatError, MismatchError
from cordwood.recipes import Recipe, Rule

RECIPE = Recipe([Rule("l.{i}.w", "a b", "w", "i b a"), Rule("n", "a", "norm", "a")])
TREE = {f"l.{i}.w": np.zeros((2, 3), np.float32) for i in range(3)} | {"n": np.zeros(2)}
LINES = [
    "w    float32[3,3,2] <- l.0.w float32[2,3] to l.2.w, 3 in all",
    "norm float64[2]     <- n float64[2]",
]


@pytest.mark.parametrize("name", ["t.safetensors", "t.msgpack", "t"])
def test_a_path_of_any_format_an_open_checkpoint_and_a_tree_have_the_same_table(
    name: str, tmp_path: Path
) -> None:
    cordwood.save(tmp_path / name, TREE)
    assert str(RECIPE.explain(tmp_path / name)).splitlines() == LINES
    assert str(RECIPE.explain(str(tmp_path / name))).splitlines() == LINES
    with cordwood.open(tmp_path / name) as checkpoint:
        table = RECIPE.explain(checkpoint)
    assert table == RECIPE.explain(TREE)
    assert repr(table).splitlines() == LINES
    assert table.fits


def test_types_of_leaves_are_enough() -> None:
    tree = {
        "l.0.w": jax.ShapeDtypeStruct((50_000, 60_000), jnp.bfloat16),
        "n": jax.ShapeDtypeStruct((50_000,), jnp.bfloat16),
    }
    table = RECIPE.explain(tree)
    assert [row.type for row in table.rows] == ["bfloat16[1,60000,50000]", "bfloat16[50000]"]


def test_nothing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    cordwood.save(path, TREE)
    content = bytearray(path.read_bytes())
    content[-20:] = b"\xff" * 20  # elements: a load would see them
    path.write_bytes(content)
    assert str(RECIPE.explain(path)).splitlines() == LINES


@pytest.mark.parametrize("as_path", [False, True])
def test_what_differs_from_like_is_marked(as_path: bool, tmp_path: Path) -> None:
    like: object = {"w": np.zeros((3, 2, 3), np.float32), "norm": np.zeros(2), "head": np.zeros(1)}
    if as_path:
        cordwood.save(tmp_path / "like", like)
        like = tmp_path / "like"
    table = RECIPE.explain(TREE, like)
    assert str(table).splitlines() == [
        "w    float32[3,3,2] <- l.0.w float32[2,3] to l.2.w, 3 in all  (like has float32[3,2,3])",
        "norm float64[2]     <- n float64[2]",
        "head float64[1]: only in like",
    ]
    assert not table.fits
    assert RECIPE.explain(TREE, {"norm": np.zeros(2), "w": np.zeros((3, 3, 2), "f4")}).fits
    assert not RECIPE.explain(TREE, {"norm": np.zeros(2)}).fits


def test_names_move_no_cursor() -> None:
    tree = {"a\x1b[31m": np.zeros(1, np.float32)}
    assert str(Recipe([Rule("**", paths="**")]).explain(tree)) == (
        "a%1B[31m float32[1] <- a%1B[31m float32[1]"
    )


def test_functions_in_like_are_no_leaves() -> None:
    like = {"w": np.zeros((3, 3, 2), np.float32), "norm": np.zeros(2), "apply": print}
    assert RECIPE.explain(TREE, like).fits


def test_a_configuration_tells_sizes() -> None:
    recipe = Recipe([Rule("q", "(n h)", "q", "n h")], sizes={"h": "head_dim"})
    tree = {"q": np.zeros(8, np.float32)}
    assert str(recipe.explain(tree, config={"head_dim": 2})) == "q float32[4,2] <- q float32[8]"
    with pytest.raises(MismatchError, match="the sizes of n, h do not follow"):
        recipe.explain(tree)


def test_a_tree_that_does_not_fit() -> None:
    with pytest.raises(MismatchError, match="no rule takes it"):
        RECIPE.explain(TREE | {"x": np.zeros(1)})


def test_a_path_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        RECIPE.explain(tmp_path / "nothing")
    (tmp_path / "t.safetensors").write_bytes(b"x" * 10)
    with pytest.raises(FormatError):
        RECIPE.explain(tmp_path / "t.safetensors")
