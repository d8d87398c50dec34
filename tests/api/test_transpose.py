"""transpose: matrices that are stored as (out, in) come back as (in, out), from every format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.errors import CorruptionError, MismatchError
from cordwood.testing import assert_trees_equal
from tests.children import run_python
from tests.golden.orbax_checkpoints import GOLDEN
from tests.memory import traced_memory
from tests.processes.group import Group
from tests.shardings import SHARDINGS, mesh_of, sharding

Store: TypeAlias = Callable[[Any], Path]
MIB = 1 << 20
RANDOM = np.random.default_rng(3)
# Of more than a block, and with odd sizes, so that tiles and blocks end in the middle.
LARGE = RANDOM.random((601, 903), np.float32)
SMALL = RANDOM.random((6, 4), np.float32)
FOUR_BITS = RANDOM.integers(-8, 8, (24, 7)).astype(jnp.int4)


def tree() -> dict[str, Any]:
    return {
        "a": {"bias": np.ones(6, np.float32), "kernel": SMALL},
        "b": {"kernel": LARGE.astype(jnp.bfloat16), "scale": np.float32(3)},
        "embedding": SMALL + 1,
        "four_bits": {"kernel": FOUR_BITS},
    }


def turned() -> dict[str, Any]:
    result = tree()
    for name in ("a", "b", "four_bits"):
        result[name]["kernel"] = result[name]["kernel"].T
    return result


KINDS = [".safetensors", ".msgpack", ".msgpack.zst", ".msgpack.gz", "packs", "zarr", "zarr-zstd"]


def save_as(folder: Path, kind: str, saved: Any) -> Path:
    if kind.startswith("."):
        path = folder / f"saved{kind}"
        cordwood.save(path, saved)
        return path
    layout, _, compression = kind.partition("-")
    options: Any = {"format": layout, "compression": compression or None}
    cordwood.save(folder / kind, saved, **options)
    return folder / kind


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return lambda saved: save_as(tmp_path, request.param, saved)


def test_matrices_come_back_transposed(store: Store) -> None:
    path = store(tree())
    for pattern in ("**/kernel", ["**/kernel"], ["**", "!embedding"], {"**/kernel": (1, 0)}):
        loaded = cordwood.load(path, transpose=pattern, to="numpy")
        assert_trees_equal(loaded, turned())
        assert loaded["b"]["kernel"].flags.c_contiguous
        assert loaded["b"]["kernel"].flags.writeable


def test_transposed_leaves_load_as_jax_arrays(store: Store) -> None:
    loaded = cordwood.load(store(tree()), transpose="**/kernel", to="jax")
    for name in ("a", "b", "four_bits"):
        assert isinstance(loaded[name]["kernel"], jax.Array)
        np.testing.assert_array_equal(loaded[name]["kernel"], turned()[name]["kernel"])


def test_mapped_leaves_are_transposed(store: Store) -> None:
    path = store(tree())
    for to in ("numpy", "jax"):
        loaded = cordwood.load(path, transpose="**/kernel", mmap=True, to=to)
        np.testing.assert_array_equal(loaded["b"]["kernel"], turned()["b"]["kernel"])


def test_archives_of_numpy_in_either_order(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, w=LARGE, f=np.asfortranarray(LARGE))
    loaded = cordwood.load(path, transpose=["w", "f"])
    np.testing.assert_array_equal(loaded["w"], LARGE.T)
    np.testing.assert_array_equal(loaded["f"], LARGE.T)


def test_leaves_of_orbax_are_transposed() -> None:
    plain = cordwood.load(GOLDEN / "v1", to="numpy")
    loaded = cordwood.load(GOLDEN / "v1", transpose="params/kernel", to="numpy")
    assert plain["params"]["kernel"].ndim == 2
    np.testing.assert_array_equal(loaded["params"]["kernel"], plain["params"]["kernel"].T)


def test_with_rename_select_and_like(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    query, norm = RANDOM.random((4, 4), np.float32), np.ones(4, np.float32)
    arrays = {
        "layer.0.query.weight": query,
        "layer.0.norm.weight": norm,
        "layer.1.up.weight": SMALL,
    }
    safetensors.numpy.save_file({**arrays, "embed.weight": SMALL}, path)
    rename = {"layer.*.norm.weight": "layer_*/norm/scale", "layer.*.*.weight": "layer_*/*/kernel"}
    like: dict[str, Any] = {
        "layer_0": {"query": {"kernel": jnp.zeros((4, 4))}, "norm": {"scale": jnp.zeros(4)}},
        "layer_1": {"up": {"kernel": jnp.zeros((4, 6), jnp.bfloat16)}},
    }
    options: dict[str, Any] = {"rename": rename, "select": "layer.*", "transpose": ["**/kernel"]}
    loaded = cordwood.load(path, like=like, cast=True, **options)
    np.testing.assert_array_equal(loaded["layer_0"]["query"]["kernel"], query.T)
    np.testing.assert_array_equal(loaded["layer_0"]["norm"]["scale"], norm)
    kernel = loaded["layer_1"]["up"]["kernel"]
    np.testing.assert_array_equal(kernel, SMALL.T.astype(jnp.bfloat16))
    assert isinstance(kernel, jax.Array)
    nested = cordwood.load(path, nest=True, transpose="layer.*", cast={"layer.1.*": "f16"})
    np.testing.assert_array_equal(nested["layer"]["1"]["up"]["weight"], SMALL.T.astype(np.float16))
    np.testing.assert_array_equal(nested["embed"]["weight"], SMALL)


def test_convolutions_by_the_order_of_their_axes(store: Store) -> None:
    conv = RANDOM.random((8, 3, 5, 2), np.float32)
    path = store({"conv": {"bias": np.ones(8), "kernel": conv}, "dense": {"kernel": SMALL}})
    loaded = cordwood.load(path, transpose={"conv": (2, 3, 1, 0), "**/kernel": (1, 0)}, to="numpy")
    np.testing.assert_array_equal(loaded["conv"]["kernel"], conv.transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(loaded["conv"]["bias"], np.ones(8))
    np.testing.assert_array_equal(loaded["dense"]["kernel"], SMALL.T)


@pytest.mark.parametrize("kind", ["x.safetensors", "x.msgpack", "packs", "zarr"])
@pytest.mark.parametrize("requested", SHARDINGS[1:22], ids=str)
def test_transposed_leaves_take_any_sharding(
    requested: Any, kind: str, stored: dict[str, Path]
) -> None:
    loaded = cordwood.load(stored[kind], transpose={"w": (2, 0, 1)}, shardings=requested)["w"]
    expected = CUBE.transpose(2, 0, 1)
    assert (loaded.shape, loaded.sharding) == (expected.shape, requested)
    for shard in loaded.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])


CUBE = RANDOM.random((48, 24, 24), np.float32)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stored")
    for kind in ("x.safetensors", "x.msgpack", "packs"):
        cordwood.save(folder / kind, {"w": CUBE})
    on_devices = jax.device_put(CUBE, sharding(P("x", "y"), 4, 2))
    cordwood.save(folder / "zarr", {"w": on_devices}, format="zarr")
    return {kind: folder / kind for kind in ("x.safetensors", "x.msgpack", "packs", "zarr")}


def test_rules_and_meshes_are_for_what_comes_back(store: Store) -> None:
    path = store({"kernel": RANDOM.random((3, 8), np.float32)})
    mesh = mesh_of(8)
    loaded = cordwood.load(path, transpose="kernel", mesh=mesh, rules=[("kernel", P("x"))])
    assert loaded["kernel"].sharding.spec == P("x")
    assert {shard.data.shape for shard in loaded["kernel"].addressable_shards} == {(1, 3)}
    with pytest.raises(MismatchError, match=r"kernel: .*8"):
        cordwood.load(path, transpose="kernel", mesh=mesh, rules=[("kernel", P(None, "x"))])


def test_each_process_reads_its_own_part(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    weight = np.arange(8 << 20, dtype=np.float32).reshape(64, -1)  # 32 MiB
    cordwood.save(path, {"w": weight})
    with Group(2) as group:
        results = group.run(
            "load_onto", path=str(path), specs={"w": [None, "x"]}, mesh=[4], transpose="w"
        )
    seen = np.zeros(weight.T.shape, bool)
    for parts, read_bytes in results:
        for ranges, data in parts["w"]:
            key = tuple([slice(a, b) for a, b in ranges])
            np.testing.assert_array_equal(data, weight.T[key])
            seen[key] = True
        assert read_bytes <= 16 * MIB + 2 * MIB
    assert seen.all()


@pytest.mark.parametrize("to", ["numpy", "jax"])
def test_a_load_holds_one_leaf_twice_and_not_the_tree(tmp_path: Path, to: Any) -> None:
    path = tmp_path / "x.safetensors"
    size = 8 * MIB
    cordwood.save(path, {f"w{i}": np.ones((2048, 1024), np.float32) for i in range(8)})
    cordwood.load(path, transpose="w0", to=to)  # whatever is imported for it
    with traced_memory() as traced:
        loaded = cordwood.load(path, transpose="*", to=to)
    assert traced.peak_bytes < 8 * size + size + 8 * MIB
    assert loaded["w7"].shape == (1024, 2048)


def test_what_is_read_is_verified(tmp_path: Path) -> None:
    path = save_as(tmp_path, ".safetensors", {"w": LARGE})
    with cordwood.open(path) as checkpoint:
        (piece,) = checkpoint.index.leaves[0].storage.pieces  # type: ignore[union-attr]
    with path.open("r+b") as file:
        file.seek(piece.offset + 1000)
        file.write(b"damage")
    for options in ({}, {"shardings": sharding(P("x"), 3)}):
        with pytest.raises(CorruptionError):
            cordwood.load(path, transpose="w", **options)  # type: ignore[call-overload]
    with pytest.raises(CorruptionError):
        cordwood.convert(path, tmp_path / "b.safetensors", transpose="w")


def test_a_step_of_a_manager_is_transposed(tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"w": SMALL})
    restored = cordwood.StepReader(tmp_path / "run").restore(
        like={"w": np.zeros((4, 6), np.float32)}, transpose="w"
    )
    assert restored is not None
    np.testing.assert_array_equal(restored.tree["w"], SMALL.T)


@pytest.mark.parametrize("other", KINDS)
def test_conversions_transpose_and_cast(store: Store, tmp_path: Path, other: str) -> None:
    layout, _, compression = other.partition("-")
    options: dict[str, Any] = {}
    if not other.startswith("."):
        options = {"format": layout, "compression": compression or None}
    path = tmp_path / f"converted{other}"
    done = cordwood.convert(
        store(tree()), path, transpose="**/kernel", cast={"embedding": "f16"}, **options
    )
    expected = {**turned(), "embedding": (SMALL + 1).astype(np.float16)}
    assert_trees_equal(cordwood.load(path, to="numpy"), expected)
    assert done.lost == ()


CHILD = """
import json, sys
import cordwood

