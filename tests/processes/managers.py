"""Runs of a manager, by all processes of a group."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cordwood import (
    CheckpointManager,
    EverySeconds,
    EverySteps,
    KeepEvery,
    KeepLast,
    Mirror,
    load,
)
from cordwood.processes import rendezvous
from cordwood.storage import syscalls
from tests.processes.spread_trees import like, reference, spread, step_of
from tests.soak import loop
from tests.soak.journal import writing
from tests.soak.loop import KillingSystem
from tests.soak.training import State, advance

KEEP = KeepLast(2) | KeepEvery(4)


def train(
    path: str,
    steps: int,
    rows: int = 64,
    slow: bool = False,
    timeout_seconds: float = 300.0,
    orbax: bool = False,
) -> tuple[int, list[int]]:
    """Restore, go on to a step and save each; where it began, and the steps that there are.

    `slow`: decide by the clock too, so that process 0 is asked at each step.
    """
    save = EverySteps(1) | EverySeconds(1e9) if slow else EverySteps(1)
    with CheckpointManager(
        path, save=save, keep=KEEP, timeout_seconds=timeout_seconds, orbax=orbax
    ) as manager:
        begun = restore(manager, rows)
        for step in range(begun + 1, steps + 1):
            manager.save(step, spread(reference(step, rows), 2), metrics={"loss": 1 / step})
        manager.wait()
        return begun, manager.steps()


def train_mirrored(path: str, mirror: str, steps: int) -> tuple[int, int | None, list[str]]:
    """Restore, save up to a step, and copy to a mirror; where it began, and what is mirrored."""
    with CheckpointManager(path, keep=KeepLast(1), mirror=Mirror(mirror)) as manager:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # about damaged steps
            begun = restore(manager, 64)
        for step in range(begun + 1, steps + 1):
            manager.save(step, spread(reference(step), 2), metrics={"loss": 1 / step})
            manager.wait()
        return begun, manager.mirrored, list(map(str, manager.problems))


def fine_tune(path: str, steps: int) -> list[tuple[int, int]]:
    """Save steps of which most stays what it is; what each wrote and linked, in this process."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    results: list[tuple[int, int]] = []
    with CheckpointManager(
        path,
        background=False,
        rewrite_every=4,
        on_save=lambda report: results.append((report.written_bytes, report.linked_bytes)),
    ) as manager:
        for step in range(steps):
            manager.save(step, tuned(mesh, step))
    return results


def tuned(mesh: Mesh, step: int) -> dict[str, Any]:
    """Return a tree with 256 KiB of frozen weights, half of them in each process."""
    rows = NamedSharding(mesh, PartitionSpec("x"))
    return {
        "frozen": jax.device_put(np.arange(65536, dtype=np.float32).reshape(256, 256), rows),
        "host": np.arange(2000),
        "trained": jax.device_put(np.full((64, 4), step, np.float32), rows),
    }


def load_tuned(path: str, step: int) -> bool:
    """Return True if a step is right, as far as this process sees it."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    expected = tuned(mesh, step)
    loaded = load(f"{path}/{step}", like=expected)
    for name, array in expected.items():
        for one, other in zip(parts(array), parts(loaded[name]), strict=True):
            if not np.array_equal(one, other):
                return False
    return True


def parts(array: Any) -> list[Any]:
    shards = getattr(array, "addressable_shards", None)
    return [array] if shards is None else [shard.data for shard in shards]


def train_until_sigterm(path: str, process: int, step: int) -> tuple[int, list[int]]:
    """Save every tenth step; one process receives SIGTERM at some step. Where all ended."""
    with CheckpointManager(path, save=EverySteps(10), preemption_seconds=300) as manager:
        for number in range(1, 10_000):
            if number == step and jax.process_index() == process:
                os.kill(os.getpid(), signal.SIGTERM)
            manager.save(number, spread(reference(number), 2))
            if manager.preempted:
                return number, manager.steps()
    raise AssertionError("nobody heard of it")


def evaluate_until_sigterm(path: str, process: int) -> tuple[int, list[int]]:
    """Evaluate a step; one process receives SIGTERM at batch 7. The batch at which all ended."""
    with CheckpointManager(path, save=EverySteps(10), preemption_seconds=300) as manager:
        manager.save(10, spread(reference(10), 2))
        for batch in range(10_000):
            if batch == 7 and jax.process_index() == process:
                os.kill(os.getpid(), signal.SIGTERM)
                assert not manager.preempted  # only together
            if manager.save_if_preempted(13, spread(reference(13), 2)):
                assert manager.preempted
                return batch, manager.steps()
    raise AssertionError("nobody heard of it")


def restore(manager: CheckpointManager, rows: int) -> int:
    """Return the step that the manager restores; its tree must be the saved one."""
    restored = manager.restore(like=like(reference(0, rows), 2))
    if restored is None:
        return 0
    assert step_of(restored.tree, 2, rows) == restored.step
    assert restored.metrics == {"loss": 1 / restored.step}
    return restored.step


def hasten(silence_seconds: float) -> None:
    rendezvous.SILENCE_SECONDS = silence_seconds


def train_until_killed(
    path: str, journal: str, victim: int, kill: tuple[int, str] | None, timeout_seconds: float
) -> int:
    """Train until a process dies at a system call, or is killed from outside."""
    index = jax.process_index()
    calls = KillingSystem(*kill) if kill is not None and index == victim else syscalls.SystemCalls()
    with writing(f"{journal}-{index}") as lines, syscalls.override(calls):
        return loop.train(
            path, lines, place=on_all, advance=advance_on_all, timeout_seconds=timeout_seconds
        )


def on_all(state: State) -> State:
    """Return the state with its arrays sharded by rows over all processes."""
    every = NamedSharding(Mesh(np.array(jax.devices()), "rows"), PartitionSpec("rows"))

    def place(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(array.shape, every, array.__getitem__)

    arrays = {name: value for name, value in state.items() if name != "step"}
    return {**jax.tree.map(place, arrays), "step": state["step"]}


_advance = jax.jit(advance)


def advance_on_all(state: State) -> State:
    """One step of training by all processes."""
    return {**_advance(state), "base": state["base"], "step": state["step"] + 1}
