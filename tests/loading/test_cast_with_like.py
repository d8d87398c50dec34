"""A dtype to cast to, beside a `like` that has the structure and other dtypes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import cordwood
from cordwood.errors import MismatchError
from cordwood.testing import assert_trees_equal
from tests.loading.tree_writers import WRITERS

BF16 = jnp.bfloat16


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_floating_leaves_take_the_dtype_of_the_cast(
    format: str, dtype: str, tmp_path: Path
) -> None:
    tree = {"n": jnp.arange(3), "w": (jnp.arange(4.0), [jnp.ones((2, 2), BF16)])}
    path = WRITERS[format](tmp_path, tree)
    like = jax.eval_shape(
        lambda: {"n": jnp.arange(3), "w": (jnp.ones(4, dtype), [jnp.ones((2, 2), "float32")])}
    )
    loaded = cordwood.load(path, like=like, cast="bf16")
    expected = {"n": jnp.arange(3), "w": (jnp.arange(4, dtype=BF16), [jnp.ones((2, 2), BF16)])}
    assert_trees_equal(loaded, expected)


def test_models_of_nnx_and_equinox_are_cast(tmp_path: Path) -> None:
    state = nnx.state(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    module = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    eqx.tree_serialise_leaves(tmp_path / "m.eqx", module)
    cordwood.save(tmp_path / "nnx", state)
    cordwood.save(tmp_path / "module", module)
    for name, like in (("nnx", state), ("module", module), ("m.eqx", module)):
        loaded = cordwood.load(tmp_path / name, like=like, cast="bf16")
        expected = jax.tree.map(lambda leaf: leaf.astype(BF16), like)
        assert_trees_equal(loaded, expected)


def test_a_mapping_casts_what_it_names(tmp_path: Path) -> None:
    tree: dict[str, Any] = {
        "a": np.ones(2, np.float32),
        "b": np.ones(2, np.float32),
        "n": np.arange(2),
    }
    cordwood.save(tmp_path / "a", tree)
    cast = {"n": "int32", "a": "bf16"}
    loaded = cordwood.load(tmp_path / "a", like=tree, cast=cast)
    assert [leaf.dtype.name for leaf in loaded.values()] == ["bfloat16", "float32", "int32"]
    like = {**tree, "n": np.ones(2, np.float16)}
    loaded = cordwood.load(tmp_path / "a", like=like, cast={"n": "f16"})
    assert loaded["n"].dtype == np.float16
    for wrong in ({"b": np.ones(2, np.float16)}, {"n": np.ones(2, np.float32)}):
        with pytest.raises(MismatchError, match=r"expected float.*cast=.* converts it"):
            cordwood.load(tmp_path / "a", like={**tree, **wrong}, cast=cast)


def test_integers_are_not_cast_by_a_dtype(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"n": np.arange(3), "w": np.ones(2, np.float32)})
    for dtype in ("int32", "float32"):
        like = {"n": np.ones(3, dtype), "w": np.ones(2, np.float32)}
        with pytest.raises(MismatchError, match=f"expected {dtype}.*, found int64") as error:
            cordwood.load(tmp_path / "a", like=like, cast="bf16")
        advice = f'{{"n": "{dtype}", "**": "bfloat16"}}'
        assert f"cast={advice} converts it" in str(error.value)
        cast: Any = {"n": dtype, "**": "bfloat16"}
        loaded = cordwood.load(tmp_path / "a", like=like, cast=cast)
        assert [leaf.dtype.name for leaf in loaded.values()] == [dtype, "bfloat16"]


def test_shapes_and_floating_leaves_of_integers_are_compared(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"w": np.ones(2, np.float32)})
    for like in (np.ones(3, np.float32), np.ones(2, np.int32), np.ones(2, np.complex64)):
        with pytest.raises(MismatchError, match=r"w: expected .*found float32\[2\]"):
            cordwood.load(tmp_path / "a", like={"w": like}, cast="bf16")


def test_a_step_is_restored_in_another_dtype(tmp_path: Path) -> None:
    tree = {"n": np.int32(3), "w": jnp.arange(4.0)}
    with cordwood.CheckpointManager(tmp_path) as manager:
        manager.save(1, tree, items={"ema": {"w": jnp.ones(2)}})
        restored = manager.restore(like=tree, items={"ema": {"w": jnp.ones(2)}}, cast="bf16")
    assert restored is not None
    assert_trees_equal(restored.tree, {"n": np.int32(3), "w": jnp.arange(4, dtype=BF16)})
    assert_trees_equal(restored.items["ema"], {"w": jnp.ones(2, BF16)})
