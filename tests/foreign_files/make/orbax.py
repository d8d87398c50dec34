"""Checkpoints and runs as Orbax of the environment's version writes them, and restores them.

A case whose name ends in `.run` is a root of steps; the names of its values begin with the step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from tests.foreign_files.make.values import write_values

VERSION = tuple([int(number) for number in ocp.__version__.split(".")])


def tree(step: int = 0) -> dict[str, Any]:
    """Return one leaf of each kind that all versions store, in all kinds of containers."""
    return {
        "params": {
            "dense": {
                "kernel": jnp.arange(24, dtype=jnp.float32).reshape(6, 4) + step,
                "bias": jnp.arange(5, dtype=jnp.bfloat16),
            },
            "embed": np.arange(15, dtype=np.int16).reshape(3, 5),
        },
        "layers": [np.arange(4, dtype=np.float64), {"scale": jnp.full(2, 0.5)}],
        "pair": (jnp.int8(-3), np.zeros(3, np.uint8)),
        "step": 7 + step,
        "rate": 0.1,
        "empty": {},
        "none": None,
    }


def main(folder: Path) -> None:
    pytree(folder / "pytree")
    pytree(folder / "pytree-files", use_ocdbt=False)
    sharded(folder / "sharded")
    if VERSION >= (0, 5):
        pytree(folder / "pytree-zarr3", use_zarr3=True)
    if VERSION < (0, 6):
        aggregated(folder / "aggregated", lambda leaf: True)
        aggregated(folder / "aggregated-in-part", lambda leaf: np.size(leaf) < 10)
        save_args_from_target(folder / "save-args-from-target")
    if VERSION >= (0, 3):
        standard(folder / "standard")
    if VERSION >= (0, 5):
        standard_manager(folder / "standard.run")
        composite(folder / "composite.run")
    legacy_manager(folder / "legacy.run")
    if VERSION[:2] != (0, 3):  # which cannot restore it
        array(folder / "array")
    if VERSION < (0, 3):  # all that follows is written in databases
        import tensorstore

        register = ocp.type_handlers.register_standard_handlers_with_options
        register(use_ocdbt=True, ts_context=tensorstore.Context({"cache_pool#ocdbt": {}}))
        pytree(folder / "pytree-ocdbt", use_ocdbt=True)
    for file in folder.rglob("commit_success.txt"):  # it names the path where it was written
        file.write_text(file.read_text().replace(str(folder), "/golden"))


def pytree(case: Path, **options: Any) -> None:
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options))
    checkpointer.save(case, tree())
    write_values(case, checkpointer.restore(case))


def sharded(case: Path) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", "y"))
    kernel = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), sharding)
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(case, {"kernel": kernel, "zeros": jnp.zeros((4, 2))})
    write_values(case, checkpointer.restore(case))


def aggregated(case: Path, is_aggregated: Any) -> None:
    save_args = jax.tree_util.tree_map(
        lambda leaf: ocp.SaveArgs(aggregate=is_aggregated(leaf)), tree()
    )
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(case, tree(), save_args=save_args)
    write_values(case, checkpointer.restore(case))


def save_args_from_target(case: Path) -> None:
    from flax.training import orbax_utils

    checkpointer = ocp.PyTreeCheckpointer()
    save_args = orbax_utils.save_args_from_target(tree())
    checkpointer.save(case, tree(), save_args=save_args)
    write_values(case, checkpointer.restore(case))


def array(case: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.ArrayCheckpointHandler())
    checkpointer.save(case, jnp.arange(6.0).reshape(2, 3))
    write_values(case, checkpointer.restore(case))


def standard(case: Path) -> None:
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(case, tree())
    if hasattr(checkpointer, "wait_until_finished"):
        checkpointer.wait_until_finished()
    target = [tree()] if VERSION < (0, 4) else []  # which it demanded
    write_values(case, checkpointer.restore(case, *target))


def standard_manager(root: Path) -> None:
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(root, options=options) as manager:
        for step in (100, 200):
            arguments = ocp.args.StandardSave(tree(step))
            manager.save(step, args=arguments, metrics={"loss": 1.0 / step})
        manager.wait_until_finished()
        restore = ocp.args.StandardRestore()
        write_values(root, {step: manager.restore(step, args=restore) for step in (100, 200)})


def composite(root: Path) -> None:
    with ocp.CheckpointManager(root, item_names=("state", "extra")) as manager:
        arguments = ocp.args.Composite(
            state=ocp.args.PyTreeSave(tree(5)), extra=ocp.args.JsonSave({"epoch": 3})
        )
        manager.save(5, args=arguments)
        manager.wait_until_finished()
        restore = ocp.args.Composite(state=ocp.args.PyTreeRestore())
        write_values(root, {5: manager.restore(5, args=restore)["state"]})


def legacy_manager(root: Path) -> None:
    """Save as most scripts do that were written before `args=` came."""
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    manager = ocp.CheckpointManager(root, ocp.PyTreeCheckpointer(), options)
    for step in (1, 2, 3):
        manager.save(step, tree(step))
    if hasattr(manager, "wait_until_finished"):
        manager.wait_until_finished()
    write_values(root, {step: manager.restore(step) for step in manager.all_steps()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
