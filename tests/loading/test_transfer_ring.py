"""Loads to accelerators read into memory that is used again, and send replicas once."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.devices import device_memory, private_jax, put_arrays
from cordwood.io.open_files import LocalFile
from cordwood.loading import transfer_ring
from cordwood.loading.load_target import default_targets
from cordwood.loading.restore_targets import restore_targets
from cordwood.testing import assert_trees_equal
from tests.devices.fake_accelerator import fake_accelerator as make_fake_accelerator
from tests.shardings import mesh_of

MIB = 1 << 20
real_device_put = jax.device_put  # which may use the memory of numpy arrays as it is


@pytest.fixture(autouse=True)
def accelerator() -> Iterator[str]:
    transfer_ring._copies.clear()
    with make_fake_accelerator() as kind:
        yield kind
    transfer_ring._copies.clear()


class Transfers:
    """Transfers that read their source as late as they may: when their array is waited for.

    The source must not change before.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._sources: dict[int, tuple[Any, np.ndarray, bytes]] = {}
        device_put, quick_put, wait = jax.device_put, private_jax._quick_put, jax.block_until_ready

        def put(x: Any, *rest: Any, **named: Any) -> Any:
            array = device_put(x, *rest, **named)
            if type(x) is np.ndarray:
                self._begin(array, [x])
            return array

        def quick() -> Any:
            shaped, real = quick_put()

            def begin(aval: Any, sharding: Any, sources: list[Any], *rest: Any) -> Any:
                array = real(aval, sharding, sources, *rest)
                self._begin(array, sources)
                return array

            return shaped, begin

        def block_until_ready(arrays: Any) -> Any:
            for array in jax.tree.leaves(arrays):
                self._end(id(array))
            return wait(arrays)

        monkeypatch.setattr(jax, "device_put", put)
        monkeypatch.setattr(private_jax, "_quick_put", quick)
        monkeypatch.setattr(jax, "block_until_ready", block_until_ready)

    def _begin(self, array: Any, sources: Sequence[np.ndarray]) -> None:
        self.count += 1
        for source in sources:
            self._sources[id(array)] = array, source, source.tobytes()

    def _end(self, key: int) -> None:
        _, source, expected = self._sources.pop(key, (None, np.zeros(0), b""))
        assert source.tobytes() == expected, "the memory of a transfer was used again too early"

    def end_all(self) -> None:
        """End the transfers that nobody has waited for."""
        for key in list(self._sources):
            self._end(key)


@pytest.fixture
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_ring, "_LEAST_SLOT_BYTES", MIB)
    monkeypatch.setattr(transfer_ring, "_LARGEST_SLOT_BYTES", MIB)


