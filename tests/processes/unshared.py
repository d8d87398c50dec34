"""Runs of a manager whose processes have a root each, by all processes of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax

from cordwood import CheckpointManager, Mirror
from tests.processes.own_roots import itself, place, require_equal, state_at


class Resumed(NamedTuple):
    """A job that ended: the step that it restored, the steps that it saw then, and problems."""

    restored: int
    steps: list[int]
    problems: list[str]


def train(roots: Sequence[str], mirror: str, steps: int, timeout_seconds: float = 60) -> Resumed:
    """Restore the newest step to the bit, and save more steps by all processes."""
    with CheckpointManager(
        roots[jax.process_index()],
        shared=False,
        replicas=1,
        failure_domain=itself,
        keep=2,
        mirror=Mirror(mirror),
        timeout_seconds=timeout_seconds,
    ) as manager:
        restored = manager.restore(like=place(state_at(0)))
        begun = 0
        if restored is not None:
            begun = restored.step
            require_equal(restored.tree, begun)
        for step in range(begun + 1, begun + 1 + steps):
            manager.save(step, place(state_at(step)))
            manager.wait()
        return Resumed(begun, manager.steps(), list(map(str, manager.problems)))
