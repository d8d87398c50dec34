"""The table of what a recipe makes."""

from __future__ import annotations

import numpy as np
import pytest

from cordwood.errors import MismatchError
from cordwood.recipes import Recipe, Rule, explain_recipe

RECIPE = Recipe([Rule("l.{i}.w", "a b", "w", "i b a"), Rule("n", "a", "norm", "a")])
TREE = {f"l.{i}.w": np.zeros((2, 3), np.float32) for i in range(3)} | {"n": np.zeros(2)}


def test_a_line_for_each_leaf() -> None:
    assert explain_recipe(RECIPE, TREE).splitlines() == [
        "w    float32[3,3,2] <- l.0.w float32[2,3] to l.2.w, 3 in all",
        "norm float64[2]     <- n float64[2]",
    ]


def test_what_differs_from_like_is_marked() -> None:
    like = {"w": np.zeros((3, 2, 3), np.float32), "norm": np.zeros(2), "head": np.zeros(1)}
    assert explain_recipe(RECIPE, TREE, like).splitlines() == [
        "w    float32[3,3,2] <- l.0.w float32[2,3] to l.2.w, 3 in all  (like has float32[3,2,3])",
        "norm float64[2]     <- n float64[2]",
        "head float64[1]: only in like",
    ]


def test_a_tree_that_does_not_fit() -> None:
    with pytest.raises(MismatchError, match="no rule takes it"):
        explain_recipe(RECIPE, TREE | {"x": np.zeros(1)})
