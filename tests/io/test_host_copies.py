"""Copies of arrays on accelerators: never more than the budget, and the values of the call."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood import CheckpointManager
from cordwood.devices import array_shards, copy_shards, device_memory
from cordwood.io import host_copies
from cordwood.io.host_copies import HostCopies
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.memory import staging_memory as staging_memory_module
from cordwood.io.memory.staging_memory import (
    StagingMemory,
    StagingOptions,
    default_budget_bytes,
    staging_memory,
)
from cordwood.processes.tree_fingerprints import digest_of_elements
from cordwood.saving.background_saves import save_in_background
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


def has_admitted_save() -> bool:
    admitted = staging_memory._admitted
    return admitted is not None and admitted() is not None


class Copies:
    """The copies that exist, as a count independent of the one of cordwood."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.peak_bytes = 0
        self._alive: list[weakref.ref[Any]] = []
        real = copy_shards.copy_to_host

        def copy_to_host(shards: list[Any], hosts: list[Any]) -> list[Any]:
            copies = real(shards, hosts)
            self._alive += map(weakref.ref, copies)
            self.made += len(copies)
            self.peak_bytes = max(self.peak_bytes, self.bytes())
            return copies

        monkeypatch.setattr(host_copies, "copy_to_host", copy_to_host)

    def bytes(self) -> int:
        arrays = [array for ref in self._alive if (array := ref()) is not None]
        return sum([array.size * array.dtype.itemsize for array in arrays])


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No copy is left after a test, and no save is admitted."""
    gc.collect()
    yield
    gc.collect()
    assert staging_memory.used_bytes == 0
    assert not has_admitted_save()


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
    monkeypatch.setattr("cordwood.storage.write_files.UNIT_BYTES", UNIT)
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
        staging_memory.peak_bytes = copies.peak_bytes = 0
        pending = cordwood.save_async(tmp_path / name, tree, staging_bytes=budget, **options)
        donate(tree)
        pending.wait()
        # cordwood notes that a copy is gone a moment after it is gone
        assert LEAF <= copies.peak_bytes <= staging_memory.peak_bytes <= min(budget, 20 * LEAF)
        stored = cordwood.load(tmp_path / name, to="numpy")
        assert_trees_equal(stored, expected)


@pytest.mark.parametrize("name", ["x.safetensors", "x.msgpack", "packs", "zarr"])
def test_a_save_that_waits_needs_few_copies(
    tmp_path: Path, copies: Copies, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(host_copies, "_BATCH_BYTES", LEAF)
    tree = tree_of(40)
    cordwood.save(tmp_path / name, tree, format=name if "." not in name else None)
    assert copies.peak_bytes <= (12 if name == "zarr" else 4) * LEAF  # four threads write zarr
    assert copies.made == 40
    assert_trees_equal(cordwood.load(tmp_path / name, to="numpy"), values(tree))


@pytest.mark.usefixtures("small_units")
def test_a_save_waits_for_no_other_save_if_there_is_memory(tmp_path: Path, disk: Disk) -> None:
    pending = cordwood.save_async(tmp_path / "x", tree_of(20, leaf_bytes=UNIT))
    small = tree_of(2)
    assert staging_memory.used_bytes >= 10 * UNIT  # the writer has taken few of them
    (_, copy) = Leaves([*small.values()]).part(0), Leaves([*small.values()]).part(1)
    np.testing.assert_array_equal(np.asarray(copy), small["w001"])
    disk.allow(1 << 30)
    pending.wait()


def test_a_shard_that_is_larger_than_the_budget(tmp_path: Path, copies: Copies) -> None:
    tree = {"a": jnp.ones(LEAF), "b": jnp.full(3 * LEAF, 2.0), "c": jnp.full(LEAF, 3.0)}
    expected = values(tree)
    pending = cordwood.save_async(tmp_path / "x", tree, staging_bytes=0)
    donate(tree)
    pending.wait()
    assert copies.peak_bytes == 12 * LEAF
    assert_trees_equal(cordwood.load(tmp_path / "x", to="numpy"), expected)


def test_a_call_waits_for_no_copy_that_exists(tmp_path: Path, disk: Disk) -> None:
    """The last shard is larger than the budget."""
    disk.allow(1)
    pending = cordwood.save_async(tmp_path / "x", tree_of(1, leaf_bytes=4 * UNIT), staging_bytes=1)
    assert not pending.done
    disk.allow(1 << 30)
    pending.wait()


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
    assert has_admitted_save()
    second = Call(lambda: cordwood.save_async(tmp_path / "y.safetensors", tree_of(1)))
    disk.allow(2 * UNIT)
    until(lambda: disk.allowed_bytes <= 0)
    assert not second.returned  # it would take the memory that the first save needs
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

    monkeypatch.setattr(host_copies, "copy_on_device", copy_on_device)
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


class OtherSave:
    """Another save that is admitted, so that the next one waits."""

    def __init__(self) -> None:
        assert staging_memory.admit(self)

    def end(self) -> None:
        with staging_memory.lock:
            staging_memory.dismiss(self)


def test_a_long_wait_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cordwood.threads.wait_logger.REPORT_SECONDS", 0.01)
    other = OtherSave()
    call = Call(lambda: cordwood.save_async(tmp_path / "x", tree_of(3)))
    until(lambda: "waiting for host memory for the copies of arrays on acc" in caplog.text)
    assert not call.returned
    other.end()
    call.result().wait()


def test_a_save_that_is_lost_does_not_stay_admitted(tmp_path: Path) -> None:
    other = OtherSave()
    call = Call(lambda: cordwood.save_async(tmp_path / "x", tree_of(3)))
    del other
    call.result().wait()


def interrupted_when(so: Callable[[], bool], work: Callable[[], object]) -> None:
    """Do work, and interrupt it once something is so."""

    def interrupt() -> None:
        until(so)
        os.kill(os.getpid(), signal.SIGALRM)

    thread = threading.Thread(target=interrupt)
    with alarms():
        thread.start()
        assert interrupted(60, work)
    thread.join()


def test_an_interrupt_before_a_save_is_admitted(tmp_path: Path, copies: Copies) -> None:
    other = OtherSave()
    is_waiting = Counter(StagingMemory, "admit", 3)
    interrupted_when(is_waiting, lambda: cordwood.save_async(tmp_path / "x", tree_of(3)))
    assert copies.made == 0
    other.end()
    cordwood.save_async(tmp_path / "y", tree_of(3)).wait()
    assert not (tmp_path / "x").exists()


class Counter:
    """True once a method of a class was called so many times."""

    def __init__(self, target: type, name: str, times: int) -> None:
        self._calls = 0
        self._times = times
        real = getattr(target, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self._calls += 1
            return real(*arguments, **options)

        self._patch = mock.patch.object(target, name, counted)
        self._patch.start()

    def __call__(self) -> bool:
        if self._calls < self._times:
            return False
        self._patch.stop()
        return True


@pytest.mark.usefixtures("small_units")
@pytest.mark.parametrize("kind", ["file", "manager"])
def test_an_interrupt_gives_up_a_save_whose_call_waits(
    tmp_path: Path, disk: Disk, kind: str
) -> None:
    """The caller may change its arrays then. A later save is not kept from its memory."""
    tree = tree_of(20, leaf_bytes=UNIT)
    manager = CheckpointManager(tmp_path / "run", staging_bytes=UNIT)
    path = tmp_path / "x.safetensors"

    def save() -> object:
        if kind == "manager":
            return manager.save(1, tree)
        return cordwood.save_async(path, tree, staging_bytes=UNIT)

    interrupted_when(Counter(HostCopies, "_start_rest", 4), save)
    donate(tree)
    other = Call(lambda: cordwood.save_async(tmp_path / "y", tree_of(3)))
    disk.allow(1 << 30)
    other.result().wait()
    assert not path.exists()
    manager.wait()  # what was given up is no failure
    assert manager.steps() == []
    manager.save(2, tree_of(3))
    manager.close()
    assert manager.steps() == [2]


@pytest.mark.usefixtures("small_units")
def test_an_interrupt_leaves_the_block_of_a_manager(tmp_path: Path, disk: Disk) -> None:
    def train() -> None:
        with CheckpointManager(tmp_path / "run", staging_bytes=UNIT) as manager:
            try:
                manager.save(1, tree_of(20, leaf_bytes=UNIT))
            finally:
                disk.allow(1 << 30)

    interrupted_when(Counter(HostCopies, "_start_rest", 4), train)
    assert CheckpointManager(tmp_path / "run").steps() == []


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
    until(has_admitted_save)
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


def test_a_failed_save_whose_error_is_kept(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "default_budget_bytes", lambda: 4 * LEAF)
    disk.fails = OSError(28, "No space left on device")
    disk.allow(1)
    with pytest.raises(OSError, match="No space left") as caught:
        cordwood.save(tmp_path / "x", tree_of(20))
    disk.fails = None
    disk.allow(1 << 30)
    cordwood.save(tmp_path / "y", tree_of(20))
    cordwood.save_async(tmp_path / "x", tree_of(4)).wait()
    del caught


def test_a_save_that_cannot_be_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("cordwood.saving.snapshot_save.save_in_background", fail)
        with pytest.raises(RuntimeError, match="new thread") as caught:
            cordwood.save_async(tmp_path / "x", tree_of(4))
    assert staging_memory.used_bytes == 0
    assert not has_admitted_save()
    del caught


def test_an_interrupt_once_the_save_is_queued_gives_it_up(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*arguments: Any, **options: Any) -> None:
        save_in_background(*arguments, **options)
        raise KeyboardInterrupt

    path = tmp_path / "x.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr("cordwood.saving.snapshot_save.save_in_background", begin)
        with pytest.raises(KeyboardInterrupt):
            cordwood.save_async(path, tree_of(20, leaf_bytes=4 * UNIT))
    disk.allow(1 << 40)
    cordwood.save_async(tmp_path / "y", tree_of(3)).wait()  # no failure is left to report
    assert not path.exists()


@pytest.mark.parametrize("name", ["x.safetensors", "x.msgpack", "packs"])
def test_progress_counts_the_arrays(tmp_path: Path, name: str) -> None:
    pending = cordwood.save_async(tmp_path / name, tree_of(4))
    pending.wait()
    assert pending.progress == (4 * LEAF, 4 * LEAF, "")


@pytest.mark.parametrize("device_copies", [False, True])
def test_without_host_memory_of_the_device_a_save_waits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    device_copies: bool,
) -> None:
    """The pool of the runtime may be smaller than the budget."""
    real = copy_shards.copy_to_host

    def copy_to_host(shards: list[Any], hosts: list[Any]) -> list[Any]:
        if staging_memory._used_bytes + len(shards) * LEAF > 5 * LEAF:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of host memory")
        return real(shards, hosts)

    monkeypatch.setattr(host_copies, "copy_to_host", copy_to_host)
    trees = [tree_of(4, start=100 * i) for i in range(3)]
    expected = [values(tree) for tree in trees]
    pendings = []
    for i, tree in enumerate(trees):
        path = tmp_path / str(i)
        pendings.append(cordwood.save_async(path, tree, device_copies=device_copies))
        donate(tree)
    for i, pending in enumerate(pendings):
        pending.wait()
        assert_trees_equal(cordwood.load(tmp_path / str(i), to="numpy"), expected[i])
    cordwood.save(tmp_path / "x", tree_of(12))
    assert "a save has less host memory for copies than its budget" in caplog.text


def test_host_memory_that_does_not_suffice_for_one_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_to_host(shards: list[Any], hosts: list[Any]) -> list[Any]:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of host memory")

    monkeypatch.setattr(host_copies, "copy_to_host", copy_to_host)
    with pytest.raises(RuntimeError, match="Out of host memory"):
        cordwood.save_async(tmp_path / "x", tree_of(3)).wait()
    with pytest.raises(RuntimeError, match="Out of host memory"):
        cordwood.save(tmp_path / "x", tree_of(3))


@pytest.fixture
def pool_of_six(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device have host memory for six leaves."""
    real = copy_shards.copy_to_host

    def copy_to_host(shards: list[Any], hosts: list[Any]) -> list[Any]:
        size = sum([shard.nbytes for shard in shards])
        if staging_memory.count_bytes() + size > 6 * LEAF:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of host memory")
        return real(shards, hosts)

    monkeypatch.setattr(host_copies, "copy_to_host", copy_to_host)


