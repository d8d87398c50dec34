"""Leaves of single files onto any sharding: equal, read once, and no more than is needed."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood import msgpack
from cordwood.devices import private_jax
from cordwood.index import Box
from cordwood.io.open_files import LocalFile
from tests.shardings import SHARDINGS, mesh_of, sharding

MIB = 1 << 20


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "float32": random.random((24, 48, 16), np.float32),
        "bfloat16": random.random((24, 24, 8), np.float32).astype(jax.numpy.bfloat16),
        "int4": random.integers(-8, 8, (24, 24, 8)).astype(jax.numpy.int4),
        "uint8": random.integers(0, 256, (24, 240, 8), np.uint8),
        "large": random.random((24, 480, 160), np.float32),  # 7 MiB
    }


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("stored")
    paths = [folder / name for name in ("a.safetensors", "a.msgpack", "chunked.msgpack")]
    for path in paths:
        with pytest.MonkeyPatch.context() as patch:
            if "chunked" in path.name:
                patch.setattr(msgpack, "MAX_CHUNK_SIZE", 100_001)
            cordwood.save(path, arrays())
    return paths


def assert_same(result: Any, expected: np.ndarray, requested: Any) -> None:
    assert isinstance(result, jax.Array)
    assert result.sharding == requested
    assert result.committed
    assert result.dtype == expected.dtype
    for shard in result.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])


@pytest.mark.parametrize("requested", SHARDINGS, ids=str)
def test_any_sharding_of_any_format(stored: list[Path], requested: Any) -> None:
    expected = arrays()
    for path in stored:
        tree = cordwood.load(path, shardings=requested)
        assert list(tree) == list(expected)
        for name, array in tree.items():
            assert_same(array, expected[name], requested)


@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
@pytest.mark.parametrize("alias", [False, True], ids=["owned", "aliased"])
def test_like_gives_the_shardings(stored: list[Path], mmap: bool, alias: bool) -> None:
    expected = arrays()
    requested = sharding(P("y", "x"), 4, 2)
    like: dict[str, Any] = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=requested)
        for name, array in expected.items()
    }
    like["large"] = jax.device_put(expected["large"], requested)
    like["uint8"] = expected["uint8"]
    for path in stored:
        tree = cordwood.load(path, like=like, mmap=mmap, alias=alias)
        assert type(tree["uint8"]) is np.ndarray
        np.testing.assert_array_equal(tree.pop("uint8"), expected["uint8"])
        for name, array in tree.items():
            assert_same(array, expected[name], requested)


def test_shards_alias_what_was_read_and_owned_ones_do_not(stored: list[Path]) -> None:
    expected = sharding(P(None, "x"), 2, 2)  # two distinct shards on four devices
    tree = cordwood.load(stored[0], shardings=expected)
    pointers = {
        shard.device: shard.data.unsafe_buffer_pointer()
        for shard in tree["large"].addressable_shards
    }
    assert len(set(pointers.values())) == 2  # replicas share their memory
    assert all(pointer % 64 == 0 for pointer in pointers.values())
    owned = cordwood.load(stored[0], shardings=expected, alias=False)["large"]
    assert len({s.data.unsafe_buffer_pointer() for s in owned.addressable_shards}) == 4
    doubled = jax.jit(lambda x: x * 2, donate_argnums=0)(tree["large"])
    np.testing.assert_array_equal(doubled, arrays()["large"] * 2)


def test_explicit_axes_and_kinds_of_memory(stored: list[Path]) -> None:
    explicit = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=explicit)
    for memory in jax.devices()[0].addressable_memories():
        requested = NamedSharding(mesh, P("x", "y"), memory_kind=memory.kind)
        expected = jax.device_put(arrays()["float32"], requested)
        loaded = cordwood.load(stored[0], shardings={"float32": requested})["float32"]
        assert jax.typeof(loaded) == jax.typeof(expected)
        assert_same(loaded, arrays()["float32"], requested)


def test_a_format_of_jax_gives_the_layout(stored: list[Path]) -> None:
    from jax.experimental.layout import Format, Layout

    expected = Format(Layout((2, 0, 1)), sharding(P("x"), 4))
    array = cordwood.load(stored[0], shardings={"large": expected})["large"]
    assert array.format.layout.major_to_minor == (2, 0, 1)
    assert_same(array, arrays()["large"], expected.sharding)


def test_weak_types_keys_and_casts(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    keys = jax.random.split(jax.random.key(1, impl="rbg"), 8)
    tree: dict[str, Any] = {
        "keys": keys,
        "one": jax.random.key(3),
        "weak": jax.numpy.asarray(2.0),
        "ints": np.arange(16, dtype=np.int32),
        "number": 7,
    }
    cordwood.save(path, tree)
    cut, everywhere = sharding(P("x"), 4, 2), sharding(P(), 4, 2)
    like = {
        "keys": jax.device_put(keys, cut),
        "one": jax.device_put(tree["one"], everywhere),
        "weak": jax.device_put(tree["weak"], everywhere),
        "ints": jax.ShapeDtypeStruct((16,), np.float32, sharding=cut),
        "number": jax.ShapeDtypeStruct((), np.int32, sharding=everywhere),
    }
    for alias in (True, False):
        loaded = cordwood.load(path, like=like, cast=True, alias=alias)
        assert loaded["keys"].sharding == cut
        assert loaded["one"].sharding == everywhere
        for name in ("keys", "one"):
            assert jax.random.key_impl(loaded[name]) == jax.random.key_impl(tree[name])
            np.testing.assert_array_equal(
                jax.random.key_data(loaded[name]), jax.random.key_data(tree[name])
            )
        assert loaded["weak"].weak_type
        assert loaded["weak"].sharding == everywhere
        assert_same(loaded["ints"], np.arange(16, dtype=np.float32), cut)
        assert_same(loaded["number"], np.array(7, np.int32), everywhere)


class Count:
    """The number of bytes that LocalFile reads, and of the calls that read them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes = self.calls = 0
        original = LocalFile.read_into
        lock = threading.Lock()

        def read_into(file: LocalFile, offset: int, views: Sequence[memoryview]) -> None:
            with lock:
                self.bytes += sum(map(len, views))
                self.calls += 1
            original(file, offset, views)

        patch.setattr(LocalFile, "read_into", read_into)


