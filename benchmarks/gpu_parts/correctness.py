"""Correctness: what is loaded has the saved bits, whatever the program does meanwhile.

These checks are about values, so their arrays are small. jax's 64-bit types are on.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.part import MIB, PROGRAM, NotPossibleError, Results, Setting

DTYPES = (
    *("bool", "int1", "int2", "int4", "int8", "int16", "int32", "int64"),
    *("uint1", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64"),
    *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
_BITS = {"bool": 1, "int1": 1, "int2": 2, "int4": 4, "uint1": 1, "uint2": 2, "uint4": 4}
_BITS |= {"float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}
_SHAPES = {"scalar": (), "empty": (0, 3), "vector": (5,), "matrix": (64, 33)}
_TIMES = 3  # of each check of what happens right after save_async
_WAIT_SECONDS = 60.0  # for one save: then it hangs
_EQUAL = "equal"


def measure(setting: Setting, results: Results) -> None:
    """Run all checks. A check that passes has a value, which says what was compared."""
    folder = setting.folder / "correctness"
    folder.mkdir(exist_ok=True)
    size = (1 if setting.dry else 128) * MIB
    for name in DTYPES:
        results.measure(f"dtype {name}", partial(_check_dtype, name, folder / name))
    results.measure("PRNG keys, weak types, Python and numpy leaves", partial(_check_mixed, folder))
    results.measure("a .msgpack file", partial(_check_msgpack, folder))
    for title, suffix in {"a directory": "", "a .safetensors file": ".safetensors"}.items():
        for what, change in CHANGES.items():
            check = partial(_check_change, change, folder / f"changed{suffix}", size)
            results.measure(f"save_async to {title}, then {what}", check)
    check = partial(_check_manager, folder / "run", size)
    results.measure("CheckpointManager, the state donated after each save", check)
    results.measure("arrays in pinned_host memory", partial(_check_pinned, folder / "pinned"))
    for title in spec_names():
        check = partial(_check_sharded, title, folder / "sharded")
        results.measure(f"saved {title}, loaded with each sharding", check)
    results.measure("loaded and saved again by a process on CPU", partial(_check_cpu, folder))


# Types of leaves


def _check_dtype(name: str, path: Path) -> str:
    """Save and load scalars, empty arrays, vectors and matrices of a dtype, three ways."""
    import jax
    import numpy as np

    from cordwood.testing import assert_trees_equal

    tree = {}
    for shape_name, shape in _SHAPES.items():
        host = noise_of(name, shape)
        try:
            array = jax.device_put(host, jax.devices()[0])
            assert_trees_equal(np.asarray(array), host)
        except AssertionError as e:
            raise NotPossibleError(f"jax itself changes it: {e}") from e
        except Exception as e:
            raise NotPossibleError(f"jax cannot hold it here ({type(e).__name__})") from e
        tree[shape_name] = array
    _round_trip(path, tree)
    return _EQUAL


def noise_of(name: str, shape: tuple[int, ...]) -> Any:
    """Return an array of a dtype with random bits: of floats, with NaNs of all kinds."""
    import math

    import ml_dtypes
    import numpy as np

    dtype = np.dtype(getattr(ml_dtypes, name, name))
    size = math.prod(shape) * dtype.itemsize
    noise = np.random.default_rng(len(name)).integers(0, 256, size, np.uint8)
    return (noise & (1 << _BITS.get(name, 8)) - 1).view(dtype).reshape(shape)


def _round_trip(path: Path, tree: Any) -> None:
    """Save and load a tree three ways; raise AssertionError unless all bits are equal."""
    import cordwood
    from cordwood.testing import assert_trees_equal

    cordwood.save(path, tree)
    assert_trees_equal(cordwood.load(path, like=tree), tree)
    cordwood.save_async(path, tree).wait(_WAIT_SECONDS)
    assert_trees_equal(cordwood.load(path, like=tree), tree)
    file = path.with_name(f"{path.name}.safetensors")
    cordwood.save(file, tree)
    assert_trees_equal(cordwood.load(file, like=tree), tree)


def _check_mixed(folder: Path) -> str:
    import jax
    import jax.numpy as jnp
    import numpy as np

    impls = ("threefry2x32", "rbg", "unsafe_rbg")
    tree = {
        "keys": {impl: jax.random.key(7, impl=impl) for impl in impls},
        "split keys": {impl: jax.random.split(jax.random.key(7, impl=impl), 3) for impl in impls},
        "weak": [jnp.asarray(2.5), jnp.asarray(3), jnp.full((3,), 1.5)],
        "python": (1, 2.5, True, 1 + 2j, "text", b"bytes", None),
        "numpy": {"array": noise_of("float64", (17, 3)), "scalar": np.float32(1.5)},
        "numpy bfloat16": noise_of("bfloat16", (9,)),
        "beside": jnp.arange(1000.0),
    }
    _round_trip(folder / "mixed", tree)
    return _EQUAL


def _check_msgpack(folder: Path) -> str:
    import jax

    import cordwood
    from cordwood.testing import assert_trees_equal

    names = ("bool", "int8", "uint32", "float16", "bfloat16", "float32", "complex64")
    tree = {name: jax.device_put(noise_of(name, (33, 9)), jax.devices()[0]) for name in names}
    path = folder / "tree.msgpack"
    cordwood.save(path, tree)
    assert_trees_equal(cordwood.load(path, like=tree), tree)
    return _EQUAL


# Changes right after save_async


def state_of(size_bytes: int, number: int = 0) -> dict[str, Any]:
    """Return eight numpy arrays of uint32: the state after so many steps."""
    import numpy as np

    rows = np.random.default_rng(0).integers(0, 1 << 32, (8, size_bytes // 32), np.uint32)
    for _ in range(number):
        rows = rows * np.uint32(3) + np.uint32(1)
    return {f"w{i}": row for i, row in enumerate(rows)}


@cache
def _step() -> Callable[[Any], Any]:
    """Return a step that overwrites the state, as a training step does."""
    import jax
    import numpy as np

    def step(state: Any) -> Any:
        return jax.tree.map(lambda x: x * np.uint32(3) + np.uint32(1), state)

    return jax.jit(step, donate_argnums=0)


def _donate(state: Any) -> str:
    """Overwrite the state twice by steps that donate it."""
    import jax

    after = _step()(_step()(state))
    jax.block_until_ready(after)
    gone = sum([leaf.is_deleted() for leaf in jax.tree.leaves(state)])
    return f"{gone} of {len(jax.tree.leaves(state))} arrays were donated"


def _delete(state: Any) -> str:
    """Delete the arrays, and fill the device memory that this frees with other values."""
    import jax
    import jax.numpy as jnp

    shapes = [leaf.shape for leaf in jax.tree.leaves(state)]
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    jax.block_until_ready([jnp.full(shape, 0xDEADBEEF, jnp.uint32) for shape in shapes * 2])
    return "all arrays were deleted"


CHANGES = {"donate the state": _donate, "delete the arrays": _delete}


def _check_change(change: Callable[[Any], str], path: Path, size_bytes: int) -> str:
    """Change the state right after save_async; what is stored must be the state before that.

    The save is called while the device still computes the state.
    """
    import jax
    import numpy as np

    import cordwood

    host = state_of(size_bytes)
    expected = state_of(size_bytes, 1)
    remark = ""
    for _ in range(_TIMES):
        state = _step()(jax.device_put(host, jax.devices()[0]))
        pending = cordwood.save_async(path, state)
        remark = change(state)
        pending.wait(_WAIT_SECONDS)
        loaded = cordwood.load(path, to="numpy")
        for name, array in expected.items():
            if not np.array_equal(loaded[name], array):
                raise AssertionError(f"{name} is not what it was when save_async was called")
    return f"{_EQUAL}, {_TIMES} times ({remark})"


def _check_manager(folder: Path, size_bytes: int) -> str:
    import jax
    import numpy as np

    import cordwood

    state = jax.device_put(state_of(size_bytes), jax.devices()[0])
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )
    with cordwood.CheckpointManager(folder) as manager:
        for number in range(3):
            manager.save(number, state)
            state = _step()(state)
    for number in range(3):
        loaded = cordwood.load(folder / str(number), like=like)
        for name, array in state_of(size_bytes, number).items():
            if not np.array_equal(np.asarray(loaded[name]), array):
                raise AssertionError(f"step {number}: {name} is not what was saved")
    return f"{_EQUAL}, 3 steps"


# Memories and shardings


def _check_pinned(path: Path) -> str:
    """Save arrays that are in host memory, and load into it what was on the device."""
    import jax

    import cordwood
    from benchmarks.gpu_parts.copies import pinned_sharding
    from cordwood.testing import assert_trees_equal

    device = jax.devices()[0]
    hosts = {name: noise_of(name, (65, 7)) for name in ("float32", "bfloat16", "int8")}
    on_device = jax.device_put(hosts, device)
    pinned = jax.device_put(hosts, pinned_sharding(device))
    _round_trip(path, pinned)
    assert_trees_equal(cordwood.load(path, like=on_device), on_device)
    cordwood.save(path, on_device)
    assert_trees_equal(cordwood.load(path, like=pinned), pinned)
    return _EQUAL


def spec_names() -> list[str]:
    """Return the names of the shardings of `shardings`."""
    import jax

    names = ["replicated", "split by rows", "split by columns"]
    two_axes = len(jax.devices()) >= 4 and len(jax.devices()) % 2 == 0
    return names + ["split on two axes", "split by rows, each part twice"] * two_axes


@cache
def shardings() -> dict[str, Any]:
    """Return shardings of a matrix over all devices."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = np.array(jax.devices())
    line = Mesh(devices, ("x",))
    specs = [(line, ()), (line, ("x",)), (line, (None, "x"))]
    if len(spec_names()) > len(specs):
        plane = Mesh(devices.reshape(2, -1), ("a", "b"))
        specs += [(plane, ("a", "b")), (plane, ("b", None))]
    placements = [NamedSharding(mesh, PartitionSpec(*spec)) for mesh, spec in specs]
    return dict(zip(spec_names(), placements, strict=True))


