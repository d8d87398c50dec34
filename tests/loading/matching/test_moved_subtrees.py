"""Subtrees that move by select and rename, as optimizers change: whatever contains them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cordwood
from cordwood.errors import MismatchError
from cordwood.testing import assert_trees_equal
from tests.loading.tree_writers import WRITERS, Writer

PARAMS = {"b": jnp.arange(2.0), "w": jnp.arange(6.0).reshape(2, 3)}


@pytest.fixture(params=list(WRITERS))
def write(request: pytest.FixtureRequest) -> Writer:
    return WRITERS[request.param]


def adam() -> Any:
    return optax.adam(1e-3)


def state_of(optimizer: Any) -> Any:
    return {"opt": optimizer.init(PARAMS)}


def numbered(tree: Any) -> Any:
    """Return the tree with other values in each leaf."""
    leaves, treedef = jax.tree.flatten(tree)
    values = [(leaf + i + 1).astype(leaf.dtype) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(treedef, values)


LABELS = {"b": "x", "w": "y"}


class Change(NamedTuple):
    """A wrapper around adam, and the options that move adam's state into it and out of it."""

    wrapper: Callable[[], Any]
    inner: Callable[[Any], Any]  # adam's state in that of the wrapper
    wrap: dict[str, Any]
    unwrap: dict[str, Any]


