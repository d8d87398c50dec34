"""Errors of load that name the argument that would help: names, dtypes and rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.errors import MismatchError
from cordwood.testing import assert_trees_equal
from tests.children import run_python
from tests.shardings import mesh_of

BERT: dict[str, Any] = {
    "embeddings.position_ids": np.arange(4)[None],
    "encoder.layer.0.weight": np.ones((2, 2), np.float32),
    "encoder.layer.1.weight": np.ones((2, 2), np.float32),
}


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(BERT, path)
    return path


NARROW = """
import sys
import jax
import numpy as np
import optax
import cordwood

bert, wide, mixed = sys.argv[1:]


def message(path, **options):
    try:
        cordwood.load(path, to="jax", **options)
    except cordwood.errors.MismatchError as e:
        return str(e)


def works(path, **options):
    assert set(cordwood.load(path, to="jax", **options))


what = 'cast={"embeddings.position_ids": "int32", "**": "bf16"}, or leave leaves out: '
assert what + 'select=["**", "!embeddings.position_ids"]:' in message(bert, cast="bf16")
works(bert, cast={"embeddings.position_ids": "int32", "**": "bf16"})
works(bert, cast="bf16", select=["**", "!embeddings.position_ids"])
assert 'pass cast={"embeddings.position_ids": "int32"}, or' in message(bert)
mapping = {"encoder.*": np.float16}
what = 'cast={"embeddings.position_ids": "int32", "encoder.*": "float16"}, or'
assert what in message(bert, cast=mapping)
assert 'pass cast="float32":' in message(wide)
works(wide, cast="float32")
what = 'cast={"n/a": "uint32", "n/c": "complex64", "n/d": "int32", ..., "**": "float32"}:'
assert what in message(mixed)
like = jax.tree.map(np.asarray, {"w": np.ones(2)})
assert 'pass a `like` of 32-bit arrays and cast=True:' in message(wide, like=like)
print("done")
"""


def test_64_bit_leaves_name_the_cast_that_works(bert: Path, tmp_path: Path) -> None:
    wide, mixed = tmp_path / "wide.safetensors", tmp_path / "mixed"
    cordwood.save(wide, {"w": np.ones(2)})
    numbers = {
        "a": np.arange(2, dtype=np.uint64),
        "c": np.ones(1, complex),
        "d": np.arange(2),
        "e": np.arange(2),
    }
    cordwood.save(mixed, {"n": numbers, "w": np.ones(2)})
    assert run_python(NARROW, str(bert), str(wide), str(mixed)).split() == ["done"]


@pytest.mark.parametrize("suffix", ["", ".safetensors", ".msgpack"])
def test_a_flat_dict_of_joined_names_is_nested_after_a_save(
    bert: Path, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"again{suffix}"
    cordwood.save(path, cordwood.load(bert))
    assert_trees_equal(cordwood.load(path, nest=True), cordwood.load(bert, nest=True))
    assert set(cordwood.load(path, nest=True)["encoder"]["layer"]) == {"0", "1"}
    slashed = tmp_path / f"slashed{suffix}"
    cordwood.save(slashed, {"a/b": np.ones(1), "c": np.ones(2)})
    assert_trees_equal(cordwood.load(slashed, nest=True), {"a": {"b": np.ones(1)}, "c": np.ones(2)})


def test_a_tree_that_is_nested_already_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "a"
    tree = {"a": {"b": [np.ones(1)]}, "c/d": np.ones(2)}
    cordwood.save(path, tree)
    assert_trees_equal(cordwood.load(path, nest=True), tree)
    cordwood.save(path, {"w": np.ones(1), "b": np.ones(2)})
    assert_trees_equal(cordwood.load(path, nest=True), {"w": np.ones(1), "b": np.ones(2)})


def test_joined_names_in_a_container_cannot_be_nested(tmp_path: Path) -> None:
    path = tmp_path / "a"
    cordwood.save(path, {"model": {"layer.0": np.ones(1)}})
    with pytest.raises(ValueError, match=r"model/layer\.0 has a key that is joined by '.': only"):
        cordwood.load(path, nest=True)


def test_patterns_by_nested_names_name_the_flat_ones(bert: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    cordwood.save(again, cordwood.load(bert))
    with pytest.raises(MismatchError, match=r"by '\.': did you mean 'encoder\.layer\.0\.\*'\?"):
        cordwood.load(again, nest=True, select="encoder/layer/0/**")
    for path, select in [
        (again, "encoder.layer.0.*"),
        (bert, "encoder.layer.0.*"),
        (bert, "encoder/layer/0/**"),
        (bert, "encoder/layer/0"),
    ]:
        loaded = cordwood.load(path, nest=True, select=select)
        assert set(loaded["encoder"]["layer"]) == {"0"}
    nested = tmp_path / "nested"
    cordwood.save(nested, cordwood.load(bert, nest=True))
    with pytest.raises(MismatchError, match=r"joined by '/': did you mean '!encoder/layer/\*'\?"):
        cordwood.load(nested, select="!encoder.layer.*")


def test_rules_that_take_no_leaf_name_them_all_and_a_last_rule(tmp_path: Path) -> None:
    path = tmp_path / "a"
    cordwood.save(
        path, {"a": {"bias": jnp.ones(8), "w": jnp.ones(8)}, "n": 3, "scale": jnp.ones(8)}
    )
    rules: Any = [("w", P("x"))]
    with pytest.raises(
        ValueError, match=r"^rules: no pattern is found in the 2 names a/bias, scale"
    ):
        cordwood.load(path, mesh=mesh_of(8), rules=rules)
    loaded = cordwood.load(path, mesh=mesh_of(8), rules=[*rules, (".*", P())])
    assert loaded["scale"].sharding.is_fully_replicated
    assert isinstance(loaded["a"]["w"], jax.Array)


def test_a_python_number_in_like_where_a_jitted_step_has_made_an_array(tmp_path: Path) -> None:
    tx = optax.adam(1e-3)

    def make_state() -> TrainState:
        return TrainState.create(apply_fn=None, params={"kernel": jnp.ones((2, 3))}, tx=tx)

    @jax.jit
    def step(state: TrainState) -> TrainState:
        return state.apply_gradients(grads=state.params)

    state = step(make_state())
    cordwood.save(tmp_path / "a", state)
    with pytest.raises(MismatchError) as error:
        cordwood.load(tmp_path / "a", like=make_state())
    assert str(error.value).endswith(
        "\n  step: expected int, found int32[] (a Python int in `like`, and an array of int32 in "
        "the checkpoint, as a jitted step returns it: put jnp.int32(0) into `like`, or pass "
        "like=jax.eval_shape(f), where f() creates the state; cast=True converts it)"
    )
    loaded = cordwood.load(tmp_path / "a", like=jax.eval_shape(make_state))
    assert_trees_equal(loaded, state)
    loaded = cordwood.load(tmp_path / "a", like=make_state().replace(step=jnp.int32(0)))
    assert loaded.step == 1


def test_a_python_int_and_a_wide_or_floating_array(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"f": np.float32(1), "n": np.int64(1)})
    with pytest.raises(MismatchError) as error:
        cordwood.load(tmp_path / "a", like={"f": 0, "n": 0})
    first, second = str(error.value).splitlines()[1:]
    assert first.endswith("f: expected int, found float32[] (cast=True converts it)")
    assert "put np.int64(0) into `like`" in second


def test_python_numbers_of_an_equinox_module_that_a_filter_took_out(tmp_path: Path) -> None:
    dropout = {"drop": eqx.nn.Dropout(0.5), "norm": eqx.nn.LayerNorm(3)}
    cordwood.save(tmp_path / "a", eqx.filter(dropout, eqx.is_array))
    with pytest.raises(MismatchError) as error:
        cordwood.load(tmp_path / "a", like=dropout)
    assert "equinox.partition(like, equinox.is_array)" in str(error.value).splitlines()[-1]
    arrays, rest = eqx.partition(dropout, eqx.is_array)
    loaded = eqx.combine(cordwood.load(tmp_path / "a", like=arrays), rest)
    assert loaded["drop"].p == 0.5


def test_only_the_pattern_of_cast_that_changes_nothing_is_named(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"i": np.arange(2), "w": np.ones(2)})
    with pytest.raises(MismatchError) as error:
        cordwood.load(tmp_path / "a", cast={"w": "f16", "i*": "int8"})
    first, *lines = str(error.value).splitlines()
    assert first.endswith("a by some of its patterns:")
    assert len(lines) == 1
    assert lines[0].startswith("  'i*': ")
