"""Aliased and mapped leaves are safe under donation, deletion and sharding; dropped, they free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood.tree.leaves import host_array
from tests.children import run_python

SIZE = 3 << 20  # elements: 12 MiB of float32, an allocation of its own


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    small = {"small": jnp.arange(1000.0), "next": jnp.arange(500.0)}  # these two share memory
    cordwood.save(path, {"big": jnp.arange(float(SIZE)), **small})
    return path


@pytest.mark.parametrize("mmap", [False, True], ids=["memory", "mapped"])
@pytest.mark.parametrize("name", ["big", "small"])
def test_donated_steps_never_write_into_host_memory(path: Path, mmap: bool, name: str) -> None:
    step = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
    before = path.read_bytes()
    first = cordwood.load(path, mmap=mmap, to="jax")
    twin = cordwood.load(path, mmap=mmap, to="numpy")
    value = first.pop(name)
    for _ in range(3):
        value = step(value)
    for other, kept in first.items():
        np.testing.assert_array_equal(kept, twin[other])
    want = np.arange(SIZE if name == "big" else 1000, dtype=np.float32)
    np.testing.assert_array_equal(twin[name], want)
    for _ in range(3):
        want = want * 2 + 1
    np.testing.assert_array_equal(value, want)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mmap", [False, True], ids=["memory", "mapped"])
def test_leaves_survive_the_deletion_of_their_neighbours(path: Path, mmap: bool) -> None:
    tree = cordwood.load(path, mmap=mmap, to="jax")
    tree["big"].delete()
    tree["next"].delete()
    np.testing.assert_array_equal(tree["small"], np.arange(1000.0))


@pytest.mark.parametrize("mmap", [False, True], ids=["memory", "mapped"])
def test_sharded_over_eight_devices(path: Path, mmap: bool) -> None:
    mesh = jax.make_mesh((8,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    like = {
        "big": jax.ShapeDtypeStruct((SIZE,), jnp.float32, sharding=sharding),
        "small": jax.ShapeDtypeStruct((1000,), jnp.float32, sharding=sharding),
        "next": jax.ShapeDtypeStruct((500,), jnp.float32),
    }
    before = path.read_bytes()
    tree = cordwood.load(path, like=like, mmap=mmap)
    assert tree["big"].sharding == sharding
    doubled = jax.jit(lambda x: x * 2, donate_argnums=0)(tree["big"])
    np.testing.assert_array_equal(doubled, np.arange(SIZE, dtype=np.float32) * 2)
    np.testing.assert_array_equal(tree["small"], np.arange(1000.0))
    assert path.read_bytes() == before


@pytest.mark.parametrize("mmap", [False, True], ids=["memory", "mapped"])
def test_jax_leaves_alias_host_memory(path: Path, mmap: bool) -> None:
    tree = cordwood.load(path, mmap=mmap, to="jax")
    view = np.asarray(tree["big"])
    assert view.ctypes.data == tree["big"].unsafe_buffer_pointer()
    assert view.ctypes.data % 64 == 0
    owned = cordwood.load(path, to="jax", alias=False)
    np.testing.assert_array_equal(owned["big"], tree["big"])


_DROPPING = """
import gc, sys
from pathlib import Path
import numpy as np
import cordwood

def resident_bytes(*, even_free: bool):
    "Resident memory, with or without what the kernel may take at any time (MADV_FREE)."
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kib = {{name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}}
    return (kib["Rss"] - (0 if even_free else kib["LazyFree"])) << 10

path = {path!r}
cordwood.save(path, {{str(i): np.ones(8 << 20, np.float32) for i in range(4)}})
tree = cordwood.load(path, to={to!r})
gc.collect()
full = resident_bytes(even_free=True)
del tree["0"], tree["2"]
gc.collect()
print(full - resident_bytes(even_free=False))
cordwood.release_memory()
print(full - resident_bytes(even_free=True))
assert (np.asarray(tree["1"])[:3] == 1).all()
"""


@pytest.mark.parametrize("to", ["jax", "numpy"])
def test_dropping_a_leaf_frees_its_memory(tmp_path: Path, to: str) -> None:
    """In a child, where nothing else takes or gives back memory meanwhile."""
    printed = run_python(_DROPPING.format(path=str(tmp_path / "x.safetensors"), to=to))
    for freed in printed.split():
        assert int(freed) > 60 << 20


def test_a_mapping_outlives_the_file(path: Path) -> None:
    tree = cordwood.load(path, mmap=True, to="numpy")
    path.unlink()
    np.testing.assert_array_equal(tree["big"][:3], [0, 1, 2])


def test_saving_over_a_mapped_checkpoint(path: Path) -> None:
    tree = cordwood.load(path, mmap=True, to="jax")
    cordwood.save(path, jax.tree.map(lambda x: x + 1, tree))
    np.testing.assert_array_equal(tree["big"][:3], [0, 1, 2])
    np.testing.assert_array_equal(cordwood.load(path)["big"][:3], [1, 2, 3])


@pytest.mark.parametrize(
    "make",
    [
        lambda: jnp.arange(1000.0),
        lambda: jnp.arange(1000, dtype=jnp.bfloat16),
        lambda: jnp.arange(1000).astype(jnp.float8_e4m3fn),
        lambda: jnp.array([1, -2], jnp.int4),
        lambda: jax.device_put(jnp.arange(8.0), jax.devices()[3]),
    ],
    ids=["f32", "bf16", "f8", "int4", "other-device"],
)
def test_saving_leaves_no_host_copy_behind(tmp_path: Path, make: Callable[[], Any]) -> None:
    array = make()
    cordwood.save(tmp_path / "x.safetensors", {"x": array})
    assert array._npy_value is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_save_reads_cpu_arrays_without_a_copy(dtype: str) -> None:
    array = jnp.ones(1000, dtype)
    assert host_array(array).ctypes.data == array.unsafe_buffer_pointer()
