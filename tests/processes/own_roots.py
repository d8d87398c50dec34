"""A training run whose processes have a root each, with replicas and a mirror, until a kill."""

from __future__ import annotations

import random
import warnings
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cordwood import CheckpointManager, Mirror
from cordwood.results import SaveReport
from cordwood.storage import syscalls
from tests.soak.journal import writing
from tests.soak.loop import KillingSystem

ROWS = 48  # divides by 2, 3 and 4 processes of 2 devices each
KEEP, MIRRORED_EVERY, MIRROR_KEEP = 3, 4, 2
WAITS_ONE_IN = 3  # steps: after one in three, the worker waits


def state_at(step: int) -> dict[str, Any]:
    """Return the state after some steps, as numpy arrays."""
    base = np.arange(ROWS * 512, dtype=np.uint32).reshape(ROWS, 512) * np.uint32(2654435761)
    frozen = np.arange(ROWS * 2048, dtype=np.float32).reshape(ROWS, 2048)
    odd = np.uint32((2 * step + 1) % 2**32)
    return {"base": {"frozen": frozen}, "weights": base * odd, "step": step}


def train(
    roots: list[str],
    mirror: str,
    journal: str,
    victim: int,
    kill: tuple[int, str] | None,
    timeout_seconds: float,
) -> int:
    """Restore, check every bit, and save every step until the process is killed."""
    index = jax.process_index()
    calls = KillingSystem(*kill) if kill is not None and index == victim else syscalls.SystemCalls()
    with writing(f"{journal}-{index}") as lines, syscalls.override(calls):

        def committed(report: SaveReport) -> None:
            lines.write("committed", report.step)

        with CheckpointManager(
            roots[index],
            shared=False,
            replicas=1,
            failure_domain=itself,
            keep=KEEP,
            mirror=Mirror(mirror, every=MIRRORED_EVERY, keep=MIRROR_KEEP),
            on_save=committed,
            timeout_seconds=timeout_seconds,
        ) as manager:
            step = 0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # about steps that are passed over
                restored = manager.restore(like=place(state_at(0)))
            if restored is not None:
                step = restored.step
                require_equal(restored.tree, step)
            lines.write("restored", step)
            rng = random.Random(step)
            while True:
                step += 1
                lines.write("begun", step)
                manager.save(step, place(state_at(step)))
                if rng.random() < 1 / WAITS_ONE_IN:
                    manager.wait()
                    lines.write("replicated", step, manager.replicated)


def itself(process: int) -> int:
    return process


def place(state: dict[str, Any]) -> dict[str, Any]:
    every = NamedSharding(Mesh(np.array(jax.devices()), "rows"), PartitionSpec("rows"))

    def place_array(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(array.shape, every, array.__getitem__)

    arrays = {name: value for name, value in state.items() if name != "step"}
    return {**jax.tree.map(place_array, arrays), "step": state["step"]}


def require_equal(tree: dict[str, Any], step: int) -> None:
    """Require the bits of the shards on this process."""
    expected = state_at(step)
    assert tree["step"] == step
    for array, full in (
        (tree["weights"], expected["weights"]),
        (tree["base"]["frozen"], expected["base"]["frozen"]),
    ):
        for shard in array.addressable_shards:
            assert np.asarray(shard.data).tobytes() == full[shard.index].tobytes(), step
