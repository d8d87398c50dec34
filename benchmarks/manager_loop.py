"""A training loop whose steps a manager saves, and the resume from them."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.manager_contenders import MANAGERS
from benchmarks.manager_names import NAMES, WITHOUT
from benchmarks.rounds import remove
from benchmarks.trees import gpt2_adam

__all__ = ["CASES", "KEPT", "Case", "Measured", "measure"]

KEPT = 3


class Case(NamedTuple):
    """A state and a loop."""

    title: str
    width: int  # of the GPT-2-shaped model
    layers: int
    size: int  # of the square matrices of a step's work
    products: int  # how many of them
    steps: int
    first: int  # the first step that is saved
    every: int  # steps between two saves
    rounds: int


CASES = {
    "one": Case("A loop with three saves", 256, 12, 512, 3, 60, 5, 20, 3),
    "smoke": Case("A little state", 8, 2, 32, 1, 7, 1, 2, 1),
}


class Measured(NamedTuple):
    """Seconds of each round, by contender; bytes on disk."""

    state_bytes: int
    loops: dict[str, list[float]]  # until the last step is done
    wholes: dict[str, list[float]]  # until the last save is done too
    calls: dict[str, list[float]]  # time that each save blocks the loop
    resumes: dict[str, list[float]]
    kept_bytes: dict[str, int]
    frozen_bytes: dict[str, int]


def measure(case: Case, folder: Path) -> Measured:
    """Run the loop with every manager and without, in rounds whose order rotates."""
    state = gpt2_adam(case.width, layers=case.layers)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    names = [WITHOUT, *NAMES]
    loops, wholes, calls = ({name: list[float]() for name in names} for _ in range(3))
    measured = Measured(size, loops, wholes, calls, {}, {}, {})
    step = _step_of(case)
    state = _warm_up(step, state, folder)
    for number in range(case.rounds):
        for name in [*names[number % len(names) :], *names[: number % len(names)]]:
            root = folder / str(names.index(name))
            state = _loop(case, name, root, step, state, measured)
            if number < case.rounds - 1:
                _clear(root)
    measured.kept_bytes.update(
        {name: _disk_bytes(folder / str(names.index(name))) for name in NAMES}
    )
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
    )
    del state
    for number in range(case.rounds + 1):  # the first one warms up
        for name in NAMES:
            root = folder / str(names.index(name))
            seconds = _resume(name, root, like, case)
            if number:
                measured.resumes.setdefault(name, []).append(seconds)
    for name in names:
        _clear(folder / str(names.index(name)))
    measured.frozen_bytes.update({name: _frozen(name, folder / "frozen", case) for name in NAMES})
    return measured


def _step_of(case: Case) -> Callable[[Any], Any]:
    """Return a step that works on both cores and then replaces the state."""

    def step(state: Any) -> Any:
        x = jnp.ones((case.size, case.size)) * state["params"]["norm"]["scale"][0]
        for _ in range(case.products):
            x = jnp.tanh(x @ x.T / case.size)
        factor = 0.999 + 1e-9 * x.mean()
        return jax.tree.map(lambda leaf: (leaf * factor).astype(leaf.dtype), state)

    return jax.jit(step, donate_argnums=0)


def _loop(
    case: Case, name: str, root: Path, step: Callable[[Any], Any], state: Any, measured: Measured
) -> Any:
    manager = None if name == WITHOUT else MANAGERS[name](root, KEPT)
    gc.collect()
    os.sync()
    begun = time.perf_counter()
    for number in range(case.steps):
        state = jax.block_until_ready(step(state))
        if manager is not None and number % case.every == case.first:
            called = time.perf_counter()
            manager.save(number, state)
            measured.calls[name].append(time.perf_counter() - called)
    measured.loops[name].append(time.perf_counter() - begun)
    if manager is not None:
        manager.wait()
    measured.wholes[name].append(time.perf_counter() - begun)
    if manager is not None:
        manager.close()
    _log(f"{name}: {measured.loops[name][-1]:.2f} s, {measured.wholes[name][-1]:.2f} s until saved")
    return state


def _resume(name: str, root: Path, like: Any, case: Case) -> float:
    """Return the seconds that a new manager needs to restore the newest step."""
    last = max(n for n in range(case.steps) if n % case.every == case.first)
    gc.collect()
    begun = time.perf_counter()
    manager = MANAGERS[name](root, KEPT)
    step, tree = manager.restore(like)
    jax.block_until_ready(tree)
    seconds = time.perf_counter() - begun
    manager.close()
    if step != last:
        raise SystemExit(f"{name}: expected step {last}, restored {step}")
    _log(f"{name}: resumed in {seconds:.3f} s")
    return seconds


def _frozen(name: str, root: Path, case: Case) -> int:
    """Return the disk bytes of steps where only one block's weights change; check the restore."""
    state = gpt2_adam(case.width, layers=case.layers)
    manager = MANAGERS[name](root, KEPT)
    for number in range(KEPT):
        blocks = state["params"]["blocks"]
        last = str(case.layers - 1)
        blocks[last] = jax.tree.map(lambda leaf: leaf + 1, blocks[last])
        manager.save(number, state)
        manager.wait()
    _, tree = manager.restore(state)
    manager.close()
    if not all(jax.tree.leaves(jax.tree.map(np.array_equal, tree, state))):
        raise SystemExit(f"{name} restored something else")
    size = _disk_bytes(root)
    _clear(root)
    return size


def _warm_up(step: Callable[[Any], Any], state: Any, folder: Path) -> Any:
    """Run everything once, so that imports, compilations and thread starts are not timed."""
    state = step(state)
    for name in NAMES:
        manager = MANAGERS[name](folder / "warm-up", KEPT)
        manager.save(1, state)
        manager.wait()
        manager.close()
        _clear(folder / "warm-up")
    return state


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _clear(root: Path) -> None:
    if root.exists():
        remove(root)


def _disk_bytes(root: Path) -> int:
    """Return the disk usage of a directory; a file with several names counts once."""
    stats = [path.stat() for path in root.rglob("*")]
    return sum({each.st_ino: each.st_blocks * 512 for each in stats}.values())
