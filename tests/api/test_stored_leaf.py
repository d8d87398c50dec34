"""A leaf of an open checkpoint, taken for an array."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood

TREE: dict[str, Any] = {
    "w": np.arange(6.0).reshape(2, 3),
    "half": jnp.arange(4).astype(jnp.bfloat16),
    "empty": np.zeros((0, 3), np.int8),
    "scalar": np.float16(1.5),
    "zero_d": np.array(3),
    "key": jax.random.key(3),
    "n": 7,
    "t": True,
    "text": "abc",
    "raw": b"abc",
}


@pytest.fixture(params=["a.safetensors", "packs"])
def checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[cordwood.Checkpoint]:
    cordwood.save(tmp_path / request.param, TREE)
    with cordwood.open(tmp_path / request.param) as opened:
        yield opened


@pytest.mark.parametrize("name", ["w", "half", "empty", "scalar", "zero_d", "n", "t"])
def test_numpy_converts_a_stored_leaf(checkpoint: cordwood.Checkpoint, name: str) -> None:
    leaf, expected = checkpoint[name], np.asarray(TREE[name])
    loaded = np.asarray(leaf)
    assert (loaded.dtype, loaded.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(loaded, expected)
    assert (leaf.ndim, leaf.size) == (expected.ndim, expected.size)
    assert np.array(leaf, np.float32).dtype == np.asarray(leaf, dtype="float32").dtype == np.float32
    assert np.array(leaf, copy=True).flags.writeable
    with pytest.raises(ValueError, match="new memory"):
        np.array(leaf, copy=False)


@pytest.mark.parametrize("name", ["w", "half", "empty", "scalar", "zero_d", "n", "t"])
def test_jax_converts_a_stored_leaf(checkpoint: cordwood.Checkpoint, name: str) -> None:
    loaded, expected = jnp.asarray(checkpoint[name]), jnp.asarray(np.asarray(TREE[name]))
    assert (loaded.dtype, loaded.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(loaded, expected)
    assert jnp.asarray(checkpoint[name], jnp.float32).dtype == jnp.float32


def test_arithmetic_is_that_of_arrays_or_refused(checkpoint: cordwood.Checkpoint) -> None:
    leaf: Any = checkpoint["w"]
    for result in (leaf + np.ones(3), np.ones(3) + leaf, np.add(leaf, 1)):
        np.testing.assert_array_equal(result, TREE["w"] + 1)
    np.testing.assert_array_equal(jnp.ones(3) + leaf, TREE["w"] + 1)
    np.testing.assert_array_equal(leaf + jnp.ones(3), TREE["w"] + 1)
    with pytest.raises(TypeError, match="StoredLeaf"):
        leaf + 1


def test_the_length_of_a_stored_leaf_is_that_of_its_first_axis(
    checkpoint: cordwood.Checkpoint,
) -> None:
    assert len(checkpoint["w"]) == 2
    leaf = checkpoint["w"]
    assert [list(leaf[row]) for row in range(len(leaf))] == TREE["w"].tolist()
    assert len(checkpoint["empty"]) == 0
    for name in ("zero_d", "n", "text"):
        with pytest.raises(TypeError, match=f"{name} has no axis"):
            len(checkpoint[name])
    assert all(bool(leaf) for leaf in checkpoint.values())


def test_what_is_no_array_says_so(checkpoint: cordwood.Checkpoint) -> None:
    for name in ("text", "raw", "key"):
        with pytest.raises(TypeError, match=rf"^{name} is .*; use load\(\)"):
            np.asarray(checkpoint[name])
    np.testing.assert_array_equal(
        jax.random.key_data(jnp.asarray(checkpoint["key"])), jax.random.key_data(TREE["key"])
    )


def test_what_arrays_do_says_how_to_read_the_leaf_first(checkpoint: cordwood.Checkpoint) -> None:
    leaf: Any = checkpoint["w"]
    for name in ("T", "mean", "astype"):
        with pytest.raises(AttributeError, match=rf"{name}.*; take np.asarray\(leaf\), or a part"):
            getattr(leaf, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = leaf.nothing
    for other in (1, 2.0, leaf):
        with pytest.raises(
            TypeError, match=r"w is a StoredLeaf, not read yet: take np.asarray\(leaf\)"
        ):
            leaf + other
    np.testing.assert_array_equal(leaf + np.ones(3), TREE["w"] + 1)
    np.testing.assert_array_equal(leaf * np.float64(2), TREE["w"] * 2)
    np.testing.assert_array_equal(np.float64(2) * leaf, TREE["w"] * 2)
