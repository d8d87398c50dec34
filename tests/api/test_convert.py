"""convert: every reader to every writer, lossless or refused; memory does not grow."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import cordwood
from cordwood.errors import CorruptionError, LossError, MismatchError, NotACheckpointError
from cordwood.index import Box
from cordwood.io.lazy_array import LazyArray
from cordwood.sharding.boxes import slices
from cordwood.testing import assert_trees_equal
from cordwood.testing import strategies as some
from tests.children import run_python
from tests.golden.orbax_checkpoints import GOLDEN, LAYOUTS

EXACT = [".safetensors", "packs", "zarr", "zarr-zstd", "zarr-blosc"]
STATE_DICTS = [".msgpack", ".msgpack.zst", ".msgpack.gz"]


def options(kind: str) -> dict[str, Any]:
    layout, _, compression = kind.partition("-")
    return {} if kind.startswith(".") else {"format": layout, "compression": compression or None}


def place(folder: Path, kind: str, name: str) -> Path:
    return folder / (f"{name}{kind}" if kind.startswith(".") else f"{name}-{kind}")


class Moments(NamedTuple):
    mu: Any
    nu: Any


def every_kind() -> dict[str, Any]:
    """Return a tree of all kinds of leaves and containers."""
    mesh = jax.make_mesh((8,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    return {
        "params": {
            "bf16": jnp.arange(600.0).reshape(20, 30).astype(jnp.bfloat16),
            "sharded": jax.device_put(jnp.arange(4096.0).reshape(64, 64), sharding),
            "int4": jnp.arange(-8, 8).astype(jnp.int4),
            "f8": np.linspace(-2, 2, 17).astype(jnp.float8_e4m3fn),
            "big": np.random.default_rng(0).standard_normal((700, 1100)),
            "strided": np.arange(24.0).reshape(4, 6)[::2, ::-1],
            "swapped": np.arange(5, dtype=">i4"),
            "complex": np.array([1 + 2j, -3j]),
            "bool": np.array([True, False]),
            "empty": np.zeros((3, 0), np.float32),
            "scalar": np.float16(1.5),
            "zero_d": np.array(3, np.int64),
        },
        "opt": (Moments([np.ones(3)], {}), None, []),
        "key": jax.random.key(3),
        "weak": jnp.asarray(2.5),
        "text": "grüße",
        "long_text": "x" * 10_000,
        "raw": bytes(range(256)) * 40,
        "n": 7,
        "f": 0.5,
        "c": 1j,
        "t": True,
        "odd": {3: 1, "a/b": 2, ("x", 1): 3},
    }


def plain_kinds() -> dict[str, Any]:
    """Return a tree of leaves that Flax's msgpack can hold."""
    tree = every_kind()
    for name in ("opt", "key", "weak", "odd"):
        del tree[name]
    return tree


SMALL = "cordwood.converting.source_leaves._SMALL_BYTES"


@pytest.mark.parametrize("small", [1, 256 << 10])
@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("other", EXACT)
def test_every_kind_of_leaf_survives_every_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, other: str, small: int
) -> None:
    monkeypatch.setattr(SMALL, small)
    tree = every_kind()
    source, path = place(tmp_path, kind, "a"), place(tmp_path, other, "b")
    cordwood.save(source, tree, metadata={"who": "me"}, **options(kind))
    done = cordwood.convert(source, path, **options(other))
    assert (done.lost, done.leaves) == ((), 25)
    difference = cordwood.diff(source, path, strict=True)
    assert difference.equal, str(difference)
    assert_trees_equal(cordwood.load(path, like=tree), tree)
    with cordwood.open(path) as checkpoint:
        assert checkpoint.metadata == {"who": "me"}
    assert cordwood.verify(path).unverified_bytes == 0


@pytest.mark.parametrize("kind", EXACT + STATE_DICTS)
@pytest.mark.parametrize("other", STATE_DICTS)
def test_a_converted_msgpack_has_the_bytes_of_the_tree(
    tmp_path: Path, kind: str, other: str
) -> None:
    tree = plain_kinds()
    source, path = place(tmp_path, kind, "a"), place(tmp_path, other, "b")
    cordwood.save(source, tree, **options(kind))
    assert cordwood.convert(source, path).lost == ()
    difference = cordwood.diff(source, path)
    assert difference.equal, str(difference)
    if other == ".msgpack":
        assert path.read_bytes() == cordwood.to_bytes(tree)


