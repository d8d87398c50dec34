"""Recipes of whole training states, ties, and names in other spellings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import cordwood
from cordwood.errors import MismatchError
from cordwood.recipes import Recipe, Rule

LAYERS = Rule("layers_{i}/**", "...", "layers/**", "i ...")
NORM = Rule("norm/scale", "d", "norm/scale", "d")


class Adam(NamedTuple):
    count: Any
    mu: Any
    nu: Any


class Empty(NamedTuple):
    pass


def params(start: int) -> dict[str, Any]:
    """Return parameters of three layers, each in a container of its own."""
    layers = {
        f"layers_{i}": {
            "mlp": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * i + start},
            "bias": np.full(3, i + start, np.float32),
        }
        for i in range(3)
    }
    return layers | {"norm": {"scale": np.full(2, start, np.float32)}}


def scanned(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the same parameters with the layers stacked."""
    layers = [tree[f"layers_{i}"] for i in range(3)]
    return {
        "layers": {
            "mlp": {"kernel": np.stack([each["mlp"]["kernel"] for each in layers])},
            "bias": np.stack([each["bias"] for each in layers]),
        },
        "norm": tree["norm"],
    }


def state(make: Any) -> dict[str, Any]:
    adam = Adam(np.int32(7), make(params(100)), make(params(200)))
    return {"step": 7, "params": make(params(0)), "opt_state": (Empty(), (adam, Empty()))}


RECIPE = Recipe([LAYERS, NORM], roots=["params", "**/mu", "**/nu"])


