"""Copies of arrays on accelerators: never more than the budget, and the values of the call."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood import CheckpointManager
from cordwood.devices import jax_arrays
from cordwood.io import staging
from cordwood.io import staging_memory as staging_memory_module
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.staging import Staging
from cordwood.io.staging_memory import StagingOptions, default_budget_bytes, staging_memory
from cordwood.sharding.boxes import whole_box
from cordwood.storage import syscalls
from cordwood.testing import assert_trees_equal
from tests.alarms import alarms, interrupted
from tests.shardings import mesh_of
from tests.threads import in_threads, until

pytestmark = pytest.mark.usefixtures("fake_accelerator")

LEAF = 64 << 10  # bytes of each leaf of `tree_of`
UNIT = 1 << 20  # bytes that the writer takes at a time, with `small_units`


def tree_of(leaves: int, start: float = 0, leaf_bytes: int = LEAF) -> dict[str, jax.Array]:
    elements = jnp.arange(leaf_bytes // 4, dtype=jnp.float32)
    return {f"w{i:03}": elements + start + i for i in range(leaves)}


def values(tree: Any) -> Any:
    """Return a copy on the host that nothing can change."""
    return jax.tree.map(lambda leaf: np.array(leaf.copy()), tree)


def donate(tree: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Overwrite the arrays: at once, as a training step does."""
    step = jax.jit(lambda x: jax.tree.map(lambda a: -a - 1, x), donate_argnums=0)
    return jax.block_until_ready(step(step(tree)))


class Copies:
    """The copies that exist, as a count independent of the one of cordwood."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.peak_bytes = 0
        self._alive: list[weakref.ref[Any]] = []
        real = jax_arrays.copy_to_host

        def copy_to_host(shards: list[Any], hosts: list[Any]) -> list[Any]:
            copies = real(shards, hosts)
            self._alive += map(weakref.ref, copies)
            self.made += len(copies)
            self.peak_bytes = max(self.peak_bytes, self.bytes())
            return copies

        monkeypatch.setattr(staging, "copy_to_host", copy_to_host)

    def bytes(self) -> int:
        arrays = [array for ref in self._alive if (array := ref()) is not None]
        return sum([array.size * array.dtype.itemsize for array in arrays])


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No copy is left after a test, and no call has the turn."""
    gc.collect()
    yield
    gc.collect()
    assert staging_memory.used_bytes == 0
    assert not staging_memory.turn.locked()


class Disk(syscalls.SystemCalls):
    """A disk that stops at each write until bytes are allowed."""

    def __init__(self) -> None:
        self.allowed_bytes = 0
        self.fails: OSError | None = None
        self._changed = threading.Condition()

    def allow(self, count: int) -> None:
        with self._changed:
            self.allowed_bytes += count
            self._changed.notify_all()

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        with self._changed:
            assert self._changed.wait_for(lambda: self.allowed_bytes > 0, 60)
            if self.fails is not None:
                raise self.fails
            self.allowed_bytes -= len(data)
        return super().pwrite(fd, data, offset)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    with syscalls.override(disk):
        yield disk
        disk.allow(1 << 40)


class Call:
    """A call in a thread, which may wait."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._results: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._results.append(function()))
        self._thread.start()

    @property
    def returned(self) -> bool:
        return bool(self._results)

    def result(self) -> Any:
        self._thread.join(60)
        return self._results[0]


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the writer have two buffers of a MiB, so that it takes few leaves before it writes."""
    monkeypatch.setattr("cordwood.storage.write_files._UNIT_BYTES", UNIT)
    monkeypatch.setattr("cordwood.storage.write_files._THREADS", 2)


DIRECTORIES = ({"format": "packs"}, {"format": "zarr"})