def status(field):
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024

source, warm, destination = sys.argv[1:]
cordwood.convert(warm, destination, transpose="w")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = status("VmRSS")
cordwood.convert(source, destination, transpose="w", overwrite=True)
print(json.dumps(status("VmHWM") - before))
"""


@pytest.mark.parametrize("kind", [".safetensors", "zarr-zstd"])
def test_conversions_hold_a_part_of_a_large_matrix(tmp_path: Path, kind: str) -> None:
    (tmp_path / "warm").mkdir()
    weight = np.arange(96 << 20, dtype=np.uint32).reshape(3 << 10, -1)  # 384 MiB
    source = save_as(tmp_path, kind, {"w": weight})
    warm = save_as(tmp_path / "warm", kind, {"w": np.ones((1024, 1024))})
    path = tmp_path / "b.safetensors"
    peak_bytes: int = json.loads(run_python(CHILD, str(source), str(warm), str(path)))
    assert peak_bytes < 256 * MIB
    loaded = cordwood.load(path, mmap=True)["w"]
    for rows in (slice(0, 100), slice(-100, None)):
        np.testing.assert_array_equal(loaded[rows], weight.T[rows])


def test_a_shape_that_is_a_transpose_says_so(store: Store) -> None:
    path = store({"up": {"kernel": SMALL}, "conv": RANDOM.random((8, 3, 5, 2), np.float32)})
    like = {"up": {"kernel": np.zeros((4, 6), np.float32)}, "conv": np.zeros((5, 2, 3, 8))}
    with pytest.raises(MismatchError) as e:
        cordwood.load(path, like=like)
    assert (
        "up/kernel: expected float32[4,6], found float32[6,4] "
        "(that is its transpose, as PyTorch stores it: pass transpose=['**/kernel'])"
    ) in str(e.value)
    assert "pass transpose={'conv': (2, 3, 1, 0)})" in str(e.value)
    like = {"up": {"kernel": np.zeros((6, 4), np.float32)}, "conv": np.zeros((8, 3, 5, 2))}
    with pytest.raises(MismatchError, match=r"found float32\[4,6\] once transposed$"):
        cordwood.load(path, like=like, transpose="up/kernel", cast=True)


def test_the_proposed_pattern_transposes_square_matrices_too(store: Store) -> None:
    square = RANDOM.random((4, 4), np.float32)
    path = store({"key": {"kernel": square}, "up": {"kernel": SMALL}})
    like = {"key": {"kernel": square}, "up": {"kernel": SMALL.T}}
    hint = "pass transpose=['**/kernel'], which square ones (1 here) need as well)"
    with pytest.raises(MismatchError, match=re.escape(hint)):
        cordwood.load(path, like=like)
    loaded = cordwood.load(path, like=like, transpose=["**/kernel"])
    assert_trees_equal(loaded, {"key": {"kernel": square.T}, "up": {"kernel": SMALL.T}})


def test_no_pattern_is_proposed_that_takes_what_fits_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a"
    square = np.ones((4, 4), np.float32)
    saved = {"embed": {"weight": SMALL}, "key": {"weight": square}, "up": {"weight": SMALL}}
    cordwood.save(path, saved)
    hint = (
        "up/weight: expected float32[4,6], found float32[6,4] (that is its transpose, as PyTorch "
        "stores it: pass transpose=['up/weight']; square ones fit either way, and may need it as "
        "well)"
    )
    with pytest.raises(MismatchError, match=re.escape(hint)):
        cordwood.load(path, like={**saved, "up": {"weight": SMALL.T}})
    cordwood.save(path, {"conv": {"kernel": np.ones((3, 2, 2))}, "up": {"kernel": SMALL}})
    with pytest.raises(MismatchError, match=re.escape("pass transpose=['up/kernel'])")):
        cordwood.load(path, like={"up": {"kernel": SMALL.T}}, extra="ignore")


def test_the_proposed_pattern_goes_by_the_joined_names_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({"layer.0.weight": SMALL, "layer.1.weight": SMALL}, path)
    like = {"layer.0.weight": SMALL.T.copy(), "layer.1.weight": SMALL.T.copy()}
    with pytest.raises(MismatchError, match=re.escape("pass transpose=['*.weight'])")):
        cordwood.load(path, like=like)
    assert_trees_equal(cordwood.load(path, like=like, transpose=["*.weight"]), like)


@pytest.mark.parametrize(
    ("transpose", "error", "message"),
    [
        ("z", MismatchError, "transpose matches no leaf of .*\n.*'z'; found bias, conv, kernel"),
        ("bias", MismatchError, "transpose changes nothing of .*: no array of two axes or more"),
        ("**", MismatchError, r"conv: it has 4 axes, .*transpose=\{'conv': \(2, 3, 1, 0\)\}\)"),
        ({"conv": (1, 0)}, MismatchError, r"conv: it has 4 axes, .*, and \(1, 0\) is for 2"),
        ({"kernel": (0, 2)}, ValueError, "'kernel': expected the numbers 0 to n-1"),
        ({"kernel": 1}, TypeError, "'kernel': expected the numbers 0 to n-1"),
        ([], ValueError, "transpose: there is no pattern; None transposes nothing"),
        ({}, ValueError, "transpose: there is no pattern; None transposes nothing"),
        (True, TypeError, "transpose: expected a pattern or several, found True"),
        ([1], TypeError, "transpose: expected patterns that are str, found 1"),
    ],
)
def test_what_cannot_be_transposed(
    tmp_path: Path, transpose: Any, error: type[Exception], message: str
) -> None:
    path = tmp_path / "a.safetensors"
    cordwood.save(path, {"bias": np.ones(2), "conv": np.ones((1, 2, 3, 4)), "kernel": SMALL})
    with pytest.raises(error, match=message):
        cordwood.load(path, transpose=transpose)
    with pytest.raises(error, match=message):
        cordwood.convert(path, tmp_path / "b.safetensors", transpose=transpose)


def test_arrays_without_names_cannot_be_transposed() -> None:
    path = Path(__file__).parents[1] / "golden" / "equinox-0.13.8.eqx"
    with pytest.raises(MismatchError, match="without names, which select, rename and transpose"):
        cordwood.load(path, like={"w": SMALL}, transpose="w")
