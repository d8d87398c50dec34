"""Timed training loops of a group, whose processes have a root each."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cordwood import CheckpointManager
from tests.processes.own_roots import itself
from tests.processes.recoveries import tree_of


class Loop(NamedTuple):
    """A training loop.

    Attributes:
        mib: the size of the state, over all processes.
        steps: how many steps it has.
        first: the first step that is saved.
        every: steps between two saves.
        size: of the square matrices of a step's work, one on each process.
        products: how many of them a step multiplies.
        device_seconds: how long the host only waits in each step, as for an accelerator. Then the
            state changes before saves alone; otherwise in every step, on the processor.
    """

    mib: int
    steps: int
    first: int
    every: int
    size: int
    products: int
    device_seconds: float


class LoopTimes(NamedTuple):
    """Seconds of a loop: until its last step is done, and until `wait` has returned."""

    steps: float
    whole: float


def run(roots: Sequence[str], loop: Sequence[Any], options: Mapping[str, Any] | None) -> LoopTimes:
    """Run a loop, with a manager unless `options` is None; all saves must succeed.

    Args:
        roots: the root of each process.
        loop: a `Loop`.
        options: of the manager.
    """
    plan = Loop(*loop)
    state = tree_of(plan.mib)
    mesh = Mesh(np.array(jax.devices()), "rows")
    rows = NamedSharding(mesh, PartitionSpec("rows"))
    shape = len(jax.devices()), plan.size, plan.size
    x = jax.make_array_from_callback(shape, rows, lambda _: np.ones((1, *shape[1:]), np.float32))

    @jax.jit
    def work(x: jax.Array) -> jax.Array:
        for _ in range(plan.products):
            x = jnp.tanh(x @ x.swapaxes(1, 2) / plan.size)
        return 0.999 + 1e-9 * x.mean()  # which the processes compute together

    def multiply(state: Any, factor: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf * factor, state)

    replace = jax.jit(multiply, donate_argnums=0)
    state = jax.block_until_ready(replace(state, work(x)))  # compiled before it is timed
    manager = None
    if options is not None:
        domains: dict[str, Any] = {"failure_domain": itself} if options.get("replicas") else {}
        manager = CheckpointManager(
            roots[jax.process_index()], shared=False, keep=2, **options, **domains
        )
        manager.restore()  # which meets the other processes
    os.sync()
    sync_global_devices("begin")
    began = time.perf_counter()
    for number in range(plan.steps):
        is_saved = number % plan.every == plan.first
        time.sleep(plan.device_seconds)
        factor = jax.block_until_ready(work(x))
        if is_saved or not plan.device_seconds:
            state = jax.block_until_ready(replace(state, factor))
        if manager is not None and is_saved:
            manager.save(number, state)
    seconds = time.perf_counter() - began
    if manager is not None:
        manager.wait()
    whole = time.perf_counter() - began
    if manager is not None:
        assert not manager.problems, manager.problems
        newest = manager.latest()
        assert newest is not None
        assert manager.replicated == (newest if (options or {}).get("replicas") else None)
        manager.close()
    return LoopTimes(seconds, whole)
