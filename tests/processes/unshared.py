"""Runs of a manager whose processes have a root each, by all processes of a group."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from cordwood import CheckpointManager, Mirror
from cordwood.testing import assert_trees_equal
from tests.processes.spread_trees import reference, spread


def train(roots: Sequence[str], steps: int, mirror: str | None = None) -> list[int]:
    """Save steps by all processes; return those that this process sees then."""
    with CheckpointManager(
        roots[jax.process_index()],
        shared=False,
        keep=2,
        mirror=None if mirror is None else Mirror(mirror),
        timeout_seconds=60,
    ) as manager:
        for step in range(1, steps + 1):
            manager.save(step, spread(reference(step), 2))
        manager.wait()
        return manager.steps()


def restore(roots: Sequence[str], mirror: str | None = None) -> int:
    """Restore the newest step to the bit, whole on every process; return its number."""
    with CheckpointManager(
        roots[jax.process_index()],
        shared=False,
        mirror=None if mirror is None else Mirror(mirror),
        timeout_seconds=60,
    ) as manager:
        restored = manager.restore(required=True)
        expected = reference(restored.step)
        for name, value in expected.items():
            if name != "local":
                assert_trees_equal(restored.tree[name], jax.numpy.asarray(value))
        assert_trees_equal(restored.tree["local"], expected["local"])
        return restored.step
