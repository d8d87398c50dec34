"""The private names of jax: the installed jax has them, and without them the fallbacks work."""

from __future__ import annotations

import ast
import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.devices import private_jax
from cordwood.devices.private_jax import (
    DevicePut,
    local_arrays,
    put_on_device,
    put_sharded,
    set_weak_type,
)
from cordwood.errors import ProcessError
from cordwood.processes.coordination_client import coordination_client
from tests.shardings import mesh_of

PACKAGE = Path(cordwood.__file__).parent
FILES = ("devices/private_jax.py", "processes/coordination_client.py")
NAMES = [
    (node.module, alias.name)
    for file in FILES
    for node in ast.walk(ast.parse((PACKAGE / file).read_text()))
    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("jax._src")
    for alias in node.names
]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[name for _, name in NAMES])
def test_the_installed_jax_has_the_name(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name), f"jax {jax.__version__} renamed it"


def on_a_device(device: Any = None) -> list[jax.Array]:
    puts = [
        DevicePut(np.arange(12, dtype=np.float32)),
        DevicePut(np.ones((3, 4), jnp.bfloat16)),
        DevicePut(np.array(7, np.int32), weak_type=True),
    ]
    return put_on_device(puts, device=device)


def over_all_devices(*, weak_type: bool) -> list[jax.Array]:
    sharding = NamedSharding(mesh_of(8), P("x"))
    parts = {device: np.full((2, 3), i, np.float32) for i, device in enumerate(jax.devices())}
    return [put_sharded((16, 3), np.dtype("float32"), parts, sharding, weak_type=weak_type)]


MAKERS = {
    "on the default device": on_a_device,
    "on one device": lambda: on_a_device(jax.devices()[3]),
    "over all devices": lambda: over_all_devices(weak_type=False),
    "over all devices, weak": lambda: over_all_devices(weak_type=True),
    "weak": lambda: [set_weak_type(jnp.arange(5.0)), set_weak_type(jnp.ones((2, 2), jnp.int32))],
}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@makers
def test_no_fallback_is_used(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = Mock(side_effect=AssertionError(f"jax {jax.__version__} needs the fallback"))
    monkeypatch.setattr(jax, "make_array_from_single_device_arrays", fail)
    monkeypatch.setattr(jnp, "full", fail)
    device_put = Mock(wraps=jax.device_put)
    monkeypatch.setattr(jax, "device_put", device_put)
    make()
    assert device_put.call_count <= 1  # of a scalar, to learn the default device


@pytest.fixture
def without_private_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    private_jax._quick_put.cache_clear()
    for module, _ in NAMES:
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    yield
    private_jax._quick_put.cache_clear()


@makers
def test_the_fallbacks_make_the_same_arrays(make: Any, request: pytest.FixtureRequest) -> None:
    expected = make()
    request.getfixturevalue("without_private_names")
    with pytest.raises(ImportError):
        private_jax._quick_put()
    for array, quick in zip(make(), expected, strict=True):
        assert (array.dtype, array.weak_type) == (quick.dtype, quick.weak_type)
        assert (array.sharding, array.committed) == (quick.sharding, quick.committed)
        np.testing.assert_array_equal(np.asarray(array), np.asarray(quick))


class Recorder:
    """An array that records which of its attributes are read, and has only some of them."""

    def __init__(self, array: jax.Array, *attributes: str) -> None:
        self.array = array
        self.attributes = attributes
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.names.append(name)
        if name not in self.attributes:
            raise AttributeError(name)
        return getattr(self.array, name)


def test_the_shards_of_an_array() -> None:
    (array,) = over_all_devices(weak_type=False)
    recorder = Recorder(array, "_arrays")
    quick = local_arrays(recorder)
    assert recorder.names == ["_arrays"]
    public = local_arrays(Recorder(array, "sharding", "addressable_data"))
    assert len(quick) == len(public) == len(jax.devices())
    for shard, other in zip(quick, public, strict=True):
        assert shard.devices() == other.devices()
        np.testing.assert_array_equal(np.asarray(shard), np.asarray(other))


@pytest.mark.usefixtures("without_private_names")
def test_without_a_coordination_client() -> None:
    with pytest.raises(ProcessError, match=r"coordination client \(NoneType\) has no blocking"):
        coordination_client()
