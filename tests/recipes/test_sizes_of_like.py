"""Sizes that neither the stored arrays nor a configuration tell are those of `like`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.errors import MismatchError
from cordwood.recipes import Recipe, Rule
from tests.shardings import mesh_of

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


HEADS = Recipe([Rule("layers.{i}.q", "(n h) d", "layers/q", "i d n h")])
Q = {f"layers.{i}.q": array(12, 5) for i in range(2)}


def loaded(path: Path, tree: object, like: Any, recipe: Recipe) -> Any:
    cordwood.save(path, tree)
    return cordwood.load(path, like, recipe=recipe)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.safetensors"


@pytest.mark.parametrize(("n", "h"), [(3, 4), (4, 3), (12, 1)])
def test_heads(n: int, h: int, path: Path) -> None:
    params = loaded(path, Q, {"layers": {"q": zeros(2, 5, n, h)}}, HEADS)
    expected = np.stack([each.reshape(n, h, 5).transpose(2, 0, 1) for each in Q.values()])
    np.testing.assert_array_equal(params["layers"]["q"], expected)


def test_types_on_devices_are_a_like(path: Path) -> None:
    mesh = mesh_of(2, 4)
    struct = jax.ShapeDtypeStruct((2, 5, 4, 3), jnp.float32)
    cordwood.save(path, Q)
    params = cordwood.load(
        path,
        {"layers": {"q": struct}},
        recipe=HEADS,
        mesh=mesh,
        rules=[("layers/q", P(None, None, "y", None))],
    )
    assert params["layers"]["q"].sharding.spec == P(None, None, "y", None)
    assert params["layers"]["q"].shape == (2, 5, 4, 3)


def test_a_grouped_axis_of_the_target(path: Path) -> None:
    recipe = Recipe([Rule("q", "(n t k) d", "q", "d n (k t)")])
    tree = {"q": array(16, 3)}
    with pytest.raises(MismatchError, match=r"the sizes of t, k do not follow.*shapes of like"):
        loaded(path, tree, {"q": zeros(3, 2, 8)}, recipe)
    params = loaded(path, tree, {"q": zeros(3, 2, 8)}, recipe.replace(sizes={"t": 2}))
    np.testing.assert_array_equal(
        params["q"], tree["q"].reshape(2, 2, 4, 3).transpose(3, 0, 2, 1).reshape(3, 2, 8)
    )


def test_padding_to_the_size_of_like_and_back(path: Path, tmp_path: Path) -> None:
    recipe = Recipe([Rule("embed", "v d", "embed", "v d", pad={"v": "padded"})])
    tree = {"embed": array(5, 3)}
    with pytest.raises(MismatchError, match="pad: the size 'padded' of v is not known"):
        loaded(path, tree, None, recipe)
    params = loaded(path, tree, {"embed": zeros(8, 3)}, recipe)
    np.testing.assert_array_equal(params["embed"], np.pad(tree["embed"], ((0, 3), (0, 0))))
    back = loaded(tmp_path / "params", params, {"embed": zeros(5, 3)}, recipe.inverse())
    np.testing.assert_array_equal(back["embed"], tree["embed"])
    with pytest.raises(MismatchError, match="pad: v has 5 elements, more than 4; like has embed"):
        loaded(path, tree, {"embed": zeros(4, 3)}, recipe)
    with pytest.raises(MismatchError, match="the size of v without its padding is not known"):
        cordwood.load(tmp_path / "params", recipe=recipe.inverse())


def test_unequal_parts(path: Path) -> None:
    recipe = Recipe([Rule("qkv", "(c) d", ["q", "k"], "c d", cat={"c": ["n_q", "n_k"]})])
    tree = {"qkv": array(7, 2)}
    params = loaded(path, tree, {"q": zeros(4, 2), "k": zeros(3, 2)}, recipe)
    np.testing.assert_array_equal(params["k"], tree["qkv"][4:])
    with pytest.raises(
        MismatchError, match=r"cat: expected 4 \+ 4 = 8 for c, found 7; like has q float32\[4,2\]"
    ):
        loaded(path, tree, {"q": zeros(4, 2), "k": zeros(4, 2)}, recipe)
    with pytest.raises(MismatchError, match="the sizes of the parts along c are not known"):
        loaded(path, tree, {"q": zeros(4, 2)}, recipe)


def test_any_keys_below_roots_have_sizes_of_their_place(path: Path) -> None:
    recipe = Recipe([Rule("**/q", "(n h)", "**/q", "n h")], roots=["params", "mu"])
    tree = {root: {"a": {"q": array(12)}, "b": {"q": array(6)}} for root in ("params", "mu")}
    like = {root: {"a": {"q": zeros(3, 4)}, "b": {"q": zeros(3, 2)}} for root in ("params", "mu")}
    params = loaded(path.with_suffix(""), tree, like, recipe)
    np.testing.assert_array_equal(params["mu"]["b"]["q"], tree["mu"]["b"]["q"].reshape(3, 2))


def test_a_tree_that_contradicts_the_stored_array_is_named_with_it(path: Path) -> None:
    with pytest.raises(MismatchError) as e:
        loaded(path, Q, {"layers": {"q": zeros(2, 5, 2, 4)}}, HEADS)
    assert str(e.value).splitlines()[1] == (
        "  rule layers.{i}.q [(n h) d] <-> layers/q [i d n h]: the shape [12, 5] does not fit: "
        "expected 8 for (n h) (n = 2, h = 4), found 12; like has layers/q float32[2,5,2,4]"
    )


def test_a_tree_that_contradicts_the_configuration_is_named_with_it(path: Path) -> None:
    recipe = HEADS.replace(sizes={"h": 4})
    with pytest.raises(MismatchError, match=r"expected float32\[2,5,4,3\]\n? *.*found .*2,5,3,4"):
        loaded(path, Q, {"layers": {"q": zeros(2, 5, 4, 3)}}, recipe)


def test_a_tree_that_contradicts_itself(path: Path) -> None:
    recipe = Recipe([Rule("layers.{i}.q", "(n h)", "layers_{i}/q", "n h")])
    tree = {f"layers.{i}.q": array(12) for i in range(2)}
    like = {"layers_0": {"q": zeros(3, 4)}, "layers_1": {"q": zeros(4, 3)}}
    with pytest.raises(MismatchError, match=r"n is 3 in layers_0/q float32\[3,4\] of like, and 4"):
        loaded(path, tree, like, recipe)


def test_other_leaves_of_like_do_not_matter(path: Path) -> None:
    class State(flax.struct.PyTreeNode):
        params: Any
        apply: Any
        step: int = 0

    recipe = HEADS.replace(roots=["params"])
    like = State(params={"layers": {"q": zeros(2, 5, 3, 4)}}, apply=print, step=3)
    cordwood.save(path.with_suffix(""), {"params": Q, "step": 5})
    state = cordwood.load(path.with_suffix(""), like, recipe=recipe, missing="keep")
    assert state.step == 5
    assert state.params["layers"]["q"].shape == (2, 5, 3, 4)


def test_a_table_and_a_difference_use_the_other_side(path: Path) -> None:
    params = loaded(path, Q, {"layers": {"q": zeros(2, 5, 3, 4)}}, HEADS)
    assert HEADS.explain(path, params).fits
    assert cordwood.diff(path, params, recipe=HEADS).equal
    cordwood.save(path.parent / "params", params)
    assert cordwood.diff(path, path.parent / "params", recipe=HEADS).equal
    assert cordwood.diff(path.parent / "params", path, recipe=HEADS.inverse()).equal


def test_selected_leaves(path: Path) -> None:
    recipe = HEADS.replace(rules=[*HEADS.rules, Rule("x", "a", "x", "a")])
    cordwood.save(path, {**Q, "x": array(2)})
    like = {"layers": {"q": zeros(2, 5, 3, 4)}}
    assert cordwood.load(path, like, select="layers*", recipe=recipe)["layers"]["q"].shape[-1] == 4


def test_migrations(path: Path) -> None:
    cordwood.save(path, Q)
    like = {"layers": {"q": zeros(2, 5, 3, 4)}}
    params = cordwood.load(path, like, migrations=[{"recipe": HEADS}])
    assert params["layers"]["q"].shape == (2, 5, 3, 4)
