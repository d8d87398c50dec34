"""Padding that is not zero is refused where a recipe leaves it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import LossError
from cordwood.recipes import Recipe, Rule

SIZES = {"v": 3}
ONE = Recipe([Rule("e", "v d", "e", "v d", pad={"v": 8})], sizes=SIZES)
STACKED = Recipe([Rule("e.{i}", "v d", "e", "d i v", pad={"v": 8})], sizes=SIZES)
ADDED = Recipe([Rule("e", "v d", "e", "v d", pad={"v": 8}, add=1, scale=2)], sizes=SIZES)
NAMES: dict[str, Any] = {"e": np.ones((3, 2), np.float32)}
LAYERS: dict[str, Any] = {f"e.{i}": np.ones((3, 2), np.float32) for i in range(2)}


@pytest.mark.parametrize(("recipe", "names"), [(ONE, NAMES), (STACKED, LAYERS), (ADDED, NAMES)])
@pytest.mark.parametrize("format", ["packs", "zarr"])
def test_padding_that_is_not_zero_is_refused(
    recipe: Recipe, names: dict[str, Any], format: Any, tmp_path: Path
) -> None:
    cordwood.save(tmp_path / "names.safetensors", names)
    tree = cordwood.load(tmp_path / "names.safetensors", recipe=recipe, to="numpy")
    inverse = recipe.inverse()
    cordwood.save(tmp_path / "zeros", tree, format=format)
    back = cordwood.load(tmp_path / "zeros", recipe=inverse, to="numpy")
    cordwood.testing.assert_trees_equal(back, names)
    assert cordwood.diff(tmp_path / "zeros", tmp_path / "names.safetensors", recipe=inverse).equal
    tree["e"][(1, 1, 6) if recipe is STACKED else (6, 1)] = 5
    path = tmp_path / "other"
    cordwood.save(path, tree, format=format)
    for call in (
        lambda: cordwood.load(path, recipe=inverse),
        lambda: cordwood.load(path, recipe=inverse, mmap=True),
        lambda: cordwood.convert(path, tmp_path / "c.safetensors", recipe=inverse),
        lambda: cordwood.diff(path, tmp_path / "names.safetensors", recipe=inverse),
    ):
        with pytest.raises(LossError, match=r"of 10 elements of padding in e, .* 1 \(10.0 %\) are"):
            call()
    lossy = cordwood.load(path, recipe=inverse.replace(lossy=True), to="numpy")
    cordwood.testing.assert_trees_equal(lossy, names)


def test_a_shard_is_read_without_the_padding_of_the_whole(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "tree", {"e": np.ones((8, 2))})
    with cordwood.open(tmp_path / "tree", recipe=ONE.inverse()) as checkpoint:
        assert checkpoint["e"][1:].shape == (2, 2)
        with pytest.raises(LossError, match="padding"):
            checkpoint["e"][:1]