@pytest.mark.parametrize("kind", STATE_DICTS)
@pytest.mark.parametrize("other", EXACT)
def test_state_dicts_into_what_holds_more(tmp_path: Path, kind: str, other: str) -> None:
    source, path = place(tmp_path, kind, "a"), place(tmp_path, other, "b")
    cordwood.save(source, every_kind()["params"])
    cordwood.convert(source, path, **options(other))
    difference = cordwood.diff(source, path, strict=True)
    assert difference.equal, str(difference)


@pytest.mark.parametrize("other", STATE_DICTS)
def test_what_would_be_lost_is_named(tmp_path: Path, other: str) -> None:
    source, path = tmp_path / "a.safetensors", tmp_path / f"b{other}"
    cordwood.save(source, every_kind(), metadata={"format": "pt"})
    with pytest.raises(LossError) as error:
        cordwood.convert(source, path)
    assert str(error.value) == (
        f"converting {source} to {path} would lose something (lossy=True or --lossy accepts "
        "the loss; metadata={} leaves out the strings):\n"
        "  3 lists and tuples (become dicts with the keys '0', '1' ...): opt, opt/0/mu, opt/2\n"
        "  1 dict with keys that are not strings (they become strings): odd\n"
        "  1 weak type: weak\n"
        "  1 PRNG key array, of which only the key data stays: key\n"
        "  1 string beside the tree: format"
    )
    assert not path.exists()
    with pytest.raises(LossError) as error:
        cordwood.convert(source, path, metadata={})
    assert "(lossy=True or --lossy accepts the loss):" in str(error.value)
    assert "beside the tree" not in str(error.value)
    done = cordwood.convert(source, path, lossy=True)
    assert len(done.lost) == 5
    lines = str(cordwood.diff(source, path))
    assert "key: kind: key<threefry2x32>[] | uint32[2]" in lines
    assert lines.startswith("1 difference between")


def test_files_of_other_tools_are_converted(tmp_path: Path) -> None:
    source = tmp_path / "hf.safetensors"
    arrays = {"a.w": np.ones((4, 4), np.float32), "a.b": np.zeros(4, np.float32)}
    safetensors.numpy.save_file(arrays, source, metadata={"format": "pt"})
    path = tmp_path / "nested"
    cordwood.convert(source, path, rename={"a.*": "layer/*"}, cast="bf16")
    loaded = cordwood.load(path)
    assert {name: array.dtype for name, array in loaded["layer"].items()} == {
        "b": jnp.bfloat16,
        "w": jnp.bfloat16,
    }
    theirs = tmp_path / "theirs.msgpack"
    theirs.write_bytes(flax.serialization.to_bytes({"w": np.arange(6.0), "n": 3}))
    again = tmp_path / "again.safetensors"
    cordwood.convert(theirs, again)
    assert_trees_equal(cordwood.load(again), {"w": np.arange(6.0), "n": 3})
    assert set(safetensors.numpy.load_file(again)) == {"w"}


def test_a_part_under_other_names(tmp_path: Path) -> None:
    source, path = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    cordwood.save(source, {"params": {"w": np.ones(3), "b": np.ones(2)}, "step": 7})
    done = cordwood.convert(source, path, select="params", rename={"params": ""})
    assert (done.leaves, done.size_bytes) == (2, 40)
    assert_trees_equal(cordwood.load(path), {"w": np.ones(3), "b": np.ones(2)})


def test_a_conversion_casts_and_refuses_to_change_integers(tmp_path: Path) -> None:
    source, path = tmp_path / "a.safetensors", tmp_path / "b"
    tree: dict[str, Any] = {
        "w": np.linspace(0, 1, 3000).reshape(30, 100),
        "n": np.arange(5),
        "x": jnp.asarray(1.5),
    }
    cordwood.save(source, tree)
    cordwood.convert(source, path, cast={"w": "f16", "n": "uint8", "x": "bf16"})
    loaded = cordwood.load(path)
    np.testing.assert_array_equal(loaded["w"], tree["w"].astype(np.float16))
    assert (loaded["n"].dtype, loaded["x"].dtype) == (np.uint8, jnp.bfloat16)
    assert not loaded["x"].weak_type
    with pytest.raises(MismatchError, match="w: casting float64 to int8 would change values"):
        cordwood.convert(source, tmp_path / "c", cast={"w": "int8"})
    assert not (tmp_path / "c").exists()


