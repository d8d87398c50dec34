"""The ways in which a script gets a tree from Orbax, with the version of the environment.

A case is a directory with `one`, a checkpoint; `run`, steps 1 to 3 with metrics, of which the
second is the best; `state-run`, the same steps with the item `state`; `composite`, whose step 5 has
a tree `ema` and JSON `meta` too; and `plain`, a checkpoint for Orbax alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orbax.checkpoint as ocp

from tests.orbax_versions.trees import step_tree

STEPS = (1, 2, 3)
LOSSES = (0.5, 0.25, 0.75)
COMPOSITE_STEP = 5
META = {"epoch": 3, "names": ["a"]}

try:
    from orbax.checkpoint import v1
except ImportError:
    try:
        from orbax.checkpoint.experimental import v1
    except ImportError:
        v1 = None


class Door(NamedTuple):
    """A call that restores the tree of a case; `place` is the entry of the case that it needs."""

    place: str
    restore: Callable[[Path, Any], Any]
    expected: Callable[[Any], Any]


def tree_at(step: int) -> Callable[[Any], Any]:
    """Return what makes the tree of a step of `run`."""
    return lambda tree: step_tree(tree, step)


def standard(path: Path, target: Any) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path)


def standard_with_target(path: Path, target: Any) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, target)


def pytree(path: Path, target: Any) -> Any:
    return ocp.PyTreeCheckpointer().restore(path)


def pytree_with_target(path: Path, target: Any) -> Any:
    restore_args = ocp.checkpoint_utils.construct_restore_args(target)
    return ocp.PyTreeCheckpointer().restore(path, item=target, restore_args=restore_args)


def manager_latest(root: Path, target: Any) -> Any:
    options = ocp.CheckpointManagerOptions(read_only=True)
    with ocp.CheckpointManager(root, options=options) as manager:
        assert sorted(manager.all_steps()) == list(STEPS), manager.all_steps()
        assert manager.latest_step() == STEPS[-1], manager.latest_step()
        return manager.restore(
            manager.latest_step(), args=ocp.args.StandardRestore(step_tree(target, 0))
        )


def manager_best(root: Path, target: Any) -> Any:
    options = ocp.CheckpointManagerOptions(
        best_fn=lambda metrics: metrics["loss"], best_mode="min", read_only=True
    )
    with ocp.CheckpointManager(root, options=options) as manager:
        assert manager.best_step() == 2, manager.best_step()
        return manager.restore(manager.best_step(), args=ocp.args.PyTreeRestore())


def manager_all(root: Path, target: Any) -> Any:
    target = step_tree(target, 0)
    restore_args = ocp.checkpoint_utils.construct_restore_args(target)
    restore = ocp.args.PyTreeRestore(target, restore_args=restore_args)
    with ocp.CheckpointManager(root) as manager:
        return [manager.restore(step, args=restore) for step in sorted(manager.all_steps())]


def manager_composite(root: Path, target: Any) -> Any:
    restore = ocp.args.Composite(
        state=ocp.args.StandardRestore(step_tree(target, 0)),
        ema=ocp.args.PyTreeRestore(),
        meta=ocp.args.JsonRestore(),
    )
    names = ("state", "ema", "meta")  # which Orbax 0.6 does not find in the step
    with ocp.CheckpointManager(root, item_names=names) as manager:
        restored = manager.restore(COMPOSITE_STEP, args=restore)
    assert restored["meta"] == META, restored["meta"]
    return [restored["state"], restored["ema"]]


def v1_load(path: Path, target: Any) -> Any:
    return v1.load(path) if hasattr(v1, "load") else v1.load_pytree(path, checkpointable_name=None)


def v1_load_with_target(path: Path, target: Any) -> Any:
    if hasattr(v1, "load"):
        return v1.load(path, target)
    return v1.load_pytree(path, target, checkpointable_name=None)


def v1_training(root: Path, target: Any) -> Any:
    with v1.training.Checkpointer(root) as checkpointer:
        assert checkpointer.latest.step == STEPS[-1], checkpointer.latest
        if hasattr(checkpointer, "load"):
            return checkpointer.load()
        return checkpointer.load_checkpointables()["state"]


def v1_training_with_target(root: Path, target: Any) -> Any:
    target = step_tree(target, 0)
    with v1.training.Checkpointer(root) as checkpointer:
        assert [each.step for each in checkpointer.checkpoints] == list(STEPS)
        if hasattr(checkpointer, "load"):
            return checkpointer.load(STEPS[0], target)
        return checkpointer.load_checkpointables(STEPS[0], {"state": target})["state"]


def the_tree(tree: Any) -> Any:
    return tree


DOORS = {
    "plain, StandardCheckpointer": Door("plain", standard, the_tree),
    "plain, StandardCheckpointer, target": Door("plain", standard_with_target, the_tree),
    "plain, PyTreeCheckpointer": Door("plain", pytree, the_tree),
    "StandardCheckpointer": Door("one", standard, the_tree),
    "StandardCheckpointer, target": Door("one", standard_with_target, the_tree),
    "PyTreeCheckpointer": Door("one", pytree, the_tree),
    "PyTreeCheckpointer, target": Door("one", pytree_with_target, the_tree),
    "CheckpointManager, latest": Door("run", manager_latest, tree_at(3)),
    "CheckpointManager, best": Door("run", manager_best, tree_at(2)),
    "CheckpointManager, all": Door(
        "run", manager_all, lambda tree: [step_tree(tree, step) for step in STEPS]
    ),
    "CheckpointManager, composite": Door(
        "composite", manager_composite, lambda tree: [step_tree(tree, COMPOSITE_STEP), tree]
    ),
}
if v1 is not None:
    DOORS |= {
        "v1 load": Door("one", v1_load, the_tree),
        "v1 load, target": Door("one", v1_load_with_target, the_tree),
        "v1 training": Door("state-run", v1_training, tree_at(3)),
        "v1 training, target": Door("state-run", v1_training_with_target, tree_at(1)),
    }
