"""The order of jax.tree.leaves, computed from the structure alone."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import jax
import pytest

from cordwood.index import jax_order
from cordwood.tree.flatten import flatten


class Pair(NamedTuple):
    b: Any
    a: Any


@jax.tree_util.register_pytree_node_class
class Opaque:
    def __init__(self, *children: Any) -> None:
        self.children = children

    def __repr__(self) -> str:  # the same in every process: it names a test
        return f"Opaque{self.children}"

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _aux: None, children: tuple[Any, ...]) -> Opaque:
        return cls(*children)


TREES = [
    1,
    {},
    [None, 1, (2, [3])],
    {"b": 1, "a": {"z": 2, "y": [3, {}]}, "": None},
    {2: 1, 1: {"b": 2, "a": 3}},
    {True: 1, 0: 2, -1.5: 3},
    {(1, "b"): 1, (1, "a"): 2},
    OrderedDict([("b", 1), ("a", {"d": 2, "c": 3})]),
    defaultdict(int, {"b": 1, "a": 2}),
    Pair({"b": 1, "a": 2}, 3),
    {"b": Opaque(1, {"y": 2, "x": 3}), "a": Opaque()},
    [{"b": i, "a": [i + 0.5]} for i in range(3)],
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_the_order_of_leaves_is_that_of_jax(tree: Any) -> None:
    flat = flatten(tree)
    assert [flat.leaves[i] for i in jax_order(flat.structure)] == jax.tree.leaves(tree)


def test_keys_that_cannot_be_compared_stay_in_order() -> None:
    flat = flatten({"b": 1, 2: 3, "a": 4})
    assert jax_order(flat.structure) == [0, 1, 2]


def test_no_depth_costs_recursion() -> None:
    tree: Any = 1
    for _ in range(900):
        tree = {"b": 0, "a": tree}
    order = jax_order(flatten(tree).structure)
    assert order == list(reversed(range(901)))