class Memory:
    """The memory that rings make, and what they take of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pinned: list[np.ndarray] = []
        self.taken: list[list[np.ndarray]] = []
        real = device_memory.pinned_bytes
        ring_allocate = transfer_ring.TransferRing.allocate

        def pinned_bytes(size_bytes: int, device: Any) -> np.ndarray | None:
            memory = real(size_bytes, device)
            assert memory is not None
            self.pinned.append(memory)
            return memory

        def allocate(ring: Any, sizes: Sequence[int], *, alignment: int) -> Any:
            buffers = ring_allocate(ring, sizes, alignment=alignment)
            self.taken.append([buffer.array for buffer in buffers])
            return buffers

        monkeypatch.setattr(transfer_ring, "pinned_bytes", pinned_bytes)
        monkeypatch.setattr(transfer_ring.TransferRing, "allocate", allocate)

    def is_pinned(self, array: np.ndarray) -> bool:
        return any(np.shares_memory(array, memory) for memory in self.pinned)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return Memory(monkeypatch)


def tree_of(leaves: int = 150) -> dict[str, Any]:
    """Return a tree of numpy arrays, of 40 to 400 kB each."""
    rng = np.random.default_rng(0)
    return {
        f"w{i:03}": rng.integers(0, 255, (10_000 * (i % 10 + 1),), np.uint8).view(np.float32)
        for i in range(leaves)
    }


@pytest.mark.usefixtures("small_slots")
@pytest.mark.parametrize("name", ["x.safetensors", "x.msgpack", "packs", "zarr"])
def test_the_memory_of_a_group_is_used_again(tmp_path: Path, memory: Memory, name: str) -> None:
    tree = tree_of()
    cordwood.save(tmp_path / name, tree, format=name if "." not in name else None)
    loaded = cordwood.load(tmp_path / name, to="jax")
    assert_trees_equal(jax.tree.map(np.asarray, loaded), tree)
    assert len(memory.taken) > 2 * transfer_ring.SLOTS
    assert len(memory.pinned) == transfer_ring.SLOTS
    assert all(memory.is_pinned(array) for arrays in memory.taken for array in arrays)
    assert sum(map(len, memory.pinned)) < 4 * MIB


@pytest.mark.usefixtures("small_slots")
@pytest.mark.parametrize("options", [{}, {"mmap": True}, {"cast": "float16"}], ids=str)
@pytest.mark.parametrize("name", ["x.safetensors", "x.msgpack.zst", "packs", "zarr"])
def test_no_memory_is_used_again_before_its_transfer_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: Any
) -> None:
    tree = {key: np.sin(leaf.view(np.uint32).astype(np.float32)) for key, leaf in tree_of().items()}
    cordwood.save(tmp_path / name, tree, format=name if "." not in name else None)
    cordwood.load(tmp_path / name, to="jax")  # the device was tried
    transfers = Transfers(monkeypatch)
    loaded = cordwood.load(tmp_path / name, to="jax", **options)
    transfers.end_all()
    assert transfers.count >= len(tree)
    dtype = options.get("cast", "float32")
    expected = {key: leaf.astype(dtype) for key, leaf in tree.items()}
    assert_trees_equal(jax.tree.map(np.asarray, loaded), expected)


@pytest.mark.usefixtures("small_slots")
def test_mapped_leaves_wait_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    cordwood.save(tmp_path / "x.safetensors", tree_of())
    monkeypatch.setattr(jax, "block_until_ready", lambda arrays: waits.append(len(arrays)))
    cordwood.load(tmp_path / "x.safetensors", to="jax", mmap=True)
    assert len(waits) > 4
    assert sum(waits) > 100


@pytest.mark.usefixtures("small_slots")
def test_a_larger_leaf_has_memory_of_its_own(tmp_path: Path, memory: Memory) -> None:
    tree = {**tree_of(6), "z": np.arange(2 * MIB, dtype=np.float32)}
    cordwood.save(tmp_path / "x", tree)
    loaded = cordwood.load(tmp_path / "x", to="jax")
    assert_trees_equal(jax.tree.map(np.asarray, loaded), tree)
    sizes = {array.nbytes: memory.is_pinned(array) for taken in memory.taken for array in taken}
    assert sizes.pop(8 * MIB) is False
    assert all(sizes.values())


def test_groups_wait_for_the_third_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    original = LocalFile.read_into

    def read_into(file: LocalFile, offset: int, views: Sequence[memoryview]) -> None:
        if events[-1:] != ["read"]:
            events.append("read")
        original(file, offset, views)

    def wait_for(values: Sequence[Any]) -> None:
        events.append(f"wait for {len(values)}")

    cordwood.save(tmp_path / "x.safetensors", {f"w{i}": np.ones(MIB) for i in range(5)})
    cordwood.load(tmp_path / "x.safetensors", to="jax", cast="float32")  # the device was tried
    with cordwood.open(tmp_path / "x.safetensors") as checkpoint:
        monkeypatch.setattr(LocalFile, "read_into", read_into)
        monkeypatch.setattr(jax, "block_until_ready", wait_for)
        with jax.enable_x64(True):
            targets = default_targets(checkpoint.index.leaves, "jax")
            values = restore_targets(checkpoint._reader, targets, group_bytes=MIB)
    assert events == ["read", "wait for 1", "read", "wait for 1", "read"]
    assert all(np.asarray(value).all() for value in values)


def test_memory_that_a_device_might_keep_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_ring, "_LEAST_SLOT_BYTES", MIB)
    monkeypatch.setattr(transfer_ring, "_LARGEST_SLOT_BYTES", MIB)
    monkeypatch.setattr(transfer_ring, "copies_host_memory", lambda memory, device: False)
    memory = Memory(monkeypatch)
    tree = tree_of()
    cordwood.save(tmp_path / "x", tree)
    loaded = cordwood.load(tmp_path / "x", to="jax")
    assert_trees_equal(jax.tree.map(np.asarray, loaded), tree)
    arrays = [array for taken in memory.taken for array in taken]
    assert not any(
        np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i] if a.size
    )


def test_whether_a_device_copies_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    device = jax.devices()[0]
    memory = device_memory.pinned_bytes(MIB, device)
    assert memory is not None
    assert device_memory.copies_host_memory(memory, device)  # as the fake accelerator does
    monkeypatch.setattr(jax, "device_put", real_device_put)
    assert not device_memory.copies_host_memory(memory, device)  # a CPU uses it as it is


@pytest.mark.usefixtures("small_slots")
@pytest.mark.parametrize("failing", ["pointer", "kind", "view"])
def test_slots_are_plain_memory_where_none_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Then the slots are plain memory."""
    if failing == "kind":
        monkeypatch.setattr(device_memory, "pinned_host", lambda device: None)
    elif failing == "view":
        real = np.asarray
        monkeypatch.setattr(
            np,
            "asarray",
            lambda a, *rest, **named: (
                real(a, *rest, **named).copy()
                if isinstance(a, jax.Array)
                else real(a, *rest, **named)
            ),
        )
    else:

        def fails(_: Any) -> int:
            raise NotImplementedError

        array_type = type(jnp.ones(1))
        monkeypatch.setattr(array_type, "unsafe_buffer_pointer", fails)
    assert device_memory.pinned_bytes(100, jax.devices()[0]) is None
    tree = tree_of()
    cordwood.save(tmp_path / "x", tree)
    loaded = cordwood.load(tmp_path / "x", to="jax")
    assert_trees_equal(jax.tree.map(np.asarray, loaded), tree)


