"""leaf_key_paths and join_key, beside eformer's."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import pytest
from eformer.serialization import serialization as eformer

from cordwood.compat.eformer.serialization import join_key, leaf_key_paths


class Pair(NamedTuple):
    x: Any
    y: Any


TREES = [
    {"a": [1, (2,)]},
    7,
    {},
    {"": 1},
    {"a": {"": 1}},
    {"": {"": 1, "b": 2}},
    {1: 2, 3: [4]},
    {(1, 2): 3},
    Pair(1, [2, {"z": None}]),
    [None, 1],
    {"a.b": 1, "a": {"b": 2}},
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
@pytest.mark.parametrize("prefix", ["", "p"])
def test_leaf_key_paths_are_those_of_eformer(tree: Any, prefix: str) -> None:
    assert leaf_key_paths(tree, prefix) == eformer.leaf_key_paths(tree, prefix)


def test_is_leaf_ends_the_descent() -> None:
    tree = {"a": [1, 2], "b": None}
    got = leaf_key_paths(tree, is_leaf=lambda x: x is None or isinstance(x, list))
    assert got == {"a": "a", "b": "b"}


def test_nodes_without_keys_are_numbered() -> None:
    """B34: eformer names them '<flat index 0>'."""

    @jax.tree_util.register_pytree_node_class
    class Opaque:
        def __init__(self, x: Any) -> None:
            self.x = x

        def tree_flatten(self) -> tuple[tuple[Any], None]:
            return (self.x,), None

        @classmethod
        def tree_unflatten(cls, _aux: None, children: tuple[Any]) -> Opaque:
            return cls(*children)

    assert leaf_key_paths({"a": Opaque(1)})["a"].x == "a.0"


@pytest.mark.parametrize("prefix", [None, "", "a"])
@pytest.mark.parametrize("key", [None, "", "b"])
def test_join_key_is_that_of_eformer(prefix: str | None, key: str | None) -> None:
    assert join_key(prefix, key) == eformer.join_key(prefix, key)
