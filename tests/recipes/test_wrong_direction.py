"""A recipe for the other direction: the error says so, and what it advises works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.errors import MismatchError
from cordwood.recipes import Recipe, Rule
from tests.cli.conftest import Run, run  # noqa: F401

RECIPE = Recipe([Rule("layers.{i}.w", "(n h) d", "w", "i d n h")], sizes={"h": 2})
TREE = {f"layers.{i}.w": np.arange(24, dtype=np.float32).reshape(8, 3) + i for i in range(2)}
ADVICE = r"recipe.inverse\(\) fits these names"


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    cordwood.save("hub.safetensors", TREE)
    cordwood.convert("hub.safetensors", "params", recipe=RECIPE)
    return tmp_path / "params"


def test_a_tree_of_the_other_side(params: Path) -> None:
    with pytest.raises(MismatchError, match=ADVICE):
        cordwood.load(params, recipe=RECIPE)
    tree = cordwood.load(params, recipe=RECIPE.inverse())
    assert tree.keys() == TREE.keys()
    with pytest.raises(MismatchError, match=ADVICE):
        cordwood.load("hub.safetensors", recipe=RECIPE.inverse())
    assert cordwood.load("hub.safetensors", recipe=RECIPE.inverse().inverse())["w"].ndim == 4


def test_a_part_of_the_other_side(params: Path) -> None:
    cordwood.save("two", {"w": np.zeros((1, 3, 4, 2)), "x": np.zeros(2)})
    with pytest.raises(MismatchError, match=ADVICE):
        cordwood.load("two", select="w", recipe=RECIPE)
    assert cordwood.load("two", select="w", recipe=RECIPE.inverse())


def test_sizes_that_are_missing_are_asked_for_next(params: Path) -> None:
    recipe = RECIPE.replace(sizes={}, rules=[Rule("l.{i}", "(n h) d", "w", "i (n h) d")])
    with pytest.raises(MismatchError, match=ADVICE):
        recipe.explain({"w": np.zeros((2, 8, 3))})
    with pytest.raises(MismatchError, match="the sizes of n, h do not follow"):
        recipe.inverse().explain({"w": np.zeros((2, 8, 3))})


def test_the_option_of_the_command(params: Path, run: Run) -> None:  # noqa: F811
    Path("r.json").write_text(RECIPE.to_json())
    convert = ("convert", "params", "back.safetensors", "--recipe", "r.json")
    refused = run(*convert)
    assert refused.code == 3
    assert "in a command, add --inverse, or leave it out" in refused.err
    assert run(*convert, "--inverse").code == 0
    assert cordwood.diff("back.safetensors", "hub.safetensors").equal
    again = run("convert", "back.safetensors", "p2", "--recipe", "r.json", "--inverse")
    assert "in a command, add --inverse, or leave it out" in again.err
    assert run("convert", "back.safetensors", "p2", "--recipe", "r.json").code == 0


@pytest.mark.parametrize("recipe", [RECIPE, RECIPE.inverse()])
def test_a_tree_of_neither_side(recipe: Recipe) -> None:
    with pytest.raises(MismatchError) as e:
        recipe.explain({"w": np.zeros((2, 3, 4, 2)), "layers.0.w": np.zeros((8, 3))})
    assert "inverse" not in str(e.value)


def test_an_ignored_side_fits_nothing() -> None:
    recipe = Recipe([Rule("**", paths=None, optional=True), Rule(None, paths="w")])
    with pytest.raises(MismatchError) as e:
        recipe.inverse().explain({"x": np.zeros(2)})
    assert "inverse" not in str(e.value)
