"""A `like` with other leaves than values: functions, classes, None; and empty containers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.example_libraries import optimizers

import cordwood
from cordwood.errors import MismatchError, UnsupportedLeafError
from cordwood.testing import assert_trees_equal

Store: TypeAlias = Callable[[Any], Path]


@pytest.fixture(params=["packs", "zarr", ".safetensors", ".msgpack", "step"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    numbers = itertools.count(1)
    kind = request.param

    def write(tree: Any) -> Path:
        path = tmp_path / f"{next(numbers)}{kind if kind.startswith('.') else ''}"
        if kind == "step":
            with cordwood.CheckpointManager(tmp_path) as manager:
                manager.save(int(path.name), tree)
        elif kind.startswith("."):
            cordwood.save(path, tree)
        else:
            cordwood.save(path, tree, format=kind)
        return path

    return write


def load(path: Path, like: Any, **options: Any) -> Any:
    if path.name.isdigit() and (path.parent / "2").exists():  # through the manager too
        restored = cordwood.StepReader(path.parent).restore(int(path.name), like=like, **options)
        return restored.tree
    return cordwood.load(path, like=like, **options)


def mlp(seed: int) -> eqx.nn.MLP:
    return eqx.nn.MLP(2, 3, 4, 2, key=jax.random.key(seed))


def test_an_equinox_module_with_activations(store: Store) -> None:
    model = mlp(0)
    path = store(eqx.filter(model, eqx.is_array))
    other = mlp(1)
    assert eqx.tree_equal(load(path, other), model)
    assert load(path, other).activation is other.activation
    arrays = load(path, eqx.filter(other, eqx.is_array))
    assert eqx.tree_equal(eqx.combine(arrays, other), model)
    abstract = eqx.filter_eval_shape(lambda: other)
    assert eqx.tree_equal(load(path, abstract), model)


def test_a_manager_restores_into_modules_of_equinox(tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path) as manager:
        manager.save(1, {"model": eqx.filter(mlp(0), eqx.is_array), "step": 1})
    with cordwood.CheckpointManager(tmp_path) as manager:
        restored = manager.restore(like={"model": mlp(1), "step": 0})
    assert restored is not None
    assert eqx.tree_equal(restored.tree["model"], mlp(0))
    with cordwood.open(tmp_path / "1") as checkpoint:
        assert eqx.tree_equal(checkpoint.load({"model": mlp(2), "step": 0})["model"], mlp(0))


STATIC: dict[str, Any] = {
    "function": math.sqrt,
    "custom_jvp": jax.nn.relu,
    "class": dict,
    "module": math,
    "structure": jax.tree.structure({"a": 1}),
    "dtype": np.dtype("float32"),
    "scalar type": jnp.bfloat16,
    "linen": flax.linen.Dense(3),
}


def test_static_leaves_of_like_are_kept(store: Store) -> None:
    path = store({"w": np.ones(2)})
    loaded = load(path, {"w": np.zeros(2), **STATIC})
    np.testing.assert_array_equal(loaded["w"], np.ones(2))
    for name, value in STATIC.items():
        assert loaded[name] is value


def test_something_stored_for_a_function_does_not_fit(store: Store) -> None:
    path = store({"act": np.ones(2)})
    with pytest.raises(
        MismatchError, match=r"act: expected nothing for .*sqrt.*found float64\[2\]"
    ):
        load(path, {"act": math.sqrt})


def test_what_no_checkpoint_can_hold_is_said_of_like(store: Store) -> None:
    path = store({"w": np.ones(2)})
    with pytest.raises(UnsupportedLeafError, match=r"w: expected an array, .* which no checkpoint"):
        load(path, {"w": object()})


def test_a_module_that_holds_functions_names_equinox_filter(tmp_path: Path) -> None:
    message = r"^activation: .*out of the tree \(for an equinox module, save equinox.filter\(model,"
    for path in (tmp_path / "a", tmp_path / "a.safetensors", tmp_path / "a.msgpack"):
        with pytest.raises(UnsupportedLeafError, match=message):
            cordwood.save(path, mlp(0))
    with (
        cordwood.CheckpointManager(tmp_path / "run") as manager,
        pytest.raises(UnsupportedLeafError, match=message),
    ):
        manager.save(1, mlp(0))


class Numbers:
    def __next__(self) -> int:
        return 1


class Loader:
    def get_state(self) -> bytes:
        return b""

    def set_state(self, state: bytes) -> None: ...


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (
            flax.linen.Dense(3),
            "x: a flax.linen Module .* save the variables that its init returned",
        ),
        (jax.tree.structure(1), "x: a PyTreeDef, .* load them into a `like` that has it"),
        (Numbers(), r'x: an iterator .* CheckpointManager.save\(items=\{"data": it\}\)'),
        (Loader(), r'x: an iterator or loader .* CheckpointManager.save\(items=\{"data": it\}\)'),
        (math.sqrt, "x: a function or class .* keep it out of the tree"),
        (Loader, "x: a function or class .* keep it out of the tree"),
    ],
)
def test_leaves_that_cannot_be_stored(tmp_path: Path, leaf: Any, message: str) -> None:
    with pytest.raises(UnsupportedLeafError, match=message) as e:
        cordwood.save(tmp_path / "a", {"x": leaf})
    assert len(str(e.value).splitlines()) == 1


def test_load_inside_jit_says_load(store: Store) -> None:
    path = store({"w": jnp.ones(2)})
    for like in ({"w": jnp.ones(2)},):
        with pytest.raises(UnsupportedLeafError, match="w: a tracer has no value; load outside of"):
            jax.jit(lambda tree: load(path, tree))(like)


@pytest.mark.parametrize("name", ["a", "a.safetensors"])
def test_structures_that_jax_knows_as_static_data(tmp_path: Path, name: str) -> None:
    """Such structures are in the states of numpyro's optimizers."""
    init, update, _ = optimizers.adam(1e-3)
    params = {"b": jnp.ones(3), "w": jnp.zeros((2, 2))}
    state = update(0, jax.tree.map(jnp.ones_like, params), init(params))
    path = tmp_path / name
    cordwood.save(path, {"opt": state})
    loaded = cordwood.load(path, like={"opt": init(params)})["opt"]
    assert repr(jax.tree.structure(loaded)) == repr(jax.tree.structure(state))
    assert_trees_equal(jax.tree.leaves(loaded), jax.tree.leaves(state))