def test_pinned_memory_lives_as_long_as_its_views(accelerator: str) -> None:
    memory: Any = device_memory.pinned_bytes(5000, jax.devices()[0])
    memory[:] = np.arange(5000) % 251
    array = memory.base.array
    assert array.sharding.memory_kind == accelerator
    np.testing.assert_array_equal(np.asarray(array), memory)
    alive = weakref.ref(array)
    part = memory[100:200]
    del memory, array
    assert alive() is not None
    np.testing.assert_array_equal(part, np.arange(100, 200))
    del part
    assert alive() is None


@pytest.mark.usefixtures("small_slots")
def test_all_kinds_of_targets_in_one_load(tmp_path: Path, accelerator: str) -> None:
    device = jax.devices()[2]
    mesh = mesh_of(4, 2)
    tree = {
        **tree_of(20),
        "kept": np.arange(50_000),
        "key": jax.random.key(5),
        "keys": jax.random.split(jax.random.key(6), 8),
        "weak": jnp.asarray(3.0),
        "int4": jnp.array([1, -2, 3], jnp.int4),
        "empty": np.zeros((0, 4), np.float32),
        "step": 7,
        "offloaded": np.arange(9000, dtype=np.float32),
        "replicated": np.arange(70_000, dtype=np.float32),
        "sharded": np.arange(64 * 1000, dtype=np.float32).reshape(64, 1000),
    }
    cordwood.save(tmp_path / "x", tree)
    host = SingleDeviceSharding(device, memory_kind=accelerator)
    placements = {
        "offloaded": host,
        "replicated": NamedSharding(mesh, P()),
        "sharded": NamedSharding(mesh, P("x", None)),
        "keys": NamedSharding(mesh, P("x")),
    }
    like = {
        name: leaf
        if name in ("kept", "step")
        else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placements.get(name))
        for name, leaf in tree.items()
    }
    loaded: Any = cordwood.load(tmp_path / "x", like=like, strict=False)
    assert type(loaded["kept"]) is np.ndarray
    assert loaded["offloaded"].sharding == host
    for name, sharding in placements.items():
        assert loaded[name].sharding == sharding
    for name, leaf in tree.items():
        if name.startswith("key"):
            loaded[name], leaf = jax.random.key_data(loaded[name]), jax.random.key_data(leaf)
        np.testing.assert_array_equal(np.asarray(loaded[name]), np.asarray(leaf))


