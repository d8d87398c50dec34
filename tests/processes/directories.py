"""Saves and loads of directories, by all processes of a group."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.array_serialization.serialization import GlobalAsyncCheckpointManager
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood import tree_deserialize_leaves, tree_serialize_leaves
from cordwood.processes import begin_shared_save, rendezvous
from cordwood.processes.key_value_store import current_processes
from cordwood.processes.wait_for_arrivals import Arrival
from cordwood.storage import syscalls
from cordwood.testing import assert_trees_equal
from tests.alarms import alarms
from tests.processes.spread_trees import SPECS, mesh, reference, spread


def hasten(silence_seconds: float, probe_seconds: float) -> None:
    """Have processes notice sooner that others are dead or see other directories."""
    rendezvous.SILENCE_SECONDS = silence_seconds
    begin_shared_save.PROBE_SECONDS = probe_seconds


def save_differing(path: str, what: str, **options: Any) -> None:
    """Save a tree of which process 1 has another one."""
    tree = spread(reference(1), 2)
    if jax.process_index() == 1:
        if what == "step":
            tree["local"]["step"] = 2
        elif what == "array":
            tree["local"]["numpy"][3] += 1
        elif what == "more":
            tree["local"]["more"] = None
        elif what == "spec":
            value = reference(1)["rows"]
            tree["rows"] = jax.make_array_from_callback(
                value.shape, NamedSharding(mesh(2), P("y")), value.__getitem__
            )
        else:
            tree["local"]["odd"] = object()
    cordwood.save(path, tree, **options)


def save_own_arrays(path: str, **options: Any) -> tuple[int, Any]:
    """Save arrays that lie on each process's own devices, and load them."""
    here = jax.local_devices()
    both = Mesh(np.array(here), ("x",))
    tree = {
        "one": jax.device_put(jnp.arange(5.0), here[1]),
        "both": jax.device_put(jnp.arange(8.0), NamedSharding(both, P("x"))),
        "key": jax.random.key(3),
    }
    cordwood.save(path, tree, **options)
    loaded = cordwood.load(path, like=tree)
    assert_trees_equal(loaded, tree)
    return jax.process_index(), sorted(cordwood.open(path))


def save_on_one(path: str, process: int) -> None:
    """Save an array that is spread over the devices of one process."""
    devices = [device for device in jax.devices() if device.process_index == process]
    sharding = NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))
    shards = [jax.device_put(jnp.zeros(4), device) for device in sharding.addressable_devices]
    array = jax.make_array_from_single_device_arrays((8,), sharding, shards, dtype=jnp.float32)
    cordwood.save(path, {"w": array})


def save_apart(folder: str, **options: Any) -> None:
    """Save to a directory that is another one on each process, under the same name."""
    os.chdir(Path(folder) / str(jax.process_index()))
    cordwood.save("checkpoint", spread(reference(1), 2), **options)


def save_failing(path: str, process: int, call: str, step: int, **options: Any) -> None:
    """Save, with one process whose disk is full."""

    class Full(syscalls.SystemCalls):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            if call == "pwrite":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().pwrite(fd, data, offset)

        def fsync(self, fd: int) -> None:
            if call == "fsync":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().fsync(fd)

    with syscalls.override(Full() if jax.process_index() == process else syscalls.SystemCalls()):
        cordwood.save(path, spread(reference(step), 2), **options)


def save_background_failing(path: str, process: int) -> list[str]:
    """Fail a background save on one process; return the errors of wait and of the next save."""
    errors = []
    here = jax.process_index()
    for waits in (True, False):
        tree = spread(reference(1), 2)

        class Full(syscalls.SystemCalls):
            def fsync(self, fd: int) -> None:
                if here == process:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                super().fsync(fd)

        with syscalls.override(Full()):
            pending = cordwood.save_async(path, tree)
            pending._ended.wait()
        try:
            pending.wait() if waits else cordwood.save(path, tree)
        except Exception as e:  # noqa: BLE001  (looked at by the test)
            errors.append(f"{type(e).__name__}: {e}")
    return errors


def save_several(path: str, count: int) -> int:
    """Save several prefixes in the background at once; saves of one path run in order."""
    pendings = [
        cordwood.save_async(path, spread(reference(i), 2), prefix=f"item-{i % 3}")
        for i in range(count)
    ]
    for pending in pendings:
        pending.wait()
    return len(pendings)