class Model(nnx.Module):
    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.first = nnx.Linear(2, 3, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])


def values(tree: Any) -> list[Any]:
    return jax.tree.leaves(nnx.state(tree) if isinstance(tree, nnx.Module) else tree)


def test_an_nnx_module_saved_and_its_state_loaded_and_back(store: Store) -> None:
    module, state = store(Model(0)), store(nnx.state(Model(0)))
    for path in (module, state):
        for like in (Model(1), nnx.state(Model(1))):
            loaded = load(path, like)
            assert type(loaded) is type(like)
            assert_trees_equal(values(loaded), values(Model(0)))


def test_pure_dicts_of_nnx_have_other_names(store: Store) -> None:
    state = nnx.state(Model(0))
    pure = nnx.to_pure_dict(state)
    path, pure_path = store(state), store(pure)
    with pytest.raises(
        MismatchError, match=r'kernel: .* \(rename=\{"\*\*/value\$": "\*\*"\} loads'
    ):
        load(path, pure)
    assert_trees_equal(values(load(path, pure, rename={"**/value$": "**"})), values(state))
    with pytest.raises(MismatchError, match=r'kernel: .* \(rename=\{"\*\*": "\*\*/value"\} loads'):
        load(pure_path, state)
    assert_trees_equal(values(load(pure_path, state, rename={"**": "**/value"})), values(state))


def test_empty_containers_may_be_on_one_side_alone(store: Store) -> None:
    some = {"a": {}, "b": {"w": np.ones(2), "none": []}, "c": ()}
    other = {"b": {"w": np.zeros(2), "more": ({},)}}
    loaded = load(store(some), other)
    assert_trees_equal(loaded, {"b": {"w": np.ones(2), "more": ({},)}})
    assert_trees_equal(load(store(other), some), {**some, "b": {"w": np.zeros(2), "none": []}})


def test_none_is_no_empty_container(tmp_path: Path) -> None:
    path = tmp_path / "a"
    cordwood.save(path, {"w": 1, "x": None})
    with pytest.raises(MismatchError, match="x: None in the checkpoint, and nothing in `like`"):
        cordwood.load(path, like={"w": 1})
    cordwood.save(path, {"w": 1})
    with pytest.raises(MismatchError, match="x: None in `like`, and nothing in the checkpoint"):
        cordwood.load(path, like={"w": 1, "x": None})


def test_a_partition_of_a_model_keeps_the_other_leaves(store: Store) -> None:
    full: dict[str, Any] = {
        "a": {"kernel": np.ones((2, 2)), "lora": np.ones(2)},
        "b": {"w": np.ones(3)},
    }
    part = {"a": {"kernel": None, "lora": np.zeros(2)}, "b": None}
    path = store(part)
    message = r'a/kernel: expected float64\[2,2\], found None \(missing="keep" keeps the value of `'
    with pytest.raises(MismatchError, match=message):
        load(path, full)
    loaded = load(path, full, missing="keep")
    assert_trees_equal(loaded, {**full, "a": {**full["a"], "lora": np.zeros(2)}})
    abstract = {**full, "a": {**full["a"], "kernel": jax.ShapeDtypeStruct((2, 2), np.float32)}}
    with pytest.raises(MismatchError, match="a/kernel: "):
        load(path, abstract, missing="keep")