@pytest.fixture
def big(tmp_path: Path) -> Path:
    tree = {
        "a": np.zeros((256, 1024, 32), np.float32),  # 32 MiB
        "small": np.zeros(1000, np.float32),
        "b": np.zeros((64, 32 << 10), np.float32),  # 8 MiB, rows of 128 KiB
    }
    cordwood.save(tmp_path / "x.safetensors", tree)
    return tmp_path / "x.safetensors"


TOTAL_BYTES = 40 * MIB + 4000


@pytest.mark.parametrize(
    "requested",
    [
        sharding(P(), 8),
        sharding(P("x"), 8),
        sharding(P(("x", "y")), 2, 4),
        sharding(P("x", "y"), 2, 4),
        sharding(P(None, "x"), 8),
    ],
    ids=str,
)
def test_every_byte_is_read_once(
    big: Path, requested: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cordwood.open(big) as checkpoint:
        count = Count(monkeypatch)
        checkpoint.load(mesh=requested.mesh, shardings={"a": requested, "b": requested})
    assert TOTAL_BYTES <= count.bytes <= TOTAL_BYTES * 1.05


def test_a_part_of_the_leading_axis(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process of eight reads the rows of its devices, rounded out to whole blocks."""
    with cordwood.open(big) as checkpoint:
        leaves = {leaf.key_path[0]: leaf for leaf in checkpoint.index.leaves}
        count = Count(monkeypatch)
        boxes = {
            0: [Box((32, 0, 0), (48, 1024, 32)), Box((48, 0, 0), (64, 1024, 32))],
            1: [Box((8, 0), (16, 32 << 10))],
        }
        first, second, rows = checkpoint._reader.read([leaves["a"], leaves["b"]], boxes)
    assert first.shape == second.shape == (16, 1024, 32)
    assert rows.shape == (8, 32 << 10)
    needed = 4 * MIB + MIB
    assert count.bytes <= needed + 2 * 2 * MIB  # each range begins and ends within a block
    with cordwood.open(big) as checkpoint:
        count.bytes = 0
        checkpoint["a"][32:64]
        assert count.bytes <= 5 * MIB
        count.bytes = 0
        checkpoint["b"][:, 0]
        assert count.bytes <= 9 * MIB  # rows of 128 KiB: one range, and not 64
        count.bytes = 0
        checkpoint["a"][::100, 5]  # indices of 128 KiB, 12.5 MiB apart
        assert count.bytes <= 3 * 2 * MIB


def test_many_small_replicated_leaves(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tree = {str(i): np.full((16,), i, np.float32) for i in range(2000)}
    cordwood.save(path, tree)
    mesh = mesh_of(4, 2)
    result: Any = cordwood.load(path, mesh=mesh, rules=[("7$", P("x")), ("", P())])
    for name, array in result.items():
        assert array.sharding.spec == (P("x") if name.endswith("7") else P())
        np.testing.assert_array_equal(np.asarray(array.addressable_shards[0].data)[0], int(name))


def test_without_the_private_names_of_jax(
    stored: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sharding(P("x", "y"), 4, 2)
    like: Any = {"float32": jax.ShapeDtypeStruct((24, 48, 16), np.float32, sharding=expected)}
    public = Mock(wraps=jax.make_array_from_single_device_arrays)
    monkeypatch.setattr(jax, "make_array_from_single_device_arrays", public)
    monkeypatch.setitem(sys.modules, "jax._src.core", types.ModuleType("jax._src.core"))
    private_jax._quick_put.cache_clear()
    loaded = cordwood.load(stored[0], like=like, strict=False)["float32"]
    monkeypatch.undo()
    public.assert_called_once()
    assert_same(loaded, arrays()["float32"], expected)
    pointers = {shard.data.unsafe_buffer_pointer() % 64 for shard in loaded.addressable_shards}
    assert pointers == {0}
