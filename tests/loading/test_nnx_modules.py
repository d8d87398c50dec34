"""Modules of flax.nnx: as saved, and as `like`, they are what `nnx.state` returns."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import cordwood
from cordwood.errors import MismatchError, UnsupportedLeafError
from cordwood.testing import assert_trees_equal
from tests.loading.tree_writers import WRITERS, Writer

FORMATS = ("packs", "zarr", "safetensors", "msgpack")


class Tied(nnx.Module):
    """Two attributes are one module, and two modules share one variable."""

    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.first = nnx.Linear(2, 2, rngs=rngs)
        self.second = self.first
        self.embed = nnx.Embed(3, 2, rngs=rngs)
        self.head = nnx.Linear(2, 3, rngs=rngs)
        self.head.kernel = self.embed.embedding

    def is_tied(self) -> bool:
        return self.first is self.second and self.head.kernel is self.embed.embedding


class WithoutBias(nnx.Module):
    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.layers = nnx.List([nnx.Linear(2, 2, use_bias=False, rngs=rngs), None])
        self.norm = nnx.LayerNorm(2, use_bias=False, use_scale=True, rngs=rngs)
        self.nothing = nnx.data(None)


class WithContainers(nnx.Module):
    """Lists and tuples as attributes, which a state has as dicts."""

    def __init__(self, seed: int) -> None:
        values = jax.random.normal(jax.random.key(seed), (3, 2))
        self.arrays = nnx.data([values[0], (nnx.Param(values[1]), None), {"z": values[2]}])


class Node(nnx.Module):
    """A module whose child refers to it."""

    def __init__(self, seed: int, parent: Node | None = None) -> None:
        self.w = nnx.Param(jax.random.normal(jax.random.key(seed), (2,)))
        self.parent: Any = parent
        self.child: Any = Node(seed + 1, self) if parent is None else None


class OnlyAGraph(nnx.Module, pytree=False):  # type: ignore[call-arg]
    """A module that is no pytree of jax."""

    def __init__(self, seed: int) -> None:
        self.linear = nnx.Linear(2, 2, rngs=nnx.Rngs(seed))


def optimizer(seed: int) -> nnx.Optimizer[Any]:
    model = WithoutBias(seed)
    result = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    result.update(model, jax.tree.map(lambda x: x + seed, nnx.state(model, nnx.Param)))
    return result


def attention(seed: int) -> nnx.MultiHeadAttention:
    return nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(seed))


MODULES = [Tied, WithoutBias, WithContainers, Node, OnlyAGraph, optimizer, attention]


@pytest.fixture(params=FORMATS)
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, Any], Path]:
    writer: Writer = WRITERS[request.param]

    def written(name: str, tree: Any) -> Path:
        (tmp_path / name).mkdir()
        return writer(tmp_path / name, tree)

    return written


@pytest.mark.parametrize("make", MODULES)
def test_a_module_and_its_state_are_one_tree(
    make: Callable[[int], Any], write: Callable[[str, Any], Path]
) -> None:
    expected = nnx.to_pure_dict(nnx.state(make(3)))
    for path in (write("module", make(3)), write("state", nnx.state(make(3)))):
        for like in (make(1), nnx.state(make(1)), nnx.eval_shape(lambda: make(1))):
            before = jax.tree.leaves(nnx.split(like)[1])
            loaded = cordwood.load(path, like)
            assert type(loaded) is type(like)
            state = loaded if isinstance(loaded, nnx.State) else nnx.state(loaded)
            assert_trees_equal(nnx.to_pure_dict(state), expected)
            assert all(map(operator.is_, jax.tree.leaves(nnx.split(like)[1]), before))
            if isinstance(loaded, Tied):
                assert loaded.is_tied()
    with cordwood.open(write("again", make(3))) as checkpoint:
        assert len(list(checkpoint)) == len(jax.tree.leaves(expected))
    diff = cordwood.diff(path, make(3))
    assert diff.equal, diff


def test_a_loaded_module_refers_to_itself(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", Node(0))
    loaded = cordwood.load(tmp_path / "a", like=Node(5))
    assert loaded.child.parent is loaded


def test_an_untied_module_does_not_fit_a_tied_one(tmp_path: Path) -> None:
    untied = Tied(0)
    untied.head.kernel = nnx.Param(untied.embed.embedding[...] + 1)
    cordwood.save(tmp_path / "untied", untied)
    cordwood.save(tmp_path / "tied", Tied(0))
    with pytest.raises(MismatchError, match=r"head/kernel/value: in the checkpoint .* not in"):
        cordwood.load(tmp_path / "untied", like=Tied(1))
    with pytest.raises(MismatchError, match="head/kernel/value: not in the checkpoint"):
        cordwood.load(tmp_path / "tied", like=untied)
    loaded = cordwood.load(tmp_path / "tied", like=untied, missing="keep")
    assert_trees_equal(loaded.head.kernel[...], untied.head.kernel[...])


def test_modules_that_share_variables_are_named(tmp_path: Path) -> None:
    def make(seed: int) -> dict[str, Any]:
        model = Tied(seed)
        return {"model": model, "other": [nnx.Sequential(model.first)], "x": model.head}

    cordwood.save(tmp_path / "a", make(0))
    with pytest.warns(UserWarning, match="model/first/bias and other/0/layers/0/bias") as warned:
        loaded = cordwood.load(tmp_path / "a", like=make(1))
    assert "model/embed/embedding and x/kernel" in str(warned[0].message)
    assert_trees_equal(loaded["x"].kernel[...], make(0)["x"].kernel[...])
    one, other = make(0), make(1)
    cordwood.save(tmp_path / "b", nnx.state(one))  # the remedy
    nnx.update(other, cordwood.load(tmp_path / "b", like=nnx.state(other)))
    assert other["x"].kernel is other["model"].embed.embedding
    assert_trees_equal(other["x"].kernel[...], one["x"].kernel[...])


@pytest.mark.parametrize("make", [WithoutBias, WithContainers, optimizer])
def test_a_module_as_jax_flattens_it_is_loaded(
    make: Callable[[int], Any], write: Callable[[str, Any], Path]
) -> None:
    """Older versions have stored modules in this way."""
    path = write("old", as_jax_flattens(make(3)))
    expected = nnx.to_pure_dict(nnx.state(make(3)))
    for like in (make(1), nnx.state(make(1))):
        loaded = cordwood.load(path, like)
        state = loaded if isinstance(loaded, nnx.State) else nnx.state(loaded)
        assert_trees_equal(nnx.to_pure_dict(state), expected)
    loaded = cordwood.load(path, {"x": nnx.state(make(1))}, rename={"": "x"})
    assert_trees_equal(nnx.to_pure_dict(loaded["x"]), expected)


def as_jax_flattens(value: Any) -> Any:
    """Return a module as nested containers, with the children that jax has for it."""
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)([as_jax_flattens(each) for each in value])
    root = iter([False])
    entries, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda _: next(root, True))
    if value is None or (len(entries) == 1 and not entries[0][0]):
        return value
    names = [_name(entry) for ((entry,), _) in entries]
    return {name: as_jax_flattens(v) for name, (_, v) in zip(names, entries, strict=True)}


def _name(entry: Any) -> Any:
    return next(getattr(entry, name) for name in ("key", "name", "idx") if hasattr(entry, name))


def test_none_outside_of_modules_is_compared(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"m": nnx.state(WithoutBias(0)), "x": None})
    with pytest.raises(MismatchError, match="x: None in the checkpoint, and nothing in `like`"):
        cordwood.load(tmp_path / "a", like={"m": WithoutBias(0)})


def test_values_beside_variables_are_kept(tmp_path: Path) -> None:
    class Mixed(nnx.Module):
        def __init__(self, number: int) -> None:
            self.number, self.array = nnx.data(number), np.full(2, number)
            self.numbers = nnx.data([number, {"x": number + 0.5}])
            self.wrapped = nnx.Variable({"a": jnp.full(1, number), "none": None})

    cordwood.save(tmp_path / "a", Mixed(3))
    loaded = cordwood.load(tmp_path / "a", like=Mixed(1))
    assert (loaded.number, loaded.numbers, loaded.wrapped["none"]) == (3, [3, {"x": 3.5}], None)
    assert_trees_equal(loaded.array, np.full(2, 3))


def test_a_number_that_nnx_leaves_out_is_named(tmp_path: Path) -> None:
    """nnx.state has bare numbers in lists of no module; here they cannot be added to it."""
    module = Tied(0)
    module.numbers = nnx.data([jnp.ones(1), 3])
    message = r"Tied\.numbers\[1\] is neither an array nor in an nnx.Variable, .*wrap it in nnx.Var"
    with pytest.raises(UnsupportedLeafError, match=message):
        cordwood.save(tmp_path / "a", module)
    module.numbers = nnx.data([jnp.ones(1), nnx.Variable(3)])
    cordwood.save(tmp_path / "a", module)
    module.numbers[1] = nnx.Variable(4)
    assert cordwood.load(tmp_path / "a", like=module).numbers[1].get_value() == 3