@pytest.mark.usefixtures("pool_of_six")
@pytest.mark.parametrize("device_copies", [False, True])
def test_a_tree_larger_than_the_host_memory_of_the_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, device_copies: bool
) -> None:
    tree = tree_of(20)
    expected = values(tree)
    pending = cordwood.save_async(tmp_path / "x", tree, device_copies=device_copies)
    donate(tree)
    pending.wait()
    assert_trees_equal(cordwood.load(tmp_path / "x", to="numpy"), expected)
    assert caplog.text.count("less host memory for copies than its budget") == 1


@pytest.mark.usefixtures("pool_of_six")
def test_shards_needed_at_once_that_are_larger_than_the_host_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "_BATCH_BYTES", 3 * LEAF)  # some of them are copied in advance
    columns = NamedSharding(jax.make_mesh((8,), ("x",)), P(None, "x"))
    wide = jax.device_put(jnp.ones((8, LEAF // 4)), columns)
    with pytest.raises(RuntimeError, match="Out of host memory"):
        cordwood.save(tmp_path / "x.safetensors", {"a": jnp.ones(LEAF // 4), "w": wide})


class Transfer:
    """A copy that arrives after some time, or not at all."""

    def __init__(self, array: Any, seconds: float, error: Exception | None) -> None:
        self.size, self.dtype = array.size, array.dtype
        self._array = array
        self._end = time.monotonic() + seconds
        self._error = error

    def is_ready(self) -> bool:
        return time.monotonic() >= self._end

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        time.sleep(max(0.0, self._end - time.monotonic()))
        if self._error is not None:
            raise self._error
        return np.asarray(self._array)


def slow_transfers(
    monkeypatch: pytest.MonkeyPatch, seconds: float, error: Exception | None = None
) -> list[Transfer]:
    """Let copies arrive late; return the list of the copies that will be made."""
    real = copy_shards.copy_to_host
    made: list[Transfer] = []

    def copy_to_host(shards: list[Any], hosts: list[Any]) -> list[Any]:
        transfers = [Transfer(array, seconds, error) for array in real(shards, hosts)]
        made.extend(transfers)
        return [*transfers]

    monkeypatch.setattr(host_copies, "copy_to_host", copy_to_host)
    return made


@pytest.mark.usefixtures("small_units")
def test_threads_that_need_more_shards_than_fit_make_few_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = slow_transfers(monkeypatch, 0.06)
    monkeypatch.setattr(host_copies, "_HOLD_SECONDS", 0.01)
    tree = tree_of(8, leaf_bytes=16 * UNIT)
    expected = values(tree)
    budget = 40 * UNIT
    cordwood.save_async(tmp_path / "x", tree, staging_bytes=budget, format="zarr").wait()
    assert_trees_equal(cordwood.load(tmp_path / "x", to="numpy"), expected)
    assert len(made) <= 64  # and not one for each of the 128 blocks


def test_a_transfer_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        slow_transfers(patch, 0, RuntimeError("INTERNAL: transfer failed"))
        pending = cordwood.save_async(tmp_path / "x.safetensors", tree_of(3), staging_bytes=LEAF)
        with pytest.raises(RuntimeError, match="transfer failed"):
            pending.wait()
    assert staging_memory.used_bytes == 0  # although `pending` has the error, and that its frames
    cordwood.save_async(tmp_path / "x.safetensors", tree_of(3), staging_bytes=LEAF).wait()


def test_a_save_that_fails_while_its_arrays_are_to_be_copied_on_the_device(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = HostCopies._copy_sources

    def copy_sources(self: HostCopies) -> bool:
        until(lambda: self._is_detached)
        return real(self)

    monkeypatch.setattr(HostCopies, "_copy_sources", copy_sources)
    disk.fails = OSError(28, "No space left on device")
    disk.allow(1)
    options: Any = {"staging_bytes": LEAF, "device_copies": True}
    pending = cordwood.save_async(tmp_path / "x", tree_of(20), **options)
    with pytest.raises(OSError, match="No space left"):
        pending.wait()


def test_arrays_in_host_memory_are_not_copied_on_the_device(
    tmp_path: Path, fake_accelerator: str, copies: Copies, caplog: pytest.LogCaptureFixture
) -> None:
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind=fake_accelerator)
    tree = {name: jax.device_put(leaf, host) for name, leaf in tree_of(10).items()}
    expected = values(tree)
    options: Any = {"staging_bytes": 2 * LEAF, "device_copies": True}
    pending = cordwood.save_async(tmp_path / "x", tree, **options)
    for leaf in tree.values():
        leaf.delete()
    pending.wait()
    assert "could not be copied on their devices: some of them are in host mem" in caplog.text
    assert copies.peak_bytes <= 2 * LEAF
    assert_trees_equal(cordwood.load(tmp_path / "x", to="numpy"), expected)


@pytest.mark.parametrize("name", ["x.safetensors", "x.msgpack"])
def test_an_array_of_many_shards_is_copied_once(
    tmp_path: Path, copies: Copies, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A file needs the columns of all shards at the same time, window by window."""
    monkeypatch.setattr("cordwood.io.lazy_array.WINDOW_BYTES", 16 << 10)
    array = jnp.arange(512 * 512, dtype=jnp.float32).reshape(512, 512)
    tree = {"w": jax.device_put(array, NamedSharding(mesh_of(8), P(None, "x")))}
    cordwood.save_async(tmp_path / name, tree, staging_bytes=LEAF).wait()
    assert copies.made == 8
    np.testing.assert_array_equal(cordwood.load(tmp_path / name, to="numpy")["w"], array)


@pytest.mark.parametrize("budget", [5 * LEAF, 9 * LEAF])
def test_few_copies_are_made_again(tmp_path: Path, copies: Copies, budget: int) -> None:
    """Although several objects are hashed and sent at the same time."""
    tree = tree_of(40, leaf_bytes=4 * LEAF)
    cordwood.save_async(f"memory://{tmp_path.name}-{budget}/x", tree, staging_bytes=budget).wait()
    assert copies.peak_bytes <= budget
    assert copies.made <= 4 * 40


def test_an_array_that_is_in_the_tree_twice(tmp_path: Path, copies: Copies) -> None:
    tree = tree_of(2)
    tree["z"] = tree["w000"]
    cordwood.save_async(tmp_path / "x", tree).wait()
    assert copies.made == 2
    assert_trees_equal(cordwood.load(tmp_path / "x", to="numpy"), values(tree))


def test_leaves_that_processes_compare_are_copied_one_by_one(copies: Copies) -> None:
    leaves = Leaves([*tree_of(10).values()], staging=StagingOptions(LEAF))
    digests = [digest_of_elements(leaves.view(leaf)) for leaf in range(10)]
    assert len(set(digests)) == 10
    assert copies.peak_bytes == LEAF
    del leaves


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
        until(has_admitted_save)
        began = time.monotonic()
        time.sleep(0.1)
        waited = time.monotonic() - began
        disk.allow(1 << 30)
        call.result()
    (report,) = reports
    assert waited <= report.blocking_seconds <= report.total_seconds


@pytest.mark.parametrize("seed", range(3))
def test_several_saves_in_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Some fit into the budget and some do not. They take memory from each other, and all end."""
    monkeypatch.setattr(host_copies, "default_budget_bytes", lambda: 3 * LEAF)
    draw = random.Random(seed)
    sizes = [draw.choice([1, 2, 3, 8, 14]) for _ in range(9)]
    trees = [tree_of(size, start=100 * i) for i, size in enumerate(sizes)]
    expected = [values(tree) for tree in trees]

    def work(number: int) -> None:
        path, tree = tmp_path / str(number), trees[number]
        if number % 3 == 0:
            cordwood.save(path, tree)
        else:
            pending = cordwood.save_async(path, tree, device_copies=number % 3 == 1)
            donate(tree)
            pending.wait()

    in_threads(work, len(trees))
    for number, tree in enumerate(expected):
        assert_trees_equal(cordwood.load(tmp_path / str(number), to="numpy"), tree)


SPECS = [P("x", "y"), P("y", "x"), P(None, "y"), P(("x", "y")), P()]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", ["x.safetensors", "packs", "zarr"])
@pytest.mark.parametrize("budget", [1, None])
def test_sharded_arrays_pass_through_staging_memory(
    tmp_path: Path, spec: P, name: str, budget: int | None
) -> None:
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
def test_every_dtype_passes_through_staging_memory(tmp_path: Path, dtype: str) -> None:
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
    held = HostCopies(StagingOptions()).hold(array_shards.distinct_shards(sharded, {}))
    expected = np.asarray(array)
    for start, stop in (((8, 0), (16, 6)), ((9, 1), (11, 4)), ((5, 2), (27, 5)), ((3, 3), (3, 3))):
        box = whole_box(array.shape)._replace(start=start, stop=stop)
        part = held.part(box)
        elements = expected[start[0] : stop[0], start[1] : stop[1]]
        np.testing.assert_array_equal(np.asarray(part), elements)
        assert part.nbytes == elements.nbytes


def test_copies_are_started_in_batches_ahead(copies: Copies, monkeypatch: Any) -> None:
    monkeypatch.setattr(host_copies, "_BATCH_BYTES", 4 * LEAF)
    leaves = Leaves([*tree_of(12).values()])
    made = []
    for leaf in range(12):
        np.asarray(leaves.part(leaf))
        made.append(copies.made)
    # One when it is needed; then four at a time, once the last of the batch before is read.
    assert made == [5, 5, 5, 5, 9, 9, 9, 9, 12, 12, 12, 12]
    del leaves


def test_without_host_memory_of_the_device(tmp_path: Path, monkeypatch: Any) -> None:
    """Then arrays of numpy are the copies."""
    for module in (array_shards, device_memory):
        monkeypatch.setattr(module, "pinned_host", lambda device: None)
        monkeypatch.setattr(module, "is_cpu", lambda device: False)
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
        (16, 1, {"SLURM_TASKS_PER_NODE": "4(x2)", "LOCAL_WORLD_SIZE": "3"}, 16),
        (16, 1, {"LOCAL_WORLD_SIZE": "3"}, 12),
    ],
)
def test_the_default_budget_is_a_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    devices: int,
    variables: dict[str, str],
    share: int,
) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    monkeypatch.setattr(jax, "local_device_count", lambda: devices)
    monkeypatch.setattr("cordwood.io.memory.staging_memory.machine_memory_bytes", lambda: 64 << 30)
    for name in staging_memory_module._COUNT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_budget_bytes() == (64 << 30) // share


def test_the_default_budget_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA allocates host memory for them from one pool."""
    monkeypatch.setattr("cordwood.io.memory.staging_memory.machine_memory_bytes", lambda: 2 << 40)
    monkeypatch.setattr(jax, "devices", lambda: [mock.Mock(platform="gpu")])
    monkeypatch.delenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", raising=False)
    assert default_budget_bytes() == 48 << 30
    monkeypatch.setenv("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "400")
    assert default_budget_bytes() == 300 << 30
    monkeypatch.setattr("cordwood.io.memory.staging_memory.machine_memory_bytes", lambda: 64 << 30)
    assert default_budget_bytes() == 16 << 30


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, r"staging_bytes=1\.5: expected a number of bytes, an int, or None"),
        (True, "staging_bytes=True: expected a number of bytes, an int, or None"),
        (-1, "staging_bytes=-1: expected at least 0"),
    ],
)
def test_wrong_staging_options_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        cordwood.save_async(tmp_path / "x", {}, staging_bytes=value)
    with pytest.raises((TypeError, ValueError), match=message):
        CheckpointManager(tmp_path, staging_bytes=value)
    with pytest.raises(TypeError, match="device_copies=1: expected True or False"):
        cordwood.save_async(tmp_path / "x", {}, device_copies=1)  # type: ignore[arg-type]
    assert StagingOptions() == (None, False)