def _check_sharded(title: str, path: Path) -> str:
    """Save with one sharding, also asynchronously; load with each."""
    import jax

    import cordwood
    from cordwood.testing import assert_trees_equal

    count = len(jax.devices())
    hosts = {name: noise_of(name, (8 * count, 16 * count)) for name in ("float32", "bfloat16")}
    tree = jax.device_put(hosts, shardings()[title])
    cordwood.save_async(path, tree).wait(_WAIT_SECONDS)
    assert_trees_equal(cordwood.load(path, like=tree), tree)
    cordwood.save(path, tree)
    for sharding in shardings().values():
        expected = jax.device_put(hosts, sharding)
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            expected,
        )
        assert_trees_equal(cordwood.load(path, like=like), expected)
    return f"{_EQUAL}, {len(shardings())} shardings over {count} device{'s' * (count > 1)}"


# A process on CPU


def _check_cpu(folder: Path) -> str:
    """Load and save what the checks of dtypes and shardings left, in a process without the device.

    It prints the digests of what it loaded; what it saved is loaded here.
    """
    import cordwood

    paths = [path for path in sorted(folder.iterdir()) if path.name in (*DTYPES, "sharded")]
    command = [sys.executable, str(PROGRAM), "--on-cpu", *map(str, paths)]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment["JAX_PLATFORMS"] = "cpu"
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the process failed: {(done.stderr.splitlines() or ['?'])[-1]}")
    digests = json.loads(done.stdout.splitlines()[-1])
    for path in paths:
        for where in (path, copy_path(path)):
            if digests[path.name] != digests_of(cordwood.load(where, to="jax")):
                raise AssertionError(f"{where.name} differs between the device and the CPU")
    return f"{_EQUAL}, {len(paths)} trees"


def copy_path(path: Path) -> Path:
    """Return the path to which a process on CPU saves what it loaded."""
    return path.with_name(f"{path.name}.from-cpu")


def load_and_save_on_cpu(paths: list[Path]) -> dict[str, list[str]]:
    """Load and save trees with the CPU as the only device; return their digests by name."""
    import jax

    import cordwood

    if {device.platform for device in jax.devices()} != {"cpu"}:
        raise RuntimeError("this process was to run on the CPU")
    digests = {}
    for path in paths:
        tree = cordwood.load(path)
        digests[path.name] = digests_of(tree)
        cordwood.save(copy_path(path), tree)
    return digests


def digests_of(tree: Any) -> list[str]:
    """Return dtype, shape and digest of each array of a tree."""
    import jax
    import numpy as np

    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return [f"{a.dtype} {a.shape} {hashlib.sha256(a.tobytes()).hexdigest()}" for a in arrays]