def save_files(folder: str) -> None:
    """Every process saves a file of its own, and one of them another one alone."""
    here = jax.process_index()
    cordwood.save(f"{folder}/{here}.safetensors", {"step": np.array(here)})
    if here == 1:
        cordwood.save_async(f"{folder}/one.msgpack", {"step": np.array(here)}).wait()


def disagree(folder: str, timeout_seconds: float) -> None:
    """Save to a different path on each process."""
    path = f"{folder}/{jax.process_index()}"
    cordwood.save(path, {"step": 1}, timeout_seconds=timeout_seconds)


def use_alone(folder: str) -> list[str]:
    """Return the errors of single-file saves and of diff for arrays spread over processes."""
    tree = {"w": spread(reference(1), 2)["rows"]}
    cordwood.save(f"{folder}/shared", tree)
    errors = []
    for call in (
        lambda: cordwood.save(f"{folder}/{jax.process_index()}.safetensors", tree),
        lambda: cordwood.diff(f"{folder}/shared", tree),
    ):
        try:
            call()
        except cordwood.CordwoodError as e:
            errors.append(f"{type(e).__name__}: {e}")
    return errors


def save_keys(path: str) -> None:
    """Save an array of PRNG keys that is spread over all processes."""
    sharding = NamedSharding(mesh(1), P("x"))
    keys = jax.jit(lambda: jax.random.split(jax.random.key(5), 16), out_shardings=sharding)()
    cordwood.save(path, {"keys": keys}, format="zarr")
    loaded = cordwood.load(path, like={"keys": keys})
    for one, other in zip(loaded["keys"].addressable_shards, keys.addressable_shards, strict=True):
        assert_trees_equal(jax.random.key_data(one.data), jax.random.key_data(other.data))


def save_otherwise(path: str) -> None:
    """Save with options that differ."""
    compression: Any = (None, "zstd")[jax.process_index()]
    cordwood.save(path, {"w": np.ones(3)}, format="zarr", compression=compression)


def save_leaves(
    path: str, step: int, prefix: str | None = None, managed: bool = False
) -> list[bool]:
    """Call eFormer's function; return whether the index existed at each call of the callback."""
    messages = []
    manager = GlobalAsyncCheckpointManager() if managed else None
    tree_serialize_leaves(
        path,
        {**spread(reference(step), 2), "own": jnp.arange(3)},
        manager,
        prefix=prefix,
        commit_callback=lambda: messages.append(os.path.exists(f"{path}/tensorstore_index.json")),
    )
    if manager is not None:
        manager.wait_until_finished()
    return messages


def load_leaves(path: str, prefix: str, step: int) -> None:
    """Load by eFormer's function onto a mesh of all processes."""
    loaded = tree_deserialize_leaves(
        path, mesh(2), prefix=prefix, partition_rules=(("own", P()), (".*", P("y")))
    )
    expected = reference(step)
    for name in SPECS:
        for shard in loaded[name].addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), expected[name][shard.index])


def save_interrupted(path: str, process: int, **options: Any) -> str:
    """Save, with one process that Ctrl-C stops while it waits for the others; what it raised.

    They come once it has been stopped.
    """
    tree = spread(reference(1), 2)
    processes, stopped = current_processes(), f"stopped {path}"
    arrive = Arrival.arrive

    def interrupted(rendezvous: Arrival, check: Callable[[], None]) -> str:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        return arrive(rendezvous, check)

    try:
        if processes.index != process:
            assert processes.get(stopped, 300) is not None
            cordwood.save(path, tree, **options)
            return "saved"
        with alarms(), patch.object(Arrival, "arrive", interrupted):
            cordwood.save(path, tree, **options)
    except BaseException as e:  # noqa: BLE001  (looked at by the test)
        if processes.index == process:
            processes.put(stopped, b"")
        return f"{type(e).__name__}: {e}"
    return "saved"


def save_dying(path: str, process: int, call: str, step: int, **options: Any) -> None:
    """Save, with one process that ends at its first call of that name."""

    def end(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    dying = type("Dying", (syscalls.SystemCalls,), {call: end})
    with syscalls.override(dying() if jax.process_index() == process else syscalls.SystemCalls()):
        cordwood.save(path, spread(reference(step), 2), **options)