def _moved(place: str, **wrap: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options for a wrapper that holds the whole state at one place."""
    options: dict[str, Any] = {"rename": {"opt/**": f"opt/{place}/**"}, **wrap}
    return options, {"select": f"opt/{place}", "rename": {f"opt/{place}": "opt"}}


def _of_labels(state: Any) -> Any:
    """Return adam's state, put together from those of `multi_transform`."""
    x, y = (state.inner_states[label].inner_state for label in ("x", "y"))
    mu = {"b": x[0].mu["b"], "w": y[0].mu["w"]}
    nu = {"b": x[0].nu["b"], "w": y[0].nu["w"]}
    return (x[0]._replace(mu=mu, nu=nu), x[1])


_TO_LABELS = "opt/inner_states/{}/inner_state/0"
CHANGES = {
    "chain": Change(
        lambda: optax.chain(optax.clip(1.0), adam()), lambda state: state[1], *_moved("1")
    ),
    "MultiSteps": Change(
        lambda: optax.MultiSteps(adam(), 4),
        lambda state: state.inner_opt_state,
        *_moved("inner_opt_state", missing="keep"),
    ),
    "masked": Change(
        lambda: optax.masked(adam(), {"b": True, "w": True}),
        lambda state: state.inner_state,
        *_moved("inner_state"),
    ),
    "inject_hyperparams": Change(
        lambda: optax.inject_hyperparams(optax.adam)(1e-3),
        lambda state: state.inner_state,
        *_moved("inner_state", missing="keep"),
    ),
    "apply_if_finite": Change(
        lambda: optax.apply_if_finite(adam(), 3),
        lambda state: state.inner_state,
        *_moved("inner_state", missing="keep"),
    ),
    "multi_transform": Change(
        lambda: optax.multi_transform({"x": adam(), "y": adam()}, LABELS),
        _of_labels,
        {
            "rename": {
                "opt/0/count": [f"{_TO_LABELS.format(label)}/count" for label in "xy"],
                "opt/0/*/b": f"{_TO_LABELS.format('x')}/*/b",
                "opt/0/*/w": f"{_TO_LABELS.format('y')}/*/w",
            }
        },
        {
            "select": ["opt", f"!{_TO_LABELS.format('y')}/count"],
            "rename": {_TO_LABELS.format(label): "opt/0" for label in "xy"},
        },
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_optimizer_gets_a_wrapper(name: str, write: Writer, tmp_path: Path) -> None:
    change = CHANGES[name]
    stored = numbered(state_of(adam()))
    like = state_of(change.wrapper())
    loaded = cordwood.load(write(tmp_path, stored), like=like, **change.wrap)
    assert repr(jax.tree.structure(loaded)) == repr(jax.tree.structure(like))
    assert_trees_equal(change.inner(loaded["opt"]), stored["opt"])


@pytest.mark.parametrize("name", CHANGES)
def test_an_optimizer_loses_its_wrapper(name: str, write: Writer, tmp_path: Path) -> None:
    change = CHANGES[name]
    stored = numbered(state_of(change.wrapper()))
    loaded = cordwood.load(write(tmp_path, stored), like=state_of(adam()), **change.unwrap)
    assert_trees_equal(loaded["opt"], change.inner(stored["opt"]))


def test_an_optimizer_loses_its_wrapper_without_select(write: Writer, tmp_path: Path) -> None:
    """The empty state of `clip` gives way."""
    stored = numbered(state_of(CHANGES["chain"].wrapper()))
    like = state_of(adam())
    for rename in ({"opt/1": "opt"}, {"opt/1/**": "opt/**"}):
        (path := tmp_path / next(iter(rename)).replace("/", "").replace("*", "_")).mkdir()
        loaded = cordwood.load(write(path, stored), like=like, rename=rename)
        assert_trees_equal(loaded["opt"], stored["opt"][1])


@jax.tree_util.register_dataclass
@dataclass
class Fields:
    first: Any
    second: Any


class Pair(NamedTuple):
    first: Any
    second: Any


CONTAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda first, second: {"first": first, "second": second},
    "list": lambda first, second: [first, second],
    "tuple": lambda first, second: (first, second),
    "namedtuple": Pair,
    "dataclass": Fields,
}
SUBTREE = {"a": jnp.arange(3.0), "n": (jnp.arange(4), [jnp.ones(2)])}


def keys_of(container: str) -> tuple[str, str]:
    return ("0", "1") if container in ("list", "tuple") else ("first", "second")


@pytest.mark.parametrize("stored_as", CONTAINERS)
def test_an_element_is_the_root_and_the_root_an_element(
    stored_as: str, write: Writer, tmp_path: Path
) -> None:
    other = {"m": jnp.zeros(3)}
    first, second = keys_of(stored_as)
    path = write(tmp_path, CONTAINERS[stored_as](other, SUBTREE))
    loaded = cordwood.load(path, like=SUBTREE, select=second, rename={second: ""})
    assert_trees_equal(loaded, SUBTREE)
    like = {"params": CONTAINERS[stored_as](other, SUBTREE)}
    assert_trees_equal(cordwood.load(path, like=like, rename={"": "params"}), like)
    leaf = cordwood.load(path, like=other["m"], select=f"{first}/m", rename={f"{first}/m": ""})
    assert_trees_equal(leaf, other["m"])


@pytest.mark.parametrize("like_as", CONTAINERS)
@pytest.mark.parametrize("stored_as", CONTAINERS)
def test_a_subtree_moves_between_any_two_containers(
    stored_as: str, like_as: str, tmp_path: Path
) -> None:
    zeros = jnp.zeros(3)
    path = WRITERS["packs"](tmp_path, CONTAINERS[stored_as](zeros, SUBTREE))
    like = CONTAINERS[like_as](SUBTREE, CONTAINERS[like_as](zeros, zeros))
    (first, second), (to_first, to_second) = keys_of(stored_as), keys_of(like_as)
    rename = {
        second: to_first,
        first: [f"{to_second}/{to_first}", f"{to_second}/{to_second}"],
    }
    assert_trees_equal(cordwood.load(path, like=like, rename=rename), like)


def test_the_types_of_keys_are_those_of_like(tmp_path: Path) -> None:
    blocks = [{"w": jnp.full(2, i)} for i in range(3)]
    path = WRITERS["packs"](tmp_path, {"blocks": blocks, "step": 1})
    for like in (
        {"layers": dict(enumerate(blocks)), "step": 0},
        {"layers": {str(i): block for i, block in enumerate(blocks)}, "step": 0},
        {"layers": tuple(blocks), "step": 0},
    ):
        loaded = cordwood.load(path, like=like, rename={"blocks/*": "layers/*"})
        assert_trees_equal(loaded, {**like, "step": 1})
        assert cordwood.diff(path, {**like, "step": 1}, rename={"blocks": "layers"}).equal
    with pytest.raises(MismatchError, match=r"blocks/\(0\)/w: .*whose keys have other types"):
        cordwood.load(path, like={"blocks": dict(enumerate(blocks)), "step": 0})


def test_what_does_not_fit_is_refused_where_it_moved_to(write: Writer, tmp_path: Path) -> None:
    path = write(tmp_path, {"a": (jnp.ones(3), jnp.zeros(2))})
    moved: dict[str, Any] = {"rename": {"a": "b/c"}}
    like = {"b": {"c": (jnp.ones(3), jnp.zeros(2))}}
    assert_trees_equal(cordwood.load(path, like=like, **moved), like)
    for wrong, message in (
        ((jnp.ones(3), jnp.zeros(3)), r"b/c/'?1'?: expected float32\[3\], found float32\[2\]"),
        ((jnp.ones(3), jnp.zeros(2, int)), r"b/c/'?1'?: expected int32\[2\], found float32\[2\]"),
        ((jnp.ones(3), jnp.zeros(2), jnp.ones(1)), "b/c/'?2'?: not in the checkpoint"),
        ((jnp.ones(3),), "b/c/'?1'?: in the checkpoint"),
        (jnp.ones(3), "b/c"),
    ):
        with pytest.raises(MismatchError, match=message):
            cordwood.load(path, like={"b": {"c": wrong}}, **moved)


def test_none_that_moved_is_compared(tmp_path: Path) -> None:
    path = WRITERS["packs"](tmp_path, {"a": [None, jnp.ones(2)]})
    moved: Any = {"rename": {"a": "b"}}
    like = {"b": (None, jnp.ones(2))}
    assert_trees_equal(cordwood.load(path, like=like, **moved), like)
    for wrong, message in (
        ((jnp.ones(1), jnp.ones(2)), r"b/0: expected float32\[1\], found None"),
        (({"x": {}}, jnp.ones(2)), "b/0: expected dict or node with fields, found None"),
        (((), jnp.ones(2)), "b/0: expected tuple, found None"),
    ):
        with pytest.raises(MismatchError, match=message):
            cordwood.load(path, like={"b": wrong}, **moved)


def test_tied_weights_that_were_stored_once_are_loaded_twice(write: Writer, tmp_path: Path) -> None:
    embedding = jnp.arange(6.0).reshape(2, 3)
    path = write(tmp_path, {"embed": {"w": embedding}, "norm": jnp.ones(2)})
    tied: Any = {"embed/w": ["embed/w", "head/w"]}
    expected = {"embed": {"w": embedding}, "head": {"w": embedding}, "norm": jnp.ones(2)}
    assert_trees_equal(cordwood.load(path, like=expected, rename=tied), expected)
    assert cordwood.diff(path, expected, rename=tied).equal
    cordwood.convert(path, tmp_path / "untied", rename=tied)
    assert_trees_equal(cordwood.load(tmp_path / "untied", like=expected), expected)
    with cordwood.open(path) as checkpoint:
        transposed = {**expected, "head": {"w": embedding.T}}
        loaded = checkpoint.load(like=transposed, rename=tied, transpose="head/w")
        assert_trees_equal(loaded, transposed)


def test_convert_and_open_move_subtrees_as_wholes(tmp_path: Path) -> None:
    stored = numbered(state_of(CHANGES["chain"].wrapper()))
    cordwood.save(tmp_path / "a", stored)
    cordwood.convert(tmp_path / "a", tmp_path / "b", select="opt/1", rename={"opt/1": "opt"})
    loaded = cordwood.load(tmp_path / "b", like=state_of(adam()))
    assert_trees_equal(loaded["opt"], stored["opt"][1])
    leaf = "opt/1/0/mu/w"
    cordwood.convert(tmp_path / "a", tmp_path / "c", select=leaf, rename={leaf: ""})
    np.testing.assert_array_equal(cordwood.load(tmp_path / "c"), stored["opt"][1][0].mu["w"])
    with cordwood.open(tmp_path / "a") as checkpoint:
        loaded = checkpoint.load(like=stored["opt"][1], select="opt/1", rename={"opt/1": ""})
    assert_trees_equal(loaded, stored["opt"][1])