@pytest.mark.parametrize("suffix", ["", ".msgpack", ".safetensors"])
def test_the_moments_of_an_optimizer_follow_the_parameters(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"state{suffix}"
    cordwood.save(path, state(lambda tree: tree))
    expected = state(scanned)
    loaded = cordwood.load(path, expected, recipe=RECIPE)
    cordwood.testing.assert_trees_equal(loaded, expected)
    cordwood.save(tmp_path / "scanned", loaded)
    back = cordwood.load(tmp_path / "scanned", state(lambda tree: tree), recipe=RECIPE.inverse())
    cordwood.testing.assert_trees_equal(back, state(lambda tree: tree))


def test_a_state_keeps_its_containers_without_like(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "state", state(lambda tree: tree))
    loaded = cordwood.load(tmp_path / "state", recipe=RECIPE)
    assert loaded["step"] == 7
    assert list(loaded["opt_state"][1][0]) == ["count", "mu", "nu"]
    np.testing.assert_array_equal(
        loaded["opt_state"][1][0]["mu"]["layers"]["bias"], scanned(params(100))["layers"]["bias"]
    )


def test_rules_with_arithmetic_are_refused_for_moments(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "state", state(lambda tree: tree))
    scaled = Rule("norm/scale", "d", "norm/scale", "d", add=1)
    with pytest.raises(MismatchError, match=r"not for the moments in opt_state/1/0/mu"):
        cordwood.load(tmp_path / "state", recipe=RECIPE.replace(rules=[LAYERS, scaled]))
    only = RECIPE.replace(rules=[LAYERS, scaled], roots=["params"])
    loaded = cordwood.load(tmp_path / "state", recipe=only)
    np.testing.assert_array_equal(loaded["params"]["norm"]["scale"], [1, 1])


def test_linen_to_nnx_and_back(tmp_path: Path) -> None:
    """Variables of an nnx.State have a last key `value`; keys of lists are numbers."""
    linen: Any = {
        "params": {"dense_0": {"kernel": np.ones((2, 3))}, "dense_1": {"kernel": np.ones(4)}}
    }
    recipe = Recipe([Rule("params/dense_{i}/**", "...", "dense/{i}/**/value", "...")])
    cordwood.save(tmp_path / "linen", linen)
    nnx = {
        "dense": {i: {"kernel": {"value": linen["params"][f"dense_{i}"]["kernel"]}} for i in (0, 1)}
    }
    loaded = cordwood.load(tmp_path / "linen", nnx, recipe=recipe)
    cordwood.testing.assert_trees_equal(loaded, nnx)
    cordwood.save(tmp_path / "nnx", nnx)
    back = cordwood.load(tmp_path / "nnx", recipe=recipe.inverse())
    cordwood.testing.assert_trees_equal(back, linen)


TIED = Recipe(
    [
        Rule("embed.weight", "v d", "embed", "v d"),
        Rule("embed.weight", "v d", "head", "d v", when="tied"),
        Rule("head.weight", "v d", "head", "d v", when="1 - tied"),
    ],
    sizes={"tied": 1},
)


def test_a_tied_array_goes_to_two_places_and_comes_back_once(tmp_path: Path) -> None:
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    cordwood.save(tmp_path / "tied.safetensors", {"embed.weight": weight})
    tree = cordwood.load(tmp_path / "tied.safetensors", recipe=TIED)
    np.testing.assert_array_equal(tree["head"], weight.T)
    cordwood.save(tmp_path / "tree", tree)
    back = cordwood.load(tmp_path / "tree", recipe=TIED.inverse())
    assert back.keys() == {"embed.weight"}
    np.testing.assert_array_equal(back["embed.weight"], weight)


def test_a_tie_that_does_not_hold_is_an_error(tmp_path: Path) -> None:
    tree = {"embed": np.zeros((3, 2)), "head": np.ones((2, 3))}
    cordwood.save(tmp_path / "tree", tree)
    with pytest.raises(MismatchError, match=r"expects to be equal, and they are not: embed, head"):
        cordwood.load(tmp_path / "tree", recipe=TIED.inverse())
    untied = TIED.with_config({"tied": False}).inverse()
    assert cordwood.load(tmp_path / "tree", recipe=untied).keys() == {"embed.weight", "head.weight"}


def test_names_may_begin_otherwise(tmp_path: Path) -> None:
    recipe = Recipe(
        [Rule("model.layers.{i}.w", "a", "w", "i a"), Rule("head", "a", "head", "a")],
        prefixes={"model.": ["", "language_model.model."]},
    )
    for start in ("model.", "", "language_model.model."):
        tree = {f"{start}layers.{i}.w": np.full(2, i) for i in range(3)} | {"head": np.ones(1)}
        cordwood.save(tmp_path / "t.safetensors", tree)
        loaded = cordwood.load(tmp_path / "t.safetensors", recipe=recipe)
        np.testing.assert_array_equal(loaded["w"], [[0, 0], [1, 1], [2, 2]])
    cordwood.save(tmp_path / "tree", loaded)
    back = cordwood.load(tmp_path / "tree", recipe=recipe.inverse())
    assert list(back) == ["model.layers.0.w", "model.layers.1.w", "model.layers.2.w", "head"]


def test_blocks_of_layers_and_a_remainder(tmp_path: Path) -> None:
    """Eight layers in blocks of three: two blocks, and two layers that are left over."""
    recipe = Recipe(
        [
            *[Rule(f"layers.{{3*i+{k}}}.w", "a", f"blocks/l{k}", "i a") for k in range(3)],
            Rule("layers.{3*blocks+r}.w", "a", "rest/layers_{r}", "a"),
        ],
        sizes={"i": "(n - n % 3) // 3", "blocks": "i", "r": "n % 3"},
    ).with_config({"n": 8})
    tree = {f"layers.{i}.w": np.full(2, i) for i in range(8)}
    cordwood.save(tmp_path / "t.safetensors", tree)
    loaded = cordwood.load(tmp_path / "t.safetensors", recipe=recipe)
    np.testing.assert_array_equal(loaded["blocks"]["l1"][:, 0], [1, 4])
    assert {name: array[0] for name, array in loaded["rest"].items()} == {
        "layers_0": 6,
        "layers_1": 7,
    }
    cordwood.save(tmp_path / "tree", loaded)
    back = cordwood.load(tmp_path / "tree", recipe=recipe.inverse())
    cordwood.testing.assert_trees_equal({k: back[k] for k in tree}, tree)


def test_arrays_without_elements(tmp_path: Path) -> None:
    recipe = Recipe([Rule("l.{i}", "a b", "l", "b i a")], sizes={"a": 0})
    tree = {f"l.{i}": np.zeros((0, 3), np.float32) for i in range(2)}
    cordwood.save(tmp_path / "t.safetensors", tree)
    loaded = cordwood.load(tmp_path / "t.safetensors", recipe=recipe)
    assert loaded["l"].shape == (3, 2, 0)
    cordwood.save(tmp_path / "tree", loaded)
    cordwood.testing.assert_trees_equal(
        cordwood.load(tmp_path / "tree", recipe=recipe.inverse()), tree
    )


def test_unequal_parts_are_joined_and_cut(tmp_path: Path) -> None:
    recipe = Recipe(
        [Rule(["q", "k", "v"], "(c h) d", "qkv", "d c h", cat={"c": ["n", "m", "m"]})],
        sizes={"n": 4, "m": 2, "h": 3},
    )
    tree = {
        name: np.arange(heads * 15).reshape(heads * 3, 5) + 100 * n
        for n, (name, heads) in enumerate([("q", 4), ("k", 2), ("v", 2)])
    }
    cordwood.save(tmp_path / "t.safetensors", tree)
    loaded = cordwood.load(tmp_path / "t.safetensors", recipe=recipe)
    expected = np.concatenate([tree[name] for name in "qkv"]).reshape(8, 3, 5).transpose(2, 0, 1)
    np.testing.assert_array_equal(loaded["qkv"], expected)
    cordwood.save(tmp_path / "tree", loaded)
    back = cordwood.load(tmp_path / "tree", recipe=recipe.inverse())
    cordwood.testing.assert_trees_equal(back, tree)


def test_a_recipe_is_a_migration(tmp_path: Path) -> None:
    """Steps from before the layers were stacked are loaded by it, and later ones as they are."""
    new = state(scanned)
    migrations: Any = [{"recipe": RECIPE}]
    cordwood.save(tmp_path / "old", state(lambda tree: tree))
    cordwood.save(tmp_path / "new", new)
    for name in ("old", "new"):
        loaded = cordwood.load(tmp_path / name, new, migrations=migrations)
        cordwood.testing.assert_trees_equal(loaded, new)