@pytest.mark.usefixtures("small_slots")
def test_casts_and_transposed_leaves(tmp_path: Path) -> None:
    tree = {f"w{i}": np.arange(300 * 200, dtype=np.float32).reshape(300, 200) for i in range(12)}
    cordwood.save(tmp_path / "x", tree)
    loaded: Any = cordwood.load(tmp_path / "x", to="jax", cast="bf16", transpose="w[0-5]")
    for i in range(12):
        expected = tree[f"w{i}"].T if i < 6 else tree[f"w{i}"]
        np.testing.assert_array_equal(
            np.asarray(loaded[f"w{i}"]), expected.astype(jnp.bfloat16), strict=True
        )


@pytest.mark.parametrize("spec", [P(), P("x"), P(None, "y"), P("x", "y")], ids=str)
@pytest.mark.parametrize("key", [False, True])
@pytest.mark.parametrize("least_bytes", [0, 1 << 20])
def test_each_large_box_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: P, key: bool, least_bytes: int
) -> None:
    """The other devices get it from the first one. Small ones are sent to each, in one call."""
    mesh = mesh_of(4, 2)
    leaf: Any = jnp.arange(64 * 32, dtype=jnp.float32).reshape(64, 32)
    if key:
        leaf = jax.random.split(jax.random.key(1), (8, 4))
    cordwood.save(tmp_path / "x", {"w": leaf})
    sent: list[tuple[int, ...]] = []
    device_put, quick_put = jax.device_put, private_jax._quick_put

    def put(x: Any, *rest: Any, **named: Any) -> Any:
        sent.extend([x.shape] if type(x) is np.ndarray and x.size > 1 else [])
        return device_put(x, *rest, **named)

    def quick() -> Any:
        shaped, real = quick_put()

        def counted(aval: Any, sharding: Any, arrays: list[Any], *rest: Any) -> Any:
            sent.extend(array.shape for array in arrays)
            return real(aval, sharding, arrays, *rest)

        return shaped, counted

    cordwood.load(tmp_path / "x", to="jax")  # the device was tried
    monkeypatch.setattr(put_arrays, "_LEAST_PASSED_BYTES", least_bytes)
    monkeypatch.setattr(jax, "device_put", put)
    monkeypatch.setattr(private_jax, "_quick_put", quick)
    sharding = NamedSharding(mesh, spec)
    like = {"w": jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)}
    loaded: Any = cordwood.load(tmp_path / "x", like=like)["w"]
    parts = {P(): 1, P("x"): 4, P(None, "y"): 2, P("x", "y"): 8}[spec]
    assert len([shape for shape in sent if len(shape) > 1]) == (8 if least_bytes else parts)
    assert loaded.sharding.is_equivalent_to(sharding, leaf.ndim)
    if key:
        loaded, leaf = jax.random.key_data(loaded), jax.random.key_data(leaf)
    np.testing.assert_array_equal(np.asarray(loaded), np.asarray(leaf))


def test_the_device_of_a_load_is_one_of_this_process() -> None:
    """The first leaves may be on devices of other processes alone."""
    device = jax.devices()[3]
    remote, local = Mock(addressable_devices=set(), spec_set=["addressable_devices"]), device
    assert device_memory.local_device([remote]) is None
    sharding = SingleDeviceSharding(local)
    assert device_memory.local_device([remote, sharding]) == device
    assert device_memory.local_device([remote, None]) == jax.devices()[0]
    ring = transfer_ring.TransferRing(1000, None)
    ring.begin_group()
    (buffer,) = ring.allocate([100], alignment=64)
    assert len(buffer.array) == 100
