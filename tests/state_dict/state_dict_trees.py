"""Random trees of everything that Flax stores, and their comparison."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Any, NamedTuple

import flax.core
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from hypothesis import strategies as st

__all__ = ["Node", "Pair", "flax_trees", "plain_trees", "same", "states"]


class Pair(NamedTuple):
    first: Any
    second: Any


Single = namedtuple("Single", ["a"])


class _Node:
    a: Any
    b: Any
    static: Any = flax.struct.field(pytree_node=False, default="kept")


Node: Any = flax.struct.dataclass(_Node)


def same(first: Any, second: Any) -> bool:
    """Equal in structure, order, types, dtypes and bits."""
    if type(first) is not type(second):
        return False
    if isinstance(first, (dict, flax.core.FrozenDict)):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, (np.ndarray, np.generic, jax.Array)):
        return (
            first.dtype == second.dtype
            and first.shape == second.shape
            and np.asarray(first).tobytes() == np.asarray(second).tobytes()
        )
    if isinstance(first, jax.tree_util.Partial):
        return first.func is second.func and same(
            (first.args, first.keywords), (second.args, second.keywords)
        )
    if dataclasses.is_dataclass(first):
        return all(
            same(getattr(first, field.name), getattr(second, field.name))
            for field in dataclasses.fields(first)
        )
    return bool(first == second)


_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from(
        [
            np.float32(1.5),
            np.int8(-3),
            np.array(7),
            np.zeros((0, 3), np.float16),
            np.arange(6, dtype=np.int32).reshape(2, 3),
            np.asfortranarray(np.arange(4.0).reshape(2, 2)),
            jnp.arange(3, dtype=jnp.bfloat16),
            jnp.float32(2),
        ]
    ),
)

_names = st.sampled_from(["a", "b", "c", "first", "args", "0", "1", ".", "a/b", ""])
_keys = _names | st.integers(2, 5) | st.tuples(st.integers(0, 1), st.booleans())

_optimizers: list[optax.GradientTransformation] = [
    optax.sgd(0.1),
    optax.adam(1e-3),
    optax.chain(optax.clip(1.0), optax.adamw(1e-3)),
    optax.inject_hyperparams(optax.sgd)(learning_rate=0.5),
    optax.masked(optax.adam(1e-3), lambda tree: jax.tree.map(lambda _: False, tree)),
]


_params: list[dict[str, Any]] = [{"w": jnp.ones(2), "b": jnp.zeros(())}, {"g": [jnp.ones(1)]}]
_optimizer_states = st.sampled_from(
    [optimizer.init(params) for optimizer in _optimizers for params in _params]
)
_train_states = st.sampled_from(
    [
        TrainState.create(apply_fn=None, params=wrap(params), tx=optimizer)
        for optimizer in _optimizers
        for params in _params
        for wrap in (dict, flax.core.FrozenDict)
    ]
)


def _plain_containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(_keys, children, max_size=4),
        st.builds(Pair, children, children),
        st.builds(Single, children),
        st.builds(
            lambda args, keywords: jax.tree_util.Partial(max, *args, **keywords),
            st.lists(children, max_size=2),
            st.dictionaries(st.sampled_from(["key", "default"]), children, max_size=2),
        ),
    )


def _flax_containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        _plain_containers(children),
        st.dictionaries(_names, children, max_size=3).map(flax.core.FrozenDict),
        st.builds(Node, children, children, st.integers()),
    )


def plain_trees() -> st.SearchStrategy[Any]:
    """Trees of what both Flax and eFormer store."""
    return st.recursive(_leaves | _optimizer_states, _plain_containers, max_leaves=12)


def flax_trees() -> st.SearchStrategy[Any]:
    """Trees of what Flax stores, types of its own included."""
    return st.recursive(
        _leaves | _optimizer_states | _train_states, _flax_containers, max_leaves=12
    )


def states() -> st.SearchStrategy[Any]:
    """States that may have been made from a tree of another structure."""
    names = st.sampled_from(["a", "b", "0", "1", "2", "first", "second", "args", "keywords"])
    return st.recursive(
        _leaves,
        lambda children: st.dictionaries(names, children, max_size=3) | st.lists(children),
        max_leaves=8,
    )
