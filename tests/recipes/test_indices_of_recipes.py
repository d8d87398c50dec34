"""Indices, roots and sizes of recipes: layers and tensors that are missing are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import MismatchError
from cordwood.recipes import Recipe, Rule, find_recipe
from tests.recipes.families.cases import CASES
from tests.recipes.families.tensors import tensor

LLAMA = next(case for case in CASES if case.name == "llama")
LAST = LLAMA.config["num_hidden_layers"] - 1


def refused(path: Path, recipe: Recipe, match: str) -> None:
    with pytest.raises(MismatchError, match=match):
        cordwood.load(path, recipe=recipe)


def saved(path: Path, tree: Any) -> Path:
    cordwood.save(path, tree)
    return path


def llama_without(folder: Path, part: str) -> Path:
    tensors = {
        name: tensor(name, shape, "float32")
        for name, shape in LLAMA.shapes.items()
        if part not in name
    }
    return saved(folder / "model.safetensors", tensors)


@pytest.mark.parametrize("to", ["flax", "maxtext", "tunix", "easydel"])
@pytest.mark.parametrize("layer", [0, LAST])
@pytest.mark.parametrize("part", ["", "input_layernorm.weight", "self_attn.k_proj.weight"])
def test_a_shipped_recipe_names_what_is_missing(
    to: str, layer: int, part: str, tmp_path: Path
) -> None:
    path = llama_without(tmp_path, f"model.layers.{layer}.{part}")
    recipe = find_recipe(to=to, config=LLAMA.config).replace(lossy=True)
    refused(path, recipe, rf"model\.layers\.{layer}\.{part or 'input_layernorm.weight'} is missing")


def test_a_config_with_another_number_of_layers_is_refused(tmp_path: Path) -> None:
    path = llama_without(tmp_path, "nothing")
    for number in (LAST, LAST + 2):
        recipe = find_recipe(to="flax", config={**LLAMA.config, "num_hidden_layers": number})
        refused(path, recipe, "no rule takes it" if number == LAST else "is missing")


@pytest.mark.parametrize(
    "change",
    [{"head_dim": 16}, {"vocab_size": 7}, {"hidden_size": 99}, {"num_attention_heads": 8}],
)
def test_a_config_that_does_not_describe_the_arrays_is_refused(
    change: dict[str, int], tmp_path: Path
) -> None:
    path = llama_without(tmp_path, "nothing")
    refused(path, find_recipe(to="flax", config=LLAMA.config | change), "does not fit: ")


def test_a_tree_of_jax_that_lacks_a_layer_is_refused(tmp_path: Path) -> None:
    recipe = find_recipe(to="flax", config=LLAMA.config)
    tree = cordwood.load(llama_without(tmp_path, "nothing"), recipe=recipe)
    del tree[f"layers_{LAST}"]
    path = saved(tmp_path / "tree", tree)
    refused(path, recipe.inverse(), f"layers_{LAST}/pre_attention_norm/scale is missing")


def layers(numbers: dict[str, list[int]], size: int = 2) -> dict[str, np.ndarray]:
    return {f"h.{i}.{name}": np.zeros(size) for name, some in numbers.items() for i in some}


@pytest.mark.parametrize("to", ["h{i}/", ""])
def test_rules_with_one_index_have_one_range(to: str, tmp_path: Path) -> None:
    axes = "x" if to else "i x"
    rules = [Rule(f"h.{{i}}.{name}", "x", f"{to}{name}", axes) for name in "ab"]
    path = saved(tmp_path / "t.safetensors", layers({"a": [0, 1, 2], "b": [0, 1]}))
    refused(path, Recipe(rules), r"h\.2\.b is missing")
    other = [rules[0], Rule("h.{j}.b", "x", to.replace("{i}", "{j}") + "b", axes.replace("i", "j"))]
    assert cordwood.load(path, recipe=Recipe(other))


def test_a_tree_lacks_all_of_an_optional_rule_or_nothing(tmp_path: Path) -> None:
    rules = [Rule("h.{i}.a", "x", "a/{i}", "x"), Rule("h.{i}.b", "x", "b/{i}", "x", optional=True)]
    path = saved(tmp_path / "t.safetensors", layers({"a": [0, 1, 2], "b": [0, 2]}))
    refused(path, Recipe(rules), r"h\.1\.b is missing")
    path = saved(tmp_path / "u.safetensors", layers({"a": [0, 1, 2]}))
    assert cordwood.load(path, recipe=Recipe(rules)).keys() == {"a"}


@pytest.mark.parametrize("sizes", [{}, {"i": 4}])
def test_a_layer_without_any_tensor_is_missing(sizes: dict[str, int], tmp_path: Path) -> None:
    path = saved(tmp_path / "t.safetensors", layers({"a": [1, 3], "b": [1, 3]}))
    rules = [Rule(f"h.{{i}}.{name}", "x", f"{name}/{{i}}", "x") for name in "ab"]
    text = r"h\.0\.a, h\.2\.a are missing: .*i from 0 to 3.*an expression of it such as \{2\*j\+1\}"
    refused(path, Recipe(rules, sizes=sizes), text)
    rules = [Rule(f"h.{{2*j+1}}.{name}", "x", f"{name}/{{2*j+1}}", "x") for name in "ab"]
    assert cordwood.load(path, recipe=Recipe(rules))["a"].keys() == {1, 3}


def test_an_index_that_is_too_large_is_refused_without_its_values(tmp_path: Path) -> None:
    rules = [Rule("h.{i}.a", "x", "a/{i}", "x")]
    path = saved(tmp_path / "t.safetensors", layers({"a": [0, 999_999_999]}))
    refused(path, Recipe(rules), "an index has 1000000000 values: expected at most 1048576")
    path = saved(tmp_path / "u.safetensors", layers({"a": [0]}))
    refused(path, Recipe(rules, sizes={"i": 10**9}), "an index has 1000000000 values")


def test_expressions_of_one_index_have_one_range(tmp_path: Path) -> None:
    path = saved(tmp_path / "t.safetensors", layers({"a": [0, 1, 2, 3, 4]}))
    rules = [Rule(f"h.{{2*i+{k}}}.a", "x", f"a{k}", "i x") for k in (0, 1)]
    refused(path, Recipe(rules), r"h\.5\.a is missing")


def test_one_expert_of_one_layer_that_is_missing(tmp_path: Path) -> None:
    tree = {f"h.{i}.{e}.{name}": np.zeros(1) for i in (0, 1) for e in (0, 1) for name in "ab"}
    del tree["h.0.1.b"]
    rules = [Rule(f"h.{{i}}.{{e}}.{name}", "x", f"{name}/{{i}}/{{e}}", "x") for name in "ab"]
    refused(saved(tmp_path / "t.safetensors", tree), Recipe(rules), r"h\.0\.1\.b is missing")


@pytest.mark.parametrize("stacked", [True, False])
def test_stacks_of_different_lengths_are_refused(stacked: bool, tmp_path: Path) -> None:
    rule = Rule("h.{i}.**", "...", "h/**", "i ...")
    if stacked:
        path = saved(tmp_path / "tree", {"h": {"a": np.zeros((2, 3)), "b": np.zeros((1, 3))}})
        refused(path, Recipe([rule]).inverse(), "expected 2 for i, as in other arrays, found 1")
    else:
        path = saved(tmp_path / "t.safetensors", layers({"a": [0, 1], "b": [0]}))
        refused(path, Recipe([rule]), r"h\.1\.b is missing")


def test_each_root_has_its_ranges(tmp_path: Path) -> None:
    tree = {"p": {"h0": np.zeros(1), "h1": np.zeros(1)}, "ema": {"h0": np.zeros(1)}}
    recipe = Recipe([Rule("h{i}", "x", "h", "i x")], roots=["p", "ema"])
    path = saved(tmp_path / "t", tree)
    assert cordwood.load(path, recipe=recipe)["ema"]["h"].shape == (1, 1)
    refused(path, recipe.replace(sizes={"i": 2}), "h1 is missing")


@pytest.mark.parametrize(
    ("root", "text"),
    [
        ("parms", "root parms: no leaf is below it; the nearest name is params"),
        ("**/muu", "root [*][*]/muu: no leaf is below it; the nearest name is mu"),
    ],
)
def test_a_root_that_has_no_leaf_is_an_error(root: str, text: str, tmp_path: Path) -> None:
    tree = {"params": {"w": np.zeros(1)}, "opt": {"mu": {"w": np.zeros(1)}}}
    recipe = Recipe([Rule("w", "x", "v", "x")], roots=["params", "**/mu", root])
    refused(saved(tmp_path / "t", tree), recipe, text)
