"""One array object at two places of a tree; test_nnx_modules.py has the modules that keep ties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood


class Pair(eqx.Module):
    first: Any
    second: Any


def as_dict(array: Any) -> Any:
    return {"first": array, "second": array}


def as_module(array: Any) -> Any:
    return Pair(array, array)


@pytest.mark.parametrize("name", ["tree", "tree.safetensors"])
@pytest.mark.parametrize("make", [as_dict, as_module])
@pytest.mark.parametrize("xp", [np, jnp])
def test_tied_arrays_are_stored_twice_and_loaded_as_two(
    tmp_path: Path, name: str, make: Any, xp: Any
) -> None:
    array = xp.arange(4096, dtype=xp.float32)
    cordwood.save(tmp_path / name, make(array))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum([path.stat().st_size for path in files]) > 2 * array.nbytes
    with cordwood.open(tmp_path / name) as checkpoint:
        assert list(checkpoint) == ["first", "second"]
    first, second = jax.tree.leaves(cordwood.load(tmp_path / name, like=make(array)))
    np.testing.assert_array_equal(first, array)
    np.testing.assert_array_equal(second, array)
    assert first is not second
    assert not np.shares_memory(np.asarray(first), np.asarray(second))


def test_arrays_that_equinox_shares_are_stored_once(tmp_path: Path) -> None:
    """See docs/how-to/equinox.md."""

    def shared(value: float) -> Any:
        pair = Pair(jnp.full(3, jnp.float32(value)), jnp.zeros(3))
        return eqx.nn.Shared(pair, lambda pair: pair.second, lambda pair: pair.first)

    arrays, rest = eqx.partition(shared(2.0), eqx.is_array)
    cordwood.save(tmp_path / "a", arrays)
    with cordwood.open(tmp_path / "a") as checkpoint:
        assert len(checkpoint) == 1
    like, _ = eqx.partition(shared(1.0), eqx.is_array)
    pair = eqx.combine(cordwood.load(tmp_path / "a", like=like), rest)()
    assert pair.first is pair.second
    np.testing.assert_array_equal(pair.first, np.full(3, 2))
