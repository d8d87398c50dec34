"""The scenarios of a group of processes; all processes call a function at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.processes.key_value_store import JaxProcesses, Processes, current_processes
from cordwood.processes.rendezvous import Rendezvous


def devices() -> tuple[int, int, int]:
    return jax.process_index(), jax.process_count(), len(jax.devices())


def meet(rounds: int) -> list[str]:
    processes = current_processes()
    assert isinstance(processes, JaxProcesses)
    with Rendezvous(processes, "test", timeout_seconds=300, silence_seconds=300) as rendezvous:
        return [
            rendezvous.exchange(f"{processes.index}.{i}", lambda values: ",".join(values))
            for i in range(rounds)
        ]


def deletes_what_is_meant(processes: Processes) -> None:
    """Check that a store deletes a key, or all keys below a key that ends in a slash."""
    for key in ("answer/6", "answer/64", "answer/7/x", "heard/1"):
        processes.put(f"r/{key}", b"1")
    processes.delete("r/answer/6")
    assert processes.list("r/answer/") == {"64": b"1", "7/x": b"1"}
    processes.delete("r/answer/")
    assert processes.list("r/") == {"heard/1": b"1"}
    processes.delete("r/")
    assert processes.list("r/") == {}


def delete_keys() -> None:
    """Check on process 0 that the store of jax deletes what `Processes.delete` promises."""
    processes = current_processes()
    assert isinstance(processes, JaxProcesses)
    if processes.index == 0:
        deletes_what_is_meant(processes)


def load_onto(
    path: str,
    specs: Mapping[str, Sequence[Any]],
    mesh: Sequence[int],
    **options: Any,
) -> Any:
    """Load a file onto a mesh over all processes; what this one got, and the bytes it read.

    The file is loaded twice. The system counts the bytes, and at first Python reads modules too.
    """
    grid = jax.sharding.Mesh(np.array(jax.devices()).reshape(mesh), ("x", "y")[: len(mesh)])
    shardings = {name: P(*spec) for name, spec in specs.items()}
    with cordwood.open(path) as checkpoint:
        checkpoint.load(mesh=grid, shardings=shardings, **options)
        before = _read_bytes()
        tree = checkpoint.load(mesh=grid, shardings=shardings, **options)
        read = _read_bytes() - before
    parts = {}
    for name, spec in shardings.items():
        array = tree[name]
        assert array.sharding == NamedSharding(grid, spec), array.sharding
        if not isinstance(array.dtype, np.dtype):  # of PRNG keys
            array = jax.random.key_data(array)
        parts[name] = [
            (
                [part.indices(size)[:2] for part, size in zip(s.index, array.shape, strict=True)],
                np.asarray(s.data),
            )
            for s in array.addressable_shards
        ]
    return parts, read


def _read_bytes() -> int:
    """Return how many bytes this process has read in all."""
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))