def test_casts_leave_integers_as_they_are(tmp_path: Path) -> None:
    source, path = tmp_path / "a.safetensors", tmp_path / "b"
    ids = np.array([1, 257, 1001])
    cordwood.save(source, {"ids": ids, "w": np.ones(3)})
    done = cordwood.convert(source, path, cast={"**": "bf16"})
    assert done.lost == ()
    assert_trees_equal(cordwood.load(path), {"ids": ids, "w": np.ones(3, jnp.bfloat16)})
    message = "ids: casting int64 to bfloat16 would change values, the first of them 257"
    with pytest.raises(MismatchError, match=message):
        cordwood.convert(source, tmp_path / "c", cast={"ids": "bf16"}, lossy=True)


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([1, np.inf], np.float16), "int32"),
        (np.array([1, -np.inf], np.float16), "int32"),
        (np.array([1, -np.inf], np.float16), "int64"),
        (np.array([1, 2.0**31], np.float32), "int32"),
        (np.array([1, 2.0**63]), "int64"),
        (np.array([1, 2.0**64]), "uint64"),
        (np.array([1, np.nan]), "uint8"),
        (np.array([1, -(2**31)], np.int32), "float16"),
        (np.array([1, 2**31 - 1], np.int32), "float16"),
        (np.array([1, -(2**63)]), "float16"),
        (np.array([1, 2**63 - 1]), "float32"),
        (np.array([1, 2**64 - 1], np.uint64), "complex64"),
        (np.array([True, False]), "float8_e8m0fnu"),
        (np.array([1, 1 + 2j]), "float64"),
    ],
)
def test_casts_at_the_limits_of_a_dtype_are_refused(
    tmp_path: Path, array: np.ndarray[Any, Any], dtype: str
) -> None:
    source = tmp_path / "a.safetensors"
    cordwood.save(source, {"w": array})
    message = f"would change values, the first of them {re.escape(f'{array[1]}')};"
    with pytest.raises(MismatchError, match=message):
        cordwood.load(source, to="numpy", cast={"w": dtype})


@pytest.mark.parametrize(
    ("value", "like"),
    [
        (10**400, 0.0),
        (10**400, np.zeros((), np.int64)),
        (2**70 + 1, np.zeros((), np.float32)),
        (np.array(np.inf), 1),
        (np.array(np.nan), 1),
        (np.array(2.5), 1),
        (np.array(1 + 2j), 1.0),
    ],
)
def test_values_that_a_number_cannot_hold_are_refused(
    tmp_path: Path, value: Any, like: Any
) -> None:
    source = tmp_path / "a.safetensors"
    cordwood.save(source, {"n": value})
    with pytest.raises(MismatchError, match=r"n: (casting .* would change values|expected float)"):
        cordwood.load(source, like={"n": like}, cast=True)


