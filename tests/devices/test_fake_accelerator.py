"""The fake accelerator is one: what is read from it, or put there, is copied."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood.devices import array_shards, copy_shards, private_jax
from cordwood.tree.leaves import is_cpu, pinned_host, single_device_array
from tests.devices.fake_accelerator import fake_accelerator


def test_arrays_are_copied_to_another_memory_kind(fake_accelerator: str) -> None:
    array = jnp.arange(1000.0)
    held = array_shards.distinct_shards(array, {})
    assert not held.on_cpu
    (copy,) = copy_shards.copy_to_host(held.shards, held.host_shardings)
    assert copy.sharding.memory_kind == fake_accelerator
    assert copy.unsafe_buffer_pointer() != array.unsafe_buffer_pointer()
    view = single_device_array(array)
    assert view.ctypes.data != array.unsafe_buffer_pointer()


@pytest.mark.usefixtures("fake_accelerator")
def test_numpy_arrays_are_copied_to_it() -> None:
    array = np.zeros(1 << 16)
    put = jax.device_put(array)
    (quick,) = private_jax.put_on_device([private_jax.DevicePut(array)], device=None)
    array += 1
    assert not put.any()
    assert not quick.any()


@pytest.mark.usefixtures("fake_accelerator")
def test_trees_on_a_fake_accelerator_are_saved_and_loaded(tmp_path: Path) -> None:
    tree = {"w": jnp.arange(1000.0), "key": jax.random.key(3), "i4": jnp.array([1, -2], jnp.int4)}
    cordwood.save(tmp_path / "x.safetensors", tree)
    loaded = cordwood.load(tmp_path / "x.safetensors", like=tree)
    for name in ("w", "i4"):
        np.testing.assert_array_equal(loaded[name], tree[name])


def test_the_devices_are_cpus_again_afterwards() -> None:
    device = jax.devices()[0]
    with fake_accelerator():
        assert pinned_host(device) is not None
    assert pinned_host(device) is None
    assert is_cpu(device)
    assert vars(array_shards)["is_cpu"] is is_cpu
