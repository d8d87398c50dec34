"""save_async saves the tree of the moment of the call, whatever the caller does to it next."""

from __future__ import annotations

import copy
import gc
import os
import threading
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
from cordwood.errors import (
    NotACheckpointError,
    PendingSaveError,
    UnsupportedFormatError,
    UnsupportedLeafError,
)
from cordwood.io import snapshot
from cordwood.saving.background_saves import save_in_background, wait_for_saves
from cordwood.storage import syscalls
from cordwood.testing import assert_trees_equal
from tests.alarms import alarms, interrupted
from tests.children import run_python
from tests.threads import until

FORMATS = (".safetensors", ".msgpack", ".msgpack.zst", "")  # "": a directory of packs
ROWS = 1 << 12


class Gate(syscalls.SystemCalls):
    """Saves stop at their first file until the gate is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open_now = threading.Event()
        self.fails: OSError | None = None

    def open(self, path: Any, flags: int, mode: int = 0o666, *, dir_fd: int | None = None) -> int:
        self.reached.set()
        assert self.open_now.wait(60)
        if self.fails is not None and flags & os.O_CREAT:
            raise self.fails
        return super().open(path, flags, mode, dir_fd=dir_fd)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    try:
        with syscalls.override(gate):
            yield gate
    finally:
        gate.open_now.set()


def values(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a tree that nothing can change; it leaves no copies of jax's behind."""
    return {k: np.array(v.copy()) if hasattr(v, "dtype") else v for k, v in tree.items()}


def on_one_device() -> dict[str, Any]:
    return {
        "big": jnp.arange(float(64 * ROWS)).reshape(ROWS, 64),
        "small": jnp.array(3, jnp.int32),
        "bf16": jnp.ones((ROWS, 2), jnp.bfloat16),
        "int4": jnp.array([1, -2, 3], jnp.int4),
        "other": jax.device_put(jnp.arange(5.0), jax.devices()[3]),
        "empty": jnp.zeros((0, 3)),
        "step": 7,
    }