def test_values_that_a_number_can_hold_are_converted(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    cordwood.save(source, {"i": 2**70, "c": np.array(2 + 0j), "x": np.array(3.0)})
    like = {"i": np.zeros((), np.float32), "c": 1.0, "x": 1}
    loaded = cordwood.load(source, like=like, cast=True)
    assert_trees_equal(loaded, {"i": np.asarray(2.0**70, np.float32), "c": 2.0, "x": 3})


def test_casts_of_complex_to_real_numbers_warn_of_nothing(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    cordwood.save(source, {"w": np.array([1 + 0j, -2])})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = cordwood.load(source, cast={"w": "float32"})
    assert_trees_equal(loaded, {"w": np.array([1, -2], np.float32)})


def test_what_is_there_stays_whole(tmp_path: Path) -> None:
    source, path = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    cordwood.save(source, {"w": np.arange(1 << 20)})
    cordwood.save(path, {"old": 1})
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    source.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"a\.safetensors"):
        cordwood.convert(source, path, overwrite=True)
    assert cordwood.load(path) == {"old": 1}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [source.name, path.name]
    path.write_text("a letter")
    with pytest.raises(NotACheckpointError):
        cordwood.convert(source, path)
    with pytest.raises(ValueError, match="would be converted into itself"):
        cordwood.convert(source, source)


def test_one_tree_of_several_is_converted(tmp_path: Path) -> None:
    source = tmp_path / "many"
    cordwood.save(source, {"w": np.ones(3)}, prefix="params")
    cordwood.save(source, {"mu": np.ones(3)}, prefix="opt")
    with cordwood.open(source, prefix="opt") as checkpoint:
        cordwood.convert(checkpoint, tmp_path / "opt.safetensors")
    assert set(cordwood.load(tmp_path / "opt.safetensors")) == {"mu"}


@given(tree=some.trees("safetensors"), small=st.sampled_from([1, 256 << 10]))
@settings(max_examples=60)
def test_any_tree_survives_two_conversions(tree: Any, small: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(SMALL, small)
        source, middle, path = (Path(folder) / name for name in ("a.safetensors", "b", "c"))
        cordwood.save(source, tree)
        cordwood.convert(source, middle)
        cordwood.convert(middle, path, format="zarr")
        assert_trees_equal(cordwood.load(path, like=tree), tree)


@pytest.mark.parametrize("rows", [1, 7])
def test_a_lazy_array_reads_each_window_once(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr("cordwood.io.lazy_array.WINDOW_BYTES", 1000)
    array = np.arange(60 * 50, dtype=np.int32).reshape(60, 50)
    reads: list[Box] = []

    def read(box: Box) -> Any:
        reads.append(box)
        return array[slices(box)]

    lazy = LazyArray(array.shape, array.dtype, read, rows=rows)
    data = array.tobytes()
    for start in range(0, len(data), 777):
        target = bytearray(min(777, len(data) - start))
        lazy.copy_bytes(start, memoryview(target))
        assert bytes(target) == data[start : start + 777]
    assert len(reads) == len(set(reads))  # each window once
    assert b"".join(lazy.buffers(10, 11_000)) == data[10:11_000]
    np.testing.assert_array_equal(np.asarray(lazy), array)
    box = Box((3, 5), (9, 20))
    np.testing.assert_array_equal(np.asarray(lazy.within(box)), array[3:9, 5:20])
    with pytest.raises(ValueError, match="expected bytes 11999 to 12001, found 12000 in all"):
        lazy.copy_bytes(11_999, memoryview(bytearray(2)))


def test_parts_of_a_lazy_array_share_large_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordwood.io.lazy_array.WINDOW_BYTES", 100)
    array = np.arange(60 * 50, dtype=np.int32).reshape(60, 50)
    reads: list[Box] = []

    def read(box: Box) -> Any:
        reads.append(box)
        return array[slices(box)]

    lazy = LazyArray(array.shape, array.dtype, read, window_bytes=4000)
    for start in range(0, 60, 5):
        part = lazy.within(Box((start, 0), (start + 5, 50)))
        target = bytearray(part.nbytes)
        part.copy_bytes(0, memoryview(target))
        assert bytes(target) == array[start : start + 5].tobytes()
    assert [box.start for box in reads] == [(0, 0), (20, 0), (40, 0)]
    narrow = lazy.within(Box((3, 5), (9, 20)))
    np.testing.assert_array_equal(np.asarray(narrow), array[3:9, 5:20])


def test_threads_that_overtake_one_another_read_each_window_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cordwood.io.lazy_array.WINDOW_BYTES", 16)
    array = np.arange(64, dtype=np.uint8)
    reads: list[Box] = []

    def read(box: Box) -> Any:
        reads.append(box)
        return array[slices(box)]

    lazy = LazyArray(array.shape, array.dtype, read)
    starts = range(2, 60, 4)  # of what threads fill, eight at a time
    for a in (0, 8):
        for start in reversed(starts[a : a + 8]):
            target = bytearray(4)
            lazy.copy_bytes(start, memoryview(target))
            assert list(target) == list(range(start, start + 4))
    assert len(reads) == len(set(reads))


def test_lazy_arrays_that_are_read_straight() -> None:
    array = np.arange(60 * 50, dtype=np.int32).reshape(60, 50)
    data = array.tobytes()
    straight: list[tuple[int, int]] = []

    def read_into(start: int, target: memoryview) -> None:
        straight.append((start, len(target)))
        target[:] = data[start : start + len(target)]

    lazy = LazyArray(array.shape, array.dtype, lambda box: array[slices(box)], read_into=read_into)

    def bytes_of(part: LazyArray) -> bytes:
        target = bytearray(part.nbytes - 6)
        part.copy_bytes(6, memoryview(target))
        return bytes(target)

    assert bytes_of(lazy) == data[6:]
    assert bytes_of(lazy.within(Box((3, 0), (9, 50)))) == array[3:9].tobytes()[6:]
    inner = lazy.within(Box((3, 0), (9, 50))).within(Box((1, 7), (2, 20)))
    assert bytes_of(inner) == array[4, 7:20].tobytes()[6:]
    assert straight == [(6, 11994), (606, 1194), (834, 46)]
    assert bytes_of(lazy.within(Box((3, 5), (9, 20)))) == array[3:9, 5:20].tobytes()[6:]
    assert len(straight) == 3  # its rows are apart


def test_empty_chunks_of_flax_are_joined(tmp_path: Path) -> None:
    """Flax joins whatever flat chunks there are."""
    array = np.arange(200_000, dtype=np.int32)
    chunks = {"0": array[:70_001], "1": array[:0], "2": array[70_001:]}
    stored = {"__msgpack_chunked_array__": True, "shape": {"0": array.size}, "chunks": chunks}
    source = tmp_path / "a.msgpack"
    source.write_bytes(flax.serialization.msgpack_serialize({"w": stored, "v": 1}))
    cordwood.convert(source, tmp_path / "b.safetensors")
    np.testing.assert_array_equal(cordwood.load(tmp_path / "b.safetensors")["w"], array)


def test_elements_that_are_not_as_they_are_wanted(tmp_path: Path) -> None:
    """Elements of another byte order, and elements whose padding holds memory of the process."""
    swapped = np.arange(100_000, dtype=">f8").reshape(250, 400)
    np.save(tmp_path / "a.npy", swapped)
    cordwood.convert(tmp_path / "a.npy", tmp_path / "b.safetensors")
    stored = safetensors.numpy.load_file(tmp_path / "b.safetensors")
    np.testing.assert_array_equal(next(iter(stored.values())), swapped)

    clean = np.full(40_000, 1, np.longdouble)
    if clean.itemsize != 16:
        return
    dirty = clean.copy()
    dirty.view(np.uint8).reshape(-1, 16)[:, 10:] = 7
    for name, array in (("c", clean), ("d", dirty)):
        np.save(tmp_path / f"{name}.npy", array)
        cordwood.convert(tmp_path / f"{name}.npy", tmp_path / f"{name}.safetensors")
    result = [(tmp_path / f"{name}.safetensors").read_bytes() for name in ("c", "d")]
    assert result[0] == result[1]


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_damage_of_what_has_one_checksum(tmp_path: Path, at: float) -> None:
    np.savez(tmp_path / "a.npz", w=np.arange(1 << 20))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[int(at * len(data))] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(CorruptionError, match=r"a\.npz"):
        cordwood.convert(tmp_path / "a.npz", tmp_path / "b.safetensors")


@pytest.mark.parametrize("layout", ["packs", "zarr"])
def test_damage_is_found_wherever_it_is(tmp_path: Path, layout: Any) -> None:
    """Also in what lies in a block of digests beside what is read."""
    source, path = tmp_path / "a", tmp_path / "b"
    tree = {name: np.arange(n) for name, n in [("w", 900_000), ("v", 60_000), ("u", 5)]}
    cordwood.save(source, tree, format=layout)
    name = next(file for file in source.rglob("*") if file.stat().st_size > 7_000_000)
    data = name.read_bytes()
    where = re.escape(str(name.relative_to(tmp_path)))
    for at in [-1, len(data) // 2, *range(len(data) - 9_000, 0, -1_500_001)]:
        damaged = bytearray(data)
        damaged[at] ^= 4
        name.write_bytes(damaged)
        with pytest.raises(CorruptionError, match=where):
            cordwood.convert(source, path)
        assert not path.exists()
    name.write_bytes(data)
    cordwood.convert(source, path)
    assert cordwood.diff(path, tree).equal


CHILD = """
import json, sys
import cordwood

def status(field):
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024

source, warm, destination, options = sys.argv[1:]
options = json.loads(options)
cordwood.convert(warm, destination, **options)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = status("VmRSS")
cordwood.convert(source, destination, overwrite=True, **options)
print(json.dumps(status("VmHWM") - before))
"""


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (".safetensors", ".safetensors"),
        ("packs", "zarr"),
        ("zarr", "packs"),
        ("zarr-zstd", ".msgpack"),
        (".msgpack", ".msgpack.zst"),
        ("packs", "zarr-zstd"),
        (".msgpack.zst", ".safetensors"),
        (".msgpack.gz", "packs"),
    ],
)
def test_memory_does_not_grow_with_the_tree(tmp_path: Path, kind: str, other: str) -> None:
    source, warm = place(tmp_path, kind, "a"), place(tmp_path, kind, "warm")
    tree = {"w": np.ones((300, 1 << 18), np.float32), "v": {str(i): np.ones(999) for i in range(9)}}
    cordwood.save(source, tree, **options(kind))
    cordwood.save(warm, {"w": np.ones(1 << 20), "v": np.ones(9)}, **options(kind))
    path = place(tmp_path, other, "b")
    assert peak_of_a_conversion(source, warm, path, other) < 256 << 20
    assert cordwood.diff(source, path).equal


def peak_of_a_conversion(source: Path, warm: Path, path: Path, other: str) -> int:
    """By how much the resident set of a child rises, once it has converted something small."""
    messages = run_python(CHILD, str(source), str(warm), str(path), json.dumps(options(other)))
    peak: int = json.loads(messages)
    return peak


@pytest.mark.parametrize("kind", [".msgpack.zst", ".msgpack.gz"])
def test_memory_does_not_grow_with_what_hardly_compresses(tmp_path: Path, kind: str) -> None:
    """Neither with the compressed file: its pages count too, where it is mapped."""
    source, warm, path = place(tmp_path, kind, "a"), place(tmp_path, kind, "warm"), tmp_path / "b"
    noise = np.frombuffer(np.random.default_rng(0).bytes(16 << 20), np.uint8)
    tree = {"w": np.tile(noise, 19)}  # again only after more than any window
    cordwood.save(warm, {"w": np.ones(1 << 20)})
    if kind == ".msgpack.zst":
        cordwood.save(source, tree)
    else:
        with gzip.open(source, "wb", compresslevel=0) as file:
            file.write(cordwood.to_bytes(tree))
    assert source.stat().st_size > 300 << 20
    assert peak_of_a_conversion(source, warm, path, "packs") < 256 << 20
    assert cordwood.diff(path, tree).equal


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("other", EXACT)
def test_orbax_checkpoints_convert_to_every_format(tmp_path: Path, layout: str, other: str) -> None:
    path = place(tmp_path, other, "b")
    cordwood.convert(GOLDEN / layout, path, **options(other))
    difference = cordwood.diff(GOLDEN / layout, path, strict=True)
    assert difference.equal, str(difference)
    assert cordwood.diff(path, cordwood.load(GOLDEN / layout)).equal


def test_a_part_of_an_orbax_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "params.msgpack"
    cordwood.convert(GOLDEN / "v1", path, select="params", rename={"params": ""}, cast="f32")
    with cordwood.open(path) as checkpoint:
        result = {name: leaf.dtype for name, leaf in checkpoint.items()}
    assert set(result.values()) == {"float32"}
    assert len(result) == 3


@pytest.mark.parametrize("name", ["a.safetensors", "packs", "zarr"])
def test_never_into_itself_by_whatever_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options: Any = {"format": name} if "." not in name else {}
    cordwood.save(tmp_path / name, {"a": 1, "b": 2}, **options)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / name).symlink_to(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    others: list[str | Path] = [
        f"./{name}",
        f"../{tmp_path.name}/{name}",
        tmp_path / name,
        Path("link") / name,
    ]
    for source, path in [*[(name, other) for other in others], (others[2], name)]:
        with pytest.raises(ValueError, match="would be converted into itself"):
            cordwood.convert(source, path, select="a", **options)
    assert cordwood.load(name) == {"a": 1, "b": 2}