@pytest.mark.parametrize("budget", [LEAF, 3 * LEAF + 1, 100 * LEAF])
@pytest.mark.parametrize("name", ["x.safetensors", "x.msgpack", "x.msgpack.zst", "packs", "zarr"])
def test_copies_never_exceed_the_budget(
    tmp_path: Path, copies: Copies, name: str, budget: int
) -> None:
    options: Any = {"format": name} if "." not in name else {}
    for number in range(3):
        tree = tree_of(20, start=number)
        expected = values(tree)
        staging_memory.peak_bytes = 0
        pending = cordwood.save_async(tmp_path / name, tree, staging_bytes=budget, **options)
        donate(tree)
        pending.wait()
        assert copies.peak_bytes == staging_memory.peak_bytes
        assert LEAF <= copies.peak_bytes <= min(budget, 20 * LEAF)
        stored = cordwood.load(tmp_path / name, to="numpy")
        assert_trees_equal(stored, expected)


@pytest.mark.parametrize("name", ["x.safetensors", "x.msgpack", "packs", "zarr"])
def test_a_save_that_waits_needs_few_copies(
    tmp_path: Path, copies: Copies, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(staging, "_BYTES_OF_SAVE", 2 * LEAF)
    tree = tree_of(20)
    cordwood.save(tmp_path / name, tree, format=name if "." not in name else None)
    assert copies.peak_bytes <= 2 * LEAF
    assert_trees_equal(cordwood.load(tmp_path / name, to="numpy"), values(tree))


def test_a_shard_that_is_larger_than_the_budget(tmp_path: Path, copies: Copies) -> None:
    tree = {"a": jnp.ones(LEAF), "b": jnp.full(3 * LEAF, 2.0), "c": jnp.full(LEAF, 3.0)}
    expected = values(tree)
    pending = cordwood.save_async(tmp_path / "x", tree, staging_bytes=0)
    donate(tree)
    pending.wait()
    assert copies.peak_bytes == 12 * LEAF
    assert_trees_equal(cordwood.load(tmp_path / "x", to="numpy"), expected)


def test_copies_are_made_once_where_they_fit(tmp_path: Path, copies: Copies) -> None:
    cordwood.save_async(tmp_path / "x", tree_of(40)).wait()
    assert copies.made == 40
    assert copies.peak_bytes == 40 * LEAF
    assert default_budget_bytes() > 1 << 30


@pytest.mark.usefixtures("small_units")
def test_the_call_waits_until_the_rest_fits(tmp_path: Path, disk: Disk) -> None:
    tree = tree_of(20, leaf_bytes=UNIT)
    expected = values(tree)
    path = tmp_path / "x.safetensors"
    call = Call(lambda: cordwood.save_async(path, tree, staging_bytes=8 * UNIT))
    disk.allow(4 * UNIT)
    until(lambda: disk.allowed_bytes <= 0)
    assert not call.returned
    disk.allow(10 * UNIT)
    pending = call.result()
    assert not pending.done
    donate(tree)
    disk.allow(1 << 30)
    pending.wait()
    assert_trees_equal(cordwood.load(path, to="numpy"), expected)


@pytest.mark.usefixtures("small_units")
def test_copies_on_the_device_instead(tmp_path: Path, disk: Disk, copies: Copies) -> None:
    tree = tree_of(20, leaf_bytes=UNIT)
    expected = values(tree)
    path = tmp_path / "x.safetensors"
    pending = cordwood.save_async(path, tree, staging_bytes=8 * UNIT, device_copies=True)
    donate(tree)
    assert staging_memory.turn.locked()
    second = Call(lambda: cordwood.save_async(tmp_path / "y.safetensors", tree_of(1)))
    disk.allow(2 * UNIT)
    until(lambda: disk.allowed_bytes <= 0)
    assert not second.returned  # it would take the room that the first save needs
    disk.allow(1 << 30)
    pending.wait()
    second.result().wait()
    assert copies.peak_bytes <= 8 * UNIT
    assert_trees_equal(cordwood.load(path, to="numpy"), expected)


@pytest.mark.usefixtures("small_units")
def test_without_room_on_the_device_the_call_waits(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def copy_on_device(shards: Any) -> list[Any]:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(staging, "copy_on_device", copy_on_device)
    tree = tree_of(20, leaf_bytes=UNIT)
    expected = values(tree)
    path = tmp_path / "x.safetensors"
    options: Any = {"staging_bytes": 8 * UNIT, "device_copies": True}
    call = Call(lambda: cordwood.save_async(path, tree, **options))
    until(lambda: "could not be copied on their devices: RESOURCE_EXHAUSTED" in caplog.text)
    assert not call.returned
    disk.allow(1 << 30)
    pending = call.result()
    donate(tree)
    pending.wait()
    assert_trees_equal(cordwood.load(path, to="numpy"), expected)


@pytest.mark.parametrize("device_copies", [False, True])
@pytest.mark.usefixtures("small_units")
def test_a_long_wait_is_logged(
    tmp_path: Path,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    device_copies: bool,
) -> None:
    monkeypatch.setattr("cordwood.io.progress.REPORT_SECONDS", 0.01)
    options: Any = {"staging_bytes": UNIT, "device_copies": device_copies}
    with staging_memory.turn:
        tree = tree_of(20, leaf_bytes=UNIT)
        call = Call(lambda: cordwood.save_async(tmp_path / "x", tree, **options))
        until(lambda: "waiting for room for the copies of arrays on accelerators" in caplog.text)
        assert not call.returned
    disk.allow(1 << 30)
    call.result().wait()


@pytest.mark.parametrize("device_copies", [False, True])
@pytest.mark.usefixtures("small_units")
def test_an_interrupt_while_another_call_waits(
    tmp_path: Path, disk: Disk, device_copies: bool
) -> None:
    tree = tree_of(20, leaf_bytes=UNIT)
    path = tmp_path / "x.safetensors"
    options: Any = {"staging_bytes": UNIT, "device_copies": device_copies}
    with staging_memory.turn, alarms():
        assert interrupted(0.3, lambda: cordwood.save_async(path, tree, **options))
    disk.allow(1 << 30)
    until(path.exists)


@pytest.mark.parametrize("device_copies", [False, True])
def test_a_call_that_waits_ends_with_its_save(tmp_path: Path, device_copies: bool) -> None:
    options: Any = {"staging_bytes": LEAF, "device_copies": device_copies}
    with staging_memory.turn:
        cordwood.save_async(tmp_path / "x", tree_of(3), **options).wait()


@pytest.mark.usefixtures("small_units")
def test_saves_share_the_budget(tmp_path: Path, disk: Disk) -> None:
    first = tree_of(7, leaf_bytes=UNIT)
    second = tree_of(7, start=50, leaf_bytes=UNIT)
    expected = values(first), values(second)
    paths = tmp_path / "a", tmp_path / "b"
    save = partial(cordwood.save_async, staging_bytes=8 * UNIT)
    pending = save(paths[0], first)
    donate(first)
    call = Call(lambda: save(paths[1], second))
    until(staging_memory.turn.locked)
    assert not call.returned
    disk.allow(1 << 30)
    pending.wait()
    other = call.result()
    donate(second)
    other.wait()
    for path, tree in zip(paths, expected, strict=True):
        assert_trees_equal(cordwood.load(path, to="numpy"), tree)


@pytest.mark.parametrize("budget", [2 * LEAF, 100 * LEAF])
@pytest.mark.parametrize("device_copies", [False, True])
def test_a_save_that_fails_gives_its_room_back(
    tmp_path: Path, disk: Disk, budget: int, device_copies: bool
) -> None:
    disk.fails = OSError(28, "No space left on device")
    disk.allow(1)
    options: Any = {"staging_bytes": budget, "device_copies": device_copies}
    pending = cordwood.save_async(tmp_path / "x", tree_of(20), **options)
    with pytest.raises(OSError, match="No space left") as caught:
        pending.wait()
    assert staging_memory.used_bytes == 0  # although the error has a traceback
    disk.fails = None
    disk.allow(1 << 30)
    cordwood.save_async(tmp_path / "x", tree_of(20), **options).wait()
    del caught


@pytest.mark.usefixtures("small_units")
def test_an_interrupt_of_a_call_that_waits(tmp_path: Path, disk: Disk) -> None:
    """The save goes on, with the arrays that are there."""
    tree = tree_of(20, leaf_bytes=UNIT)
    path = tmp_path / "x.safetensors"
    with alarms():
        assert interrupted(0.3, lambda: cordwood.save_async(path, tree, staging_bytes=UNIT))
    disk.allow(1 << 30)
    cordwood.save(path.with_name("y.safetensors"), {"w": 1})
    until(path.exists)
    assert_trees_equal(cordwood.load(path, to="numpy"), values(tree))


@pytest.mark.parametrize("budget", [LEAF, 4 * LEAF, None])
def test_steps_that_share_unchanged_files(
    tmp_path: Path, copies: Copies, budget: int | None
) -> None:
    """The leaves are compared with the step before, and then written: read twice."""
    tree = {"frozen": tree_of(10), "trained": tree_of(4)}
    with CheckpointManager(tmp_path, staging_bytes=budget) as manager:
        expected = []
        for step in range(4):
            tree["trained"] = tree_of(4, start=step)
            expected.append(values(tree))
            manager.save(step, tree)
            donate(tree["trained"])
    assert copies.peak_bytes <= (budget or 14 * LEAF)
    for step, each in enumerate(expected):
        assert_trees_equal(cordwood.load(tmp_path / str(step), to="numpy"), each)


@pytest.mark.parametrize("budget", [2 * LEAF, None])
def test_steps_in_an_object_store(copies: Copies, budget: int | None) -> None:
    """The leaves of an object are hashed, and then sent: read twice or three times."""
    root = f"memory://staging-{budget}/run"
    tree = {"frozen": tree_of(10), "trained": tree_of(4)}
    with CheckpointManager(root, staging_bytes=budget) as manager:
        for step in range(3):
            tree["trained"] = tree_of(4, start=step)
            last = values(tree)
            manager.save(step, tree)
            donate(tree["trained"])
    assert copies.peak_bytes <= (budget or 14 * LEAF)
    assert_trees_equal(cordwood.load(f"{root}/2", to="numpy"), last)


@pytest.mark.usefixtures("small_units")
def test_the_report_says_how_long_the_call_waited(tmp_path: Path, disk: Disk) -> None:
    reports: list[Any] = []
    with CheckpointManager(tmp_path, staging_bytes=2 * UNIT, on_save=reports.append) as manager:
        call = Call(lambda: manager.save(0, tree_of(20, leaf_bytes=UNIT)))
        until(staging_memory.turn.locked)
        began = time.monotonic()
        time.sleep(0.1)
        waited = time.monotonic() - began
        disk.allow(1 << 30)
        call.result()
    (report,) = reports
    assert waited <= report.blocking_seconds <= report.total_seconds


def test_several_saves_in_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take room from each other, and all of them end."""
    monkeypatch.setattr(staging, "_BYTES_OF_SAVE", 2 * LEAF)
    trees = [tree_of(12, start=100 * i) for i in range(6)]
    expected = [values(tree) for tree in trees]

    def work(number: int) -> None:
        path, tree = tmp_path / str(number), trees[number]
        if number % 3 == 0:
            cordwood.save(path, tree)
        else:
            options: Any = {"staging_bytes": 3 * LEAF, "device_copies": number % 3 == 1}
            pending = cordwood.save_async(path, tree, **options)
            donate(tree)
            pending.wait()

    in_threads(work, len(trees))
    for number, tree in enumerate(expected):
        assert_trees_equal(cordwood.load(tmp_path / str(number), to="numpy"), tree)


SPECS = [P("x", "y"), P("y", "x"), P(None, "y"), P(("x", "y")), P()]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", ["x.safetensors", "packs", "zarr"])
@pytest.mark.parametrize("budget", [1, None])
def test_sharded_arrays(tmp_path: Path, spec: P, name: str, budget: int | None) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    array = jnp.arange(64 * 48, dtype=jnp.bfloat16).reshape(64, 48)
    tree = {"w": jax.device_put(array, NamedSharding(mesh, spec)), "key": jax.random.key(1)}
    options: Any = {"format": name} if "." not in name else {}
    cordwood.save_async(tmp_path / name, tree, staging_bytes=budget, **options).wait()
    cordwood.save(tmp_path / f"2{name}", tree, **options)
    for each in (name, f"2{name}"):
        loaded = cordwood.load(tmp_path / each, like=tree)
        np.testing.assert_array_equal(np.asarray(loaded["w"]), np.asarray(array))
        assert (jax.random.key_data(loaded["key"]) == jax.random.key_data(tree["key"])).all()


DTYPES = ["float64", "bfloat16", "float8_e4m3fn", "int4", "uint4", "bool", "complex64", "int16"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(tmp_path: Path, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        tree = {"w": (jnp.arange(91) % 5).astype(dtype), "0-d": jnp.ones((), dtype)}
        tree["empty"] = jnp.zeros((3, 0, 2), dtype)
        cordwood.save_async(tmp_path / "x", tree, staging_bytes=1).wait()
        loaded = cordwood.load(tmp_path / "x", like=tree)
    for name, array in tree.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(np.asarray(loaded[name]), np.asarray(array))


def test_parts_of_a_sharded_array() -> None:
    """Boxes within one shard, over several, and of none."""
    mesh = mesh_of(8)
    array = jnp.arange(64 * 6).reshape(64, 6)
    sharded = jax.device_put(array, NamedSharding(mesh, P("x")))
    held = Staging().hold(jax_arrays.distinct_shards(sharded, {}))
    expected = np.asarray(array)
    for start, stop in (((8, 0), (16, 6)), ((9, 1), (11, 4)), ((5, 2), (27, 5)), ((3, 3), (3, 3))):
        box = whole_box(array.shape)._replace(start=start, stop=stop)
        part = held.part(box)
        elements = expected[start[0] : stop[0], start[1] : stop[1]]
        np.testing.assert_array_equal(np.asarray(part), elements)
        assert part.nbytes == elements.nbytes


def test_copies_are_started_in_batches_ahead(copies: Copies, monkeypatch: Any) -> None:
    monkeypatch.setattr(staging, "_BATCH_BYTES", 4 * LEAF)
    leaves = Leaves([*tree_of(12).values()])
    made = []
    for leaf in range(12):
        np.asarray(leaves.part(leaf))
        made.append(copies.made)
    # One when it is needed; then four at a time, when the last of the batch before is read.
    assert made == [5, 5, 5, 5, 9, 9, 9, 9, 12, 12, 12, 12]
    del leaves


def test_without_host_memory_of_the_device(tmp_path: Path, monkeypatch: Any) -> None:
    """Then arrays of numpy are the copies."""
    monkeypatch.setattr("cordwood.devices.jax_arrays.pinned_host", lambda device: None)
    monkeypatch.setattr("cordwood.devices.jax_arrays.is_cpu", lambda device: False)
    tree = tree_of(3)
    expected = values(tree)
    pending = cordwood.save_async(tmp_path / "x", tree)
    donate(tree)
    pending.wait()
    assert_trees_equal(cordwood.load(tmp_path / "x", to="numpy"), expected)


@pytest.mark.parametrize(
    ("processes", "devices", "variables", "share"),
    [
        (1, 1, {}, 4),
        (1, 8, {"SLURM_NTASKS_PER_NODE": "4"}, 4),  # a job of one process
        (16, 4, {}, 4),
        (16, 1, {}, 32),
        (16, 1, {"SLURM_NTASKS_PER_NODE": "4"}, 16),
        (16, 2, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 8),
        (16, 1, {"SLURM_NTASKS_PER_NODE": "4(x2)", "LOCAL_WORLD_SIZE": "3"}, 12),
    ],
)
def test_the_default_budget(
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    devices: int,
    variables: dict[str, str],
    share: int,
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    monkeypatch.setattr(jax, "local_device_count", lambda: devices)
    monkeypatch.setattr("cordwood.io.staging_memory.machine_memory_bytes", lambda: 64 << 30)
    for name in staging_memory_module._COUNT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_budget_bytes() == (64 << 30) // share


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, r"staging_bytes=1\.5: expected a number of bytes, an int, or None"),
        (True, "staging_bytes=True: expected a number of bytes, an int, or None"),
        (-1, "staging_bytes=-1: expected at least 0"),
    ],
)
def test_wrong_options(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        cordwood.save_async(tmp_path / "x", {}, staging_bytes=value)
    with pytest.raises((TypeError, ValueError), match=message):
        CheckpointManager(tmp_path, staging_bytes=value)
    assert StagingOptions() == (None, False)
