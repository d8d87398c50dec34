"""A tree that is saved under any of thirty shardings loads equal under any other."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cordwood
from cordwood.testing import assert_trees_equal
from cordwood.testing import strategies as some
from tests.shardings import SHARDINGS

# The name, and how it is saved, of every format that holds such a tree.
FORMATS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "packs": ("c", {}),
    "zarr": ("c", {"format": "zarr"}),
    "zarr with zstd": ("c", {"format": "zarr", "compression": "zstd"}),
    "zarr with blosc": ("c", {"format": "zarr", "compression": "blosc"}),
    "safetensors": ("c.safetensors", {}),
    "msgpack": ("c.msgpack", {}),
    "msgpack.zst": ("c.msgpack.zst", {}),
}


def can_be_cut(name: str) -> bool:
    return not name.endswith("int1")  # jax cuts no bits


DTYPES = list(filter(can_be_cut, some.JAX_DTYPE_NAMES))
SHAPES = ((24, 48, 16), (48, 8), (24,), (8, 3, 2), (6, 6), (7,), (), (0, 8), (1, 2, 24))


@cache
def fitting(shape: tuple[int, ...]) -> list[Any]:
    """Return the shardings that cut an array of that shape evenly, as jax requires."""
    fits = []
    for sharding in SHARDINGS:
        with suppress(ValueError):
            if len(getattr(sharding, "spec", ())) <= len(shape):
                sharding.shard_shape(shape)
                fits.append(sharding)
    return fits


def test_all_of_them_fit_the_largest_shape() -> None:
    assert fitting(SHAPES[0]) == SHARDINGS


def spread(array: np.ndarray[Any, Any], number: int) -> Any:
    places = fitting(array.shape)
    native = array.astype(array.dtype.newbyteorder("="))  # jax has no big-endian arrays
    return jax.device_put(native, places[number % len(places)])


ARRAYS = st.builds(
    spread,
    some.numpy_arrays(names=DTYPES, shapes=SHAPES),
    st.integers(0, len(SHARDINGS) - 1),
)


def is_spread(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array) or not isinstance(leaf.dtype, np.dtype):
        return False
    return leaf.committed and can_be_cut(leaf.dtype.name)


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
@settings(max_examples=60)
def test_saved_by_one_and_loaded_by_another(name: str, data: st.DataObject) -> None:
    carrier: some.Carrier = "msgpack" if "msgpack" in name else "safetensors"
    keys = some.dict_keys(carrier).filter(lambda key: isinstance(key, str))  # jax sorts no others
    leaf = ARRAYS | ARRAYS | some.leaves(carrier)
    tree = {
        "root": data.draw(some.trees(carrier, leaf=leaf, keys=keys)),
        "sure": data.draw(ARRAYS),
    }

    def elsewhere(leaf: Any) -> Any:
        if not is_spread(leaf):
            return leaf
        # Not from device to device: jax 0.12 may change the sign of a NaN of 8 bits there.
        return jax.device_put(np.asarray(leaf), data.draw(st.sampled_from(fitting(leaf.shape))))

    def described(leaf: Any) -> Any:
        if not is_spread(leaf):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)

    target = jax.tree.map(elsewhere, tree)
    file, options = FORMATS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        cordwood.save(path, tree, **options)
        assert_trees_equal(cordwood.load(path, like=tree), tree)
        assert_trees_equal(cordwood.load(path, like=jax.tree.map(described, target)), target)
