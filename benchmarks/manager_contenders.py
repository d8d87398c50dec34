"""The managers of a run's steps that the benchmark compares, behind one small protocol."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import orbax.checkpoint as ocp
from eformer.serialization import Checkpointer

import cordwood
from benchmarks.manager_names import CORDWOOD, EFORMER, ORBAX

__all__ = ["MANAGERS", "Manager", "quiet"]

ITEM = "state"  # eFormer's name for the tree


class Manager(Protocol):
    """A manager of the steps below a root, as its own documentation uses it."""

    def save(self, step: int, state: Any) -> None:
        """Save a step, in the background if the manager can."""

    def wait(self) -> None:
        """Return once the save is done. Raise if it failed and the manager reports that."""

    def latest(self) -> int | None:
        """Return the newest step according to the manager."""

    def restore(self, like: Any) -> tuple[int, Any]:
        """Return the newest step and its tree, placed as `like`."""

    def close(self) -> None:
        """End its threads."""


class Cordwood:
    def __init__(self, root: Path, keep: int) -> None:
        self._manager = cordwood.CheckpointManager(root, keep=keep)

    def save(self, step: int, state: Any) -> None:
        self._manager.save(step, state)

    def wait(self) -> None:
        self._manager.wait()

    def latest(self) -> int | None:
        return self._manager.latest()

    def restore(self, like: Any) -> tuple[int, Any]:
        restored = self._manager.restore(like=like)
        assert restored is not None
        return restored.step, restored.tree

    def close(self) -> None:
        self._manager.wait()


class Orbax:
    """Orbax's manager with its default, asynchronous saves."""

    def __init__(self, root: Path, keep: int) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=keep)
        self._manager = ocp.CheckpointManager(root, options=options)

    def save(self, step: int, state: Any) -> None:
        self._manager.save(step, args=ocp.args.StandardSave(state))

    def wait(self) -> None:
        self._manager.wait_until_finished()

    def latest(self) -> int | None:
        step: int | None = self._manager.latest_step()
        return step

    def restore(self, like: Any) -> tuple[int, Any]:
        step = self._manager.latest_step()
        return step, self._manager.restore(step, args=ocp.args.StandardRestore(like))

    def close(self) -> None:
        self._manager.close()


class EFormer:
    """eFormer's Checkpointer by `save_pytree`; its `on_step(pytree)` raises a TypeError.

    `save_pytree` returns when everything is written. Only temporary steps are deleted, when the
    next one is saved: it keeps one.
    """

    def __init__(self, root: Path, keep: int) -> None:
        self._root, self._keep = root, keep
        self._mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
        every = datetime.timedelta(microseconds=1) if keep == 1 else None
        self._manager = Checkpointer(str(root), every, [])

    def save(self, step: int, state: Any) -> None:
        if self._keep > 1:
            self._manager.save_pytree(state, prefix=ITEM, mesh=self._mesh, step=step)
            return

        def save(destination: str, mesh: Any, _: dict[str, Any]) -> None:
            self._manager.save_pytree(
                state, prefix=ITEM, mesh=mesh, step=step, destination=destination, temporary=True
            )

        self._manager.on_step(self._mesh, step=step, true_callbacks=[save])

    def wait(self) -> None:
        self._manager.wait_until_finished()

    def latest(self) -> int | None:
        from eformer.serialization.checkpointer import find_latest_checkpoint

        path = find_latest_checkpoint(str(self._root))
        return None if path is None else int(path.rsplit("-", 1)[1])

    def restore(self, like: Any) -> tuple[int, Any]:
        tree, extras = self._manager.load_pytree(
            self._mesh, prefix=ITEM, load_treedef=True, template=like
        )
        return extras["step"], tree

    def close(self) -> None:
        self._manager.wait_until_finished()


MANAGERS: Mapping[str, Callable[[Path, int], Manager]] = {
    CORDWOOD: Cordwood,
    ORBAX: Orbax,
    EFORMER: EFormer,
}


def quiet() -> None:
    """Log nothing, for the rest of the process."""
    for noisy in ("absl", "eformer", "cordwood"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
