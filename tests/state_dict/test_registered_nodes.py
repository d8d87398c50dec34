"""Pytree nodes that are registered with jax and not with Flax."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, defaultdict
from typing import Any

import equinox
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cordwood import from_state_dict, to_state_dict
from cordwood.state_dict import is_serializable

from .state_dict_trees import same


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: Any
    children: list[Any]
    name: str = dataclasses.field(default="layer", metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Keyless:
    """Registered without keys: its children are known by position."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        return self.values, None

    @classmethod
    def tree_unflatten(cls, _: None, values: Any) -> Keyless:
        return cls(*values)


@jax.tree_util.register_pytree_with_keys_class
class Table:
    """Keys that are not strings, in an order of its own."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self.entries = entries

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        keys = tuple(self.entries)
        return [(jax.tree_util.DictKey(key), self.entries[key]) for key in keys], keys

    @classmethod
    def tree_unflatten(cls, keys: tuple[Any, ...], values: Any) -> Table:
        return cls(dict(zip(keys, values, strict=True)))


def test_dataclass_registered_with_jax() -> None:
    tree = {"l": Layer(np.ones(2), [Layer(1, [], "inner"), None], "outer")}
    state = to_state_dict(tree)
    assert same(
        state,
        {
            "l": {
                "weight": np.ones(2),
                "children": {"0": {"weight": 1, "children": {}}, "1": None},
            }
        },
    )
    blank = {"l": Layer(0, [Layer(0, [], "inner"), 0], "outer")}
    assert same(from_state_dict(blank, state), tree)
    assert not is_serializable(Layer)


def test_a_dataclass_of_chex_comes_back() -> None:
    chex = pytest.importorskip("chex")

    class Fields:
        x: Any
        y: Any

    State: Any = chex.dataclass(Fields)
    tree = State(x=np.ones(2), y=[1])
    state = to_state_dict(tree)
    assert same(state, {"x": np.ones(2), "y": {"0": 1}})
    restored = from_state_dict(State(x=0, y=[0]), state)
    assert type(restored) is State
    assert same((restored.x, restored.y), (tree.x, tree.y))


def test_a_module_of_equinox_comes_back() -> None:
    model = equinox.nn.MLP(2, 3, 4, depth=1, key=jax.random.key(0))
    state = to_state_dict(model)
    assert state["layers"]["0"]["weight"] is model.layers[0].weight
    zeros = jax.tree.map(lambda x: x * 0 if equinox.is_array(x) else x, model)
    restored = from_state_dict(zeros, state)
    assert type(restored) is equinox.nn.MLP
    assert equinox.tree_equal(restored, model)
    assert equinox.tree_equal(from_state_dict(model, state, strict=True), model)


def test_nnx_module_and_state() -> None:
    module = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(1)))
    variables = nnx.state(module)
    state = to_state_dict(variables)
    kernel = state["layers"]["0"]["kernel"]["value"]
    assert same(kernel, module.layers[0].kernel[...])
    zeros = jax.tree.map(jnp.zeros_like, variables)
    restored = from_state_dict(zeros, state)
    assert type(restored) is type(variables)
    for first, second in zip(
        jax.tree.leaves_with_path(restored), jax.tree.leaves_with_path(variables), strict=True
    ):
        assert first[0] == second[0]
        assert same(first[1], second[1])
    whole = from_state_dict(module, to_state_dict(module))
    assert same(whole(jnp.ones((1, 2))), module(jnp.ones((1, 2))))


def test_nnx_pure_dict_has_integer_keys() -> None:
    module = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    pure = nnx.to_pure_dict(nnx.state(module))
    assert same(from_state_dict(pure, to_state_dict(pure)), pure)


def test_nodes_without_keys_are_numbered() -> None:
    assert to_state_dict(Keyless(1, [2])) == {"0": 1, "1": {"0": 2}}
    assert from_state_dict(Keyless(0, [0]), {"0": 1, "1": {"0": 2}}).values == (1, [2])
    assert to_state_dict([Keyless()]) == {"0": {}}
    assert from_state_dict([Keyless()], {"0": {}})[0].values == ()


def test_keys_that_are_not_strings() -> None:
    tree = Table({2: "a", (1, 2): "b", "c": None})
    assert to_state_dict(tree) == {"2": "a", "(1, 2)": "b", "c": None}
    restored = from_state_dict(tree, {"c": 1, "(1, 2)": 2, "2": 3})
    assert restored.entries == {2: 3, (1, 2): 2, "c": 1}
    message = r"^The keys of Table, a pytree node .*: \['1', '1'\]\nIt happened at t\.$"
    with pytest.raises(ValueError, match=message):
        to_state_dict({"t": Table({1: "a", "1": "b"})})


def test_a_node_is_restored_whole_or_not_at_all() -> None:
    target = {"l": Layer(0, [])}
    message = "^Missing field children in state dict while restoring an instance of Layer, at path"
    with pytest.raises(ValueError, match=message + r" \./l$"):
        from_state_dict(target, {"l": {"weight": 1}})
    message = r'^Unknown field\(s\) "b,c" in state dict while restoring an instance of Layer at'
    with pytest.raises(ValueError, match=message + r" path \./l$"):
        from_state_dict(target, {"l": {"weight": 1, "children": {}, "b": 0, "c": 0}})
    with pytest.raises(AttributeError, match=r"an instance of Layer from, found float32\[2\] at"):
        from_state_dict(target, {"l": np.zeros(2, np.float32)})


@pytest.mark.parametrize("make", [OrderedDict, lambda d: defaultdict(list, d)])
def test_ordered_and_default_dicts_as_flax_does_not(make: Any) -> None:
    tree = make({"b": [1], "a": 2})
    assert flax.serialization.to_state_dict(tree) is tree
    state = to_state_dict(tree)
    assert type(state) is dict
    assert list(state) == ["b", "a"]
    restored = from_state_dict(tree, state)
    assert type(restored) is type(tree)
    assert same(restored, tree)
    assert getattr(restored, "default_factory", None) is getattr(tree, "default_factory", None)


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "leaf",
    [
        jax.random.key(0),
        jax.ShapeDtypeStruct((2,), jnp.float32),
        jnp.float32,
        np.dtype("int8"),
        Color.RED,
        {1, 2},
        2**70,
        1j,
        b"x",
        print,
        np.ma.masked_array([1]),
    ],
    ids=lambda leaf: type(leaf).__name__,
)
def test_leaves_pass_through(leaf: Any) -> None:
    assert to_state_dict({"a": [leaf]})["a"]["0"] is leaf
    assert from_state_dict([0], {"0": leaf})[0] is leaf
    assert to_state_dict(leaf) is leaf


def test_tracers_are_leaves() -> None:
    def step(tree: Any) -> Any:
        return from_state_dict(tree, to_state_dict(tree))

    tree = {"a": [jnp.ones(2)], "l": Layer(jnp.zeros(3), [])}
    assert same(jax.jit(step)(tree), tree)


def test_a_class_registered_after_it_was_met() -> None:
    class Late:
        def __init__(self, value: Any) -> None:
            self.value = value

    late = Late([1])
    assert to_state_dict({"a": late})["a"] is late
    jax.tree_util.register_pytree_node(Late, lambda x: ((x.value,), None), lambda _, c: Late(*c))
    assert to_state_dict({"a": late}) == {"a": {"0": {"0": 1}}}