def test_a_partition_is_loaded_from_the_whole(store: Store) -> None:
    full: dict[str, Any] = {"a": {"kernel": np.ones((2, 2)), "lora": np.ones(2)}}
    part = {"a": {"kernel": None, "lora": np.zeros(2)}}
    path = store(full)
    with pytest.raises(MismatchError, match=r'found float64\[2,2\] \(extra="ignore" skips it'):
        load(path, part)
    loaded = load(path, part, extra="ignore")
    assert_trees_equal(loaded, {"a": {"kernel": None, "lora": np.ones(2)}})


def test_a_raw_key_for_a_typed_one_names_the_functions(tmp_path: Path) -> None:
    path = tmp_path / "a"
    typed, raw = {"k": jax.random.key(0)}, {"k": jax.random.PRNGKey(0)}
    for stored, like, existing in [(typed, raw, "wrap_key_data"), (raw, typed, "key_data")]:
        cordwood.save(path, stored)
        with pytest.raises(MismatchError, match=rf"put jax\.random\.{existing}\(key\) into `like`"):
            cordwood.load(path, like=like)
    loaded = cordwood.load(path, like={"k": jax.random.key_data(typed["k"])})["k"]
    assert_trees_equal(jax.random.wrap_key_data(loaded), typed["k"])


PARAMS = {name: {"bias": np.ones(2), "kernel": np.ones((2, 2))} for name in ("one", "two")}


def test_the_error_for_params_alone_says_where_they_are(store: Store) -> None:
    path = store({"opt": [{"mu": PARAMS["one"]}], "params": PARAMS, "step": 3})
    with pytest.raises(MismatchError) as e:
        load(path, PARAMS)
    for name in ("one/bias", "one/kernel", "two/bias", "two/kernel"):
        assert f"{name}: not in the checkpoint; did you mean params/{name}?" in str(e.value)
    advice = 'the checkpoint has all leaves of `like` under params: pass select="params", '
    assert str(e.value).endswith(advice + 'rename={"params": ""}')
    assert_trees_equal(load(path, PARAMS, select="params", rename={"params": ""}), PARAMS)


def test_a_like_that_fits_several_subtrees_names_them_all(tmp_path: Path) -> None:
    moments = {name: jax.tree.map(np.zeros_like, PARAMS) for name in ("mu", "nu")}
    cordwood.save(tmp_path / "a", {"opt_state": [moments], "params": PARAMS, "step": 3})
    with pytest.raises(MismatchError) as e:
        cordwood.load(tmp_path / "a", like=PARAMS)
    assert (
        "one/bias: not in the checkpoint; did you mean params/one/bias, opt_state/0/mu/one/bias "
        "or opt_state/0/nu/one/bias?"
    ) in str(e.value)
    assert str(e.value).endswith(
        "the checkpoint has all leaves of `like` under each of params, opt_state/0/mu and "
        "opt_state/0/nu. Choose one of them by select= and rename=, for example: "
        'select="params", rename={"params": ""}'
    )
    cordwood.save(tmp_path / "b", dict.fromkeys("abcde", PARAMS))
    with pytest.raises(MismatchError, match=r"each of a, b, c and 2 more\. Choose one"):
        cordwood.load(tmp_path / "b", like=PARAMS, missing="keep", extra="ignore")


ADAM = {"params": PARAMS, "opt_state": [{"mu": PARAMS, "nu": PARAMS}], "step": 3}
SGD = {"params": PARAMS, "opt_state": [{"trace": PARAMS}], "step": 0}


def test_the_error_for_another_optimizer_says_how_to_keep_its_fresh_state(store: Store) -> None:
    path = store(ADAM)
    with pytest.raises(MismatchError) as e:
        load(path, SGD)
    assert str(e.value).endswith(
        "the names differ only within opt_state: to begin with a fresh optimizer, keep its state "
        'of `like` by select="!opt_state", missing="keep" (docs/how-to/optax.md)'
    )
    expected = {**SGD, "step": 3}
    assert_trees_equal(load(path, SGD, select="!opt_state", missing="keep"), expected)


def test_the_error_for_names_that_also_differ_elsewhere_says_nothing_of_the_optimizer(
    store: Store,
) -> None:
    path = store(ADAM)
    with pytest.raises(MismatchError) as e:
        load(path, {**SGD, "epoch": 0})
    assert "fresh optimizer" not in str(e.value)


def test_the_error_for_params_in_a_container_names_the_container(store: Store) -> None:
    path = store(PARAMS)
    like = {"model": {"params": PARAMS}}
    with pytest.raises(MismatchError) as e:
        load(path, like)
    assert str(e.value).endswith(
        'the leaves that `like` has under model/params: pass rename={"": "model/params"}'
    )
    assert_trees_equal(load(path, like, rename={"": "model/params"}), like)
