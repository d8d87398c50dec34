"""Peak memory of a child process: a save copies nothing, a load needs memory for the tree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.children import run_python

MIB = 1 << 20
TREE_BYTES = 500 * MIB

# At most this over the tree itself.
EXTRA_BYTES = 64 * MIB + TREE_BYTES // 50

# VmHWM is the peak of the resident set; writing 5 to clear_refs makes it start over.
# RssFile is left out of the peak of a mapped load: those pages are the page cache's.
CHILD = """
import json, sys
import numpy as np
import cordwood

MIB = 1 << 20

def status(field):
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024

def start_over():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")

def peak_of(work):
    "How far the peak of the resident set rose above where it was, and what came back."
    start_over()
    before = status("VmRSS")
    kept = work()
    return status("VmHWM") - before, kept

def ones(mib, kind):
    array = np.ones(mib * MIB // 4, np.float32)
    if kind == "jax":
        import jax
        return jax.block_until_ready(jax.device_put(array))  # it copies in the background
    return array

def tree_of(kind):
    "A little over 500 MiB: big leaves, middling ones, and many small ones."
    big = {f"big{i}": ones(200, kind) for i in range(2)}
    middling = [ones(8, kind) for _ in range(8)]
    small = {str(i): np.ones(10240, np.float32) for i in range(1024)}
    return {"big": big, "middling": middling, "small": small}

def like_of(kind):
    if kind == "numpy":
        return None
    import jax
    spec = lambda mib: jax.ShapeDtypeStruct((mib * MIB // 4,), np.float32)
    return {
        "big": {f"big{i}": spec(200) for i in range(2)},
        "middling": [spec(8) for _ in range(8)],
        "small": {str(i): jax.ShapeDtypeStruct((10240,), np.float32) for i in range(1024)},
    }

def warm_up(path, kind):
    "Imports, threads and allocators cost once, whatever the tree."
    tree = {"a": ones(8, kind), "b": np.ones(3, np.float32)}
    cordwood.save(path, tree)
    return cordwood.load(path, like=tree)

action, path, kind = sys.argv[1:]
warm_up(path.replace("/tree", "/warm"), kind)
"""

SAVE = (
    CHILD
    + """
tree = tree_of(kind)
extra, _ = peak_of(lambda: cordwood.save(path, tree))
print(json.dumps(extra))
"""
)

LOAD = (
    CHILD
    + """
like = like_of(kind)
peak, tree = peak_of(lambda: cordwood.load(path, like=like, mmap=action == "map"))
print(json.dumps(peak))
assert len(tree["big"]) == 2 and float(tree["small"]["7"][3]) == 1.0
"""
)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


def child(code: str, action: str, path: Path, kind: str) -> int:
    extra: int = json.loads(run_python(code, action, str(path), kind))
    return extra


@pytest.mark.parametrize("kind", ["numpy", "jax"])
@pytest.mark.parametrize("suffix", [".safetensors", ".msgpack", ".msgpack.zst", ""])
def test_saves_and_loads_stay_within_their_memory(room: Path, suffix: str, kind: str) -> None:
    path = room / f"tree{suffix}"
    try:
        extra = child(SAVE, "save", path, kind)
        assert extra <= EXTRA_BYTES, f"saving took {extra / MIB:.0f} MiB beside the tree"
        compressed = suffix.endswith(".zst")
        assert compressed or size_of(path) >= TREE_BYTES
        peak = child(LOAD, "load", path, kind)
        assert peak >= TREE_BYTES * 0.95, f"a peak of {peak / MIB:.0f} MiB measures something else"
        extra = peak - TREE_BYTES
        assert extra <= EXTRA_BYTES, f"loading took {extra / MIB:.0f} MiB beside the tree"
        if suffix in (".safetensors", ""):
            peak = child(LOAD, "map", path, kind)
            assert peak <= EXTRA_BYTES, f"mapping took {peak / MIB:.0f} MiB"
    finally:
        remove(path)


def size_of(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


SHARDED = (
    CHILD
    + """
import jax
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
big = jax.device_put(np.ones((8192, 12800), np.float32), NamedSharding(mesh, P("x", "y")))
jax.block_until_ready(big)
extra, _ = peak_of(lambda: cordwood.save(path, {"big": big}))
print(json.dumps(extra))
"""
)


def test_the_shards_of_an_array_are_not_gathered(room: Path) -> None:
    """400 MiB on eight devices, into a directory: no second one of it is made."""
    path = room / "tree-sharded"
    try:
        extra = child(SHARDED, "save", path, "numpy")
        assert extra <= EXTRA_BYTES, f"saving took {extra / MIB:.0f} MiB beside the array"
        assert size_of(path) >= 400 * MIB
    finally:
        remove(path)


COLUMNS = (
    CHILD
    + """
import jax
from jax.sharding import NamedSharding, PartitionSpec

def tree_of_matrices(side):
    return {str(i): np.ones((side, side), np.float32) for i in range(4)}

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
columns = NamedSharding(mesh, PartitionSpec(None, "x"))

cordwood.save(path, tree_of_matrices(512))
cordwood.load(path, shardings=columns)
cordwood.save(path, tree_of_matrices(4096))
peak, tree = peak_of(lambda: cordwood.load(path, shardings=columns))
assert len(tree["3"].addressable_shards) == 8
print(json.dumps(peak))
"""
)


def test_peak_memory_of_shards(room: Path) -> None:
    """A part of every row for every device: no leaf is ever whole."""
    path = room / "matrices.safetensors"
    flags = "--xla_force_host_platform_device_count=8"
    try:
        output = run_python(COLUMNS, "load", str(path), "jax", JAX_PLATFORMS="cpu", XLA_FLAGS=flags)
        peak = json.loads(output)
        assert peak >= 243 * MIB, f"a peak of {peak / MIB:.0f} MiB measures something else"
        extra = peak - 256 * MIB
        assert extra <= 64 * MIB, f"loading took {extra / MIB:.0f} MiB beside the tree"
    finally:
        path.unlink(missing_ok=True)