def on_eight_devices() -> dict[str, Any]:
    mesh = jax.make_mesh((4, 2), ("x", "y"))

    def put(spec: P, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        array = jnp.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
        return jax.jit(lambda a: a * 1, out_shardings=NamedSharding(mesh, spec))(array)

    return {
        "sharded": put(P("x", "y"), (ROWS, 64)),
        "partly": put(P(None, "y"), (8, 64), jnp.bfloat16),
        "replicated": put(P(), (ROWS,)),
        "scalar": put(P(), ()),
    }


def donate(tree: dict[str, Any]) -> dict[str, Any]:
    arrays = {k: v for k, v in tree.items() if isinstance(v, jax.Array) and v.dtype != jnp.int4}
    step = jax.jit(lambda x: jax.tree.map(lambda a: -a - 1, x), donate_argnums=0)
    for name, array in arrays.items():
        tree[name] = step(step(step(array)))
    jax.block_until_ready(tree)
    return tree


def delete(tree: dict[str, Any]) -> dict[str, Any]:
    for leaf in tree.values():
        if isinstance(leaf, jax.Array):
            leaf.delete()
    # What was freed, if it was, is taken and written over.
    return {str(i): jnp.full((ROWS, 64), -1.0) for i in range(8)}


def drop(tree: dict[str, Any]) -> dict[str, Any]:
    tree.clear()
    gc.collect()
    return {str(i): jnp.full((ROWS, 64), -1.0) for i in range(8)}


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("act", [donate, delete, drop])
@pytest.mark.parametrize("make", [on_one_device, on_eight_devices])
def test_the_tree_of_the_call_is_saved(
    tmp_path: Path,
    gate: Gate,
    make: Callable[[], Any],
    act: Callable[[dict[str, Any]], Any],
    suffix: str,
) -> None:
    tree = make()
    jax.block_until_ready(tree)
    expected = values(tree)
    pending = cordwood.save_async(tmp_path / f"x{suffix}", tree)
    assert gate.reached.wait(60)
    kept = act(tree)
    gate.open_now.set()
    pending.wait()
    del kept
    assert_trees_equal(cordwood.load(tmp_path / f"x{suffix}", to="numpy"), expected)


@pytest.mark.parametrize("suffix", FORMATS)
def test_numpy_leaves_and_containers_may_be_changed(
    tmp_path: Path, gate: Gate, suffix: str
) -> None:
    tree: dict[str, Any] = {"w": np.arange(1000.0), "f": np.asfortranarray(np.eye(9)), "n": {}}
    expected = copy.deepcopy(tree)
    pending = cordwood.save_async(tmp_path / f"x{suffix}", tree)
    tree["w"] += 1
    tree["f"][:] = 0
    tree["n"]["late"] = 1
    del tree["f"]
    gate.open_now.set()
    pending.wait()
    assert_trees_equal(cordwood.load(tmp_path / f"x{suffix}"), expected)


def test_prng_keys_that_are_deleted_meanwhile_are_saved(tmp_path: Path, gate: Gate) -> None:
    mesh = jax.make_mesh((8,), ("x",))
    keys = jax.device_put(jax.random.split(jax.random.key(1), 8), NamedSharding(mesh, P("x")))
    tree = {"key": jax.random.key(0), "keys": keys}
    expected = [np.array(jax.random.key_data(tree[name])) for name in ("key", "keys")]
    pending = cordwood.save_async(tmp_path / "x.safetensors", tree)
    for key in tree.values():
        key.delete()
    gate.open_now.set()
    pending.wait()
    loaded = cordwood.load(tmp_path / "x.safetensors")
    for name, data in zip(("key", "keys"), expected, strict=True):
        np.testing.assert_array_equal(jax.random.key_data(loaded[name]), data)


def arrays_of(leaf: jax.Array) -> list[Any]:
    return [leaf, *[shard.data for shard in leaf.addressable_shards]]


@pytest.mark.parametrize("act", [donate, delete, drop])
@pytest.mark.parametrize("make", [on_one_device, on_eight_devices])
def test_the_tree_of_the_call_is_saved_as_zarr(
    tmp_path: Path,
    gate: Gate,
    make: Callable[[], Any],
    act: Callable[[dict[str, Any]], Any],
) -> None:
    tree = make()
    jax.block_until_ready(tree)
    expected = values(tree)
    pending = cordwood.save_async(tmp_path / "x", tree, format="zarr")
    assert gate.reached.wait(60)
    kept = act(tree)
    gate.open_now.set()
    pending.wait()
    del kept
    assert_trees_equal(cordwood.load(tmp_path / "x", to="numpy"), expected)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("act", [donate, delete, drop])
def test_jax_arrays_over_the_callers_numpy_memory(
    tmp_path: Path, gate: Gate, act: Callable[[dict[str, Any]], Any], suffix: str
) -> None:
    """They are held as others are, and keep their memory, though the caller lets go of it."""
    memory = np.zeros(ROWS * 64 + 16, np.float32)
    skip = -memory.ctypes.data % 64 // 4  # what is so aligned, jax takes as it is
    numpy = memory[skip : skip + ROWS * 64].reshape(ROWS, 64)
    numpy[:] = np.arange(ROWS * 64).reshape(ROWS, 64)
    tree = {"w": jax.device_put(numpy)}
    assert tree["w"].unsafe_buffer_pointer() == numpy.ctypes.data
    expected = {"w": numpy.copy()}
    pending = cordwood.save_async(tmp_path / f"x{suffix}", tree)
    assert gate.reached.wait(60)
    del memory, numpy
    kept = act(tree)
    gate.open_now.set()
    pending.wait()
    del kept
    assert_trees_equal(cordwood.load(tmp_path / f"x{suffix}", to="numpy"), expected)


@pytest.mark.parametrize("options", [{}, {"format": "packs"}, {"format": "zarr"}], ids=str)
@pytest.mark.parametrize("make", [on_one_device, on_eight_devices])
def test_nothing_stays_on_the_callers_arrays(
    tmp_path: Path, make: Callable[[], Any], options: dict[str, Any]
) -> None:
    tree = make()
    cordwood.save_async(tmp_path / ("x" if options else "x.safetensors"), tree, **options).wait()
    for name, leaf in tree.items():
        if isinstance(leaf, jax.Array):
            assert all(array._npy_value is None for array in arrays_of(leaf)), name


def test_memory_is_let_go_leaf_by_leaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A donated step reuses the memory of a leaf that is written, and of no other."""
    names = [f"w{i:02}" for i in range(24)]
    tree = {name: jnp.full((1 << 20,), float(i)) for i, name in enumerate(names)}
    jax.block_until_ready(tree)
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    step(jnp.full((1 << 20,), 0.0))
    go_on = threading.Event()
    views: list[weakref.ref[Any]] = []

    class Halfway(syscalls.SystemCalls):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            if offset > 48 << 20:
                assert go_on.wait(60)
            return super().pwrite(fd, data, offset)

    def hold(leaves: Any) -> list[Any]:
        held = snapshot.snapshot_leaves(leaves)
        views.extend([weakref.ref(leaf._shards[0]) for leaf in held])
        return held

    monkeypatch.setattr("cordwood.saving.snapshot_save.snapshot_leaves", hold)
    with syscalls.override(Halfway()):
        pending = cordwood.save_async(tmp_path / "x.safetensors", tree)
        assert len(views) == len(names)
        until(lambda: not any(view() is not None for view in views[:8]))
        reused = []
        for name in names:
            before = tree[name].unsafe_buffer_pointer()
            tree[name] = step(tree[name])
            reused.append(tree[name].unsafe_buffer_pointer() == before)
        assert 0 < pending.progress.done_bytes < pending.progress.total_bytes == 96 << 20
        go_on.set()
        pending.wait()
    assert pending.progress.done_bytes == 96 << 20
    assert reused[:8] == [True] * 8
    assert reused[-4:] == [False] * 4
    for i, name in enumerate(names):
        np.testing.assert_array_equal(cordwood.open(tmp_path / "x.safetensors")[name][:3], i)


@pytest.mark.usefixtures("fake_accelerator")
@pytest.mark.parametrize("act", [donate, delete])
@pytest.mark.parametrize("make", [on_one_device, on_eight_devices])
def test_from_pinned_host_memory(
    tmp_path: Path, gate: Gate, make: Callable[[], Any], act: Callable[[dict[str, Any]], Any]
) -> None:
    test_the_tree_of_the_call_is_saved(tmp_path, gate, make, act, ".safetensors")


def test_saves_of_one_path_end_in_the_order_of_the_calls(tmp_path: Path, gate: Gate) -> None:
    path = tmp_path / "x.safetensors"
    sizes = [1 << (20 - i) for i in range(12)]  # each would overtake the one before
    pendings = [cordwood.save_async(path, {"w": np.zeros(size)}) for size in sizes]
    gate.open_now.set()
    for i, pending in enumerate(pendings):
        pending.wait()
        assert all(earlier.done for earlier in pendings[:i])
        assert cordwood.open(path)["w"].shape[0] <= sizes[i]
    assert cordwood.open(path)["w"].shape == (sizes[-1],)


def test_a_save_comes_after_those_of_its_path_that_go_on(tmp_path: Path, gate: Gate) -> None:
    path = tmp_path / "x.safetensors"
    pending = cordwood.save_async(path, {"first": np.zeros(1 << 20)})
    threading.Timer(0.2, gate.open_now.set).start()
    (tmp_path / "link").symlink_to(tmp_path)
    cordwood.save(tmp_path / "link/x.safetensors", {"second": 2})
    assert pending.done
    assert cordwood.load(path) == {"second": 2}


def test_a_pending_save_shows_its_state(tmp_path: Path, gate: Gate) -> None:
    path = tmp_path / "x.safetensors"
    pending = cordwood.save_async(path, {"w": np.zeros(1000, np.float32)})
    with pytest.raises(TimeoutError, match=r"still being saved after 0\.01 s \(\d+ of 4000 bytes"):
        pending.wait(0.01)
    assert (pending.done, pending.exception, pending.path) == (False, None, str(path))
    assert pending.progress.total_bytes == 4000
    assert repr(pending).startswith("<saving ")
    gate.open_now.set()
    pending.wait(60)
    assert pending.done
    assert pending.exception is None
    assert repr(pending) == f"<saved {path}: 4000 of 4000 bytes>"


def test_ctrl_c_in_wait_leaves_the_save_going(tmp_path: Path, gate: Gate) -> None:
    path = tmp_path / "x.safetensors"
    pending = cordwood.save_async(path, {"w": np.zeros(1000)})
    with alarms():  # not SIGINT, which what a script runs in the background ignores
        assert interrupted(0.3, partial(pending.wait, 60))
    assert not pending.done
    gate.open_now.set()
    pending.wait()
    assert list(cordwood.load(path)) == ["w"]


def failing(path: Path, gate: Gate) -> cordwood.PendingSave:
    gate.fails = OSError(28, "No space left on device")
    gate.open_now.set()
    pending = cordwood.save_async(path, {"w": np.zeros(1000)})
    while not pending.done:
        pending._ended.wait()
    gate.fails = None
    return pending


def test_a_failure_reaches_wait(tmp_path: Path, gate: Gate) -> None:
    pending = failing(tmp_path / "x.safetensors", gate)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left on device"):
            pending.wait()
    assert isinstance(pending.exception, OSError)
    assert repr(pending).startswith("<failed ")
    cordwood.save(tmp_path / "x.safetensors", {"reported": True})


@pytest.mark.parametrize("save", [cordwood.save, cordwood.save_async])
def test_a_failure_that_nobody_saw_reaches_the_next_save(
    tmp_path: Path, gate: Gate, save: Callable[..., Any]
) -> None:
    failing(tmp_path / "x.safetensors", gate)
    with pytest.raises(PendingSaveError, match=r"x\.safetensors in the background failed: Storage"):
        save(tmp_path / "y.safetensors", {})
    assert list(tmp_path.iterdir()) == []
    gate.fails = None
    pending = save(tmp_path / "y.safetensors", {})  # reported once
    if pending is not None:
        pending.wait()


def test_a_failure_keeps_no_memory(tmp_path: Path, gate: Gate) -> None:
    array = jnp.zeros(1 << 20)
    before = array.unsafe_buffer_pointer()
    gate.fails = OSError(28, "No space left on device")
    pending = cordwood.save_async(tmp_path / "x.safetensors", {"w": array})
    gate.open_now.set()
    with pytest.raises(OSError, match="No space"):
        pending.wait()
    after = jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert after.unsafe_buffer_pointer() == before


def test_an_error_of_writing_is_raised_by_wait(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"a diary")
    pending = cordwood.save_async(path, {"w": np.zeros(3)})
    with pytest.raises(NotACheckpointError, match="is not a safetensors checkpoint"):
        pending.wait()
    assert path.read_bytes() == b"a diary"


def test_an_error_of_the_tree_is_raised_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLeafError, match="a/1"):
        cordwood.save_async(tmp_path / "x.safetensors", {"a": [1, object()]})
    with pytest.raises(UnsupportedFormatError):
        cordwood.save_async(tmp_path / "x.safetensor", {})


def test_the_interpreter_waits_for_the_save(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for leave in ("", "raise SystemExit(0)"):
        run_python(
            f"""
            import sys, time
            import numpy as np
            import cordwood
            from cordwood.storage import syscalls

            class Slow(syscalls.SystemCalls):
                def replace(self, source, target):
                    time.sleep(0.5)
                    super().replace(source, target)

            syscalls._current = Slow()
            cordwood.save_async(sys.argv[1], {{"w": np.zeros(1 << 20)}})
            cordwood.save_async(sys.argv[1], {{"last": np.zeros(1 << 20)}})
            {leave}
            """,
            str(path),
        )
        assert list(cordwood.load(path)) == ["last"]
        path.unlink()


def test_an_unreported_failure_is_reported_at_exit(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_text("no checkpoint")
    printed = run_python(
        """
        import sys
        import cordwood
        sys.stderr = sys.stdout
        cordwood.save_async(sys.argv[1] + "/x.safetensors", {"a": 1})
        """,
        str(tmp_path),
    )
    assert "RuntimeWarning: cordwood: the save of" in printed
    assert "/x.safetensors in the background failed: " in printed


def save_and_go(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, **options: Any) -> None:
    """Save by a relative path in folder a, and be in folder b before anything is written."""
    monkeypatch.chdir(folder / "a")
    goes_on = threading.Event()
    save_in_background("earlier", lambda _: until(goes_on.is_set), total_bytes=0)
    pending = cordwood.save_async(name, {"w": 2}, **options)
    monkeypatch.chdir(folder / "b")
    goes_on.set()
    pending.wait()
    assert pending.path == name


@pytest.mark.parametrize("name", ["m.safetensors", "n.msgpack", "packs", "zarr"])
def test_relative_paths_are_those_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "a").mkdir()
    options: Any = {"format": name} if "." not in name else {}
    cordwood.save(tmp_path / "b" / name, {"precious": 1}, **options)
    save_and_go(monkeypatch, tmp_path, name, **options)
    assert cordwood.load(tmp_path / "a" / name) == {"w": 2}
    assert cordwood.load(tmp_path / "b" / name) == {"precious": 1}


def test_what_is_refused_is_what_lies_at_the_path_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder / f"only-{folder}").mkdir(parents=True)
        (tmp_path / folder / f"only-{folder}" / "notes.txt").write_text("mine")
    save_and_go(monkeypatch, tmp_path, "only-b")
    assert cordwood.load(tmp_path / "a" / "only-b") == {"w": 2}
    with pytest.raises(NotACheckpointError, match=r"notes\.txt"):
        save_and_go(monkeypatch, tmp_path, "only-a")


def test_a_forked_child_has_no_saves_of_its_parents(tmp_path: Path) -> None:
    run_python(
        """
        import os, sys, threading
        import cordwood
        from cordwood.storage import syscalls

        class Gate(syscalls.SystemCalls):
            def replace(self, source, target):
                if os.getpid() == parent:
                    reached.set()
                    os.read(opened, 1)  # holds nothing that the child would find locked
                super().replace(source, target)

        parent, reached = os.getpid(), threading.Event()
        opened, opens = os.pipe()
        path = sys.argv[1] + "/x.safetensors"
        with syscalls.override(Gate()):
            pending = cordwood.save_async(path, {"parent": 1})
            assert reached.wait(60)
            child = os.fork()
            if child == 0:
                cordwood.save(path, {"child": 1})
                os._exit(0 if list(cordwood.load(path)) == ["child"] else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            os.write(opens, b"x")
            pending.wait()
        """,
        str(tmp_path),
    )


def test_an_interrupt_once_the_save_has_begun_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*arguments: Any, **options: Any) -> None:
        save_in_background(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr("cordwood.saving.snapshot_save.save_in_background", begin)
    path, tree = tmp_path / "x.safetensors", {"w": jnp.arange(ROWS)}
    with pytest.raises(KeyboardInterrupt):
        cordwood.save_async(path, tree)
    cordwood.save(path.with_name("y.safetensors"), tree)  # no failure is left to report
    wait_for_saves(path)
    assert_trees_equal(cordwood.load(path, to="numpy"), {"w": np.arange(ROWS, dtype=np.int32)})
