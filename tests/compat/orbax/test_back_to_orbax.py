"""Steps that scripts have saved with the replacement, restored by Orbax itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint

import cordwood.compat.orbax as ocp
from tests.compat.orbax.both import assert_same, quiet, steps_on_disk

pytestmark = quiet


def state() -> dict[str, Any]:
    return {"w": jnp.ones((4, 2), jnp.bfloat16), "t": (jnp.arange(3),), "n": 3}


def test_single_items(tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["acc"])
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        for step in (1, 2):
            metrics = {"acc": 1 / step}
            manager.save(step, args=ocp.args.StandardSave(state()), metrics=metrics)
    peer_options = orbax.checkpoint.CheckpointManagerOptions(
        best_fn=lambda metrics: metrics["acc"], max_to_keep=2
    )
    with orbax.checkpoint.CheckpointManager(tmp_path, options=peer_options) as manager:
        assert (list(manager.all_steps()), manager.best_step()) == ([1, 2], 1)
        args = orbax.checkpoint.args
        assert_same(manager.restore(2, args=args.StandardRestore(state())), state())
        manager.save(3, args=args.StandardSave(state()), metrics={"acc": 2.0})
        manager.wait_until_finished()
        assert list(manager.all_steps()) == [1, 3]
    assert steps_on_disk(tmp_path) == [1, 3]
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.all_steps() == [1, 3]
        assert_same(manager.restore(3, args=ocp.args.StandardRestore(state())), state())


def test_composites(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        items = ocp.args.Composite(
            meta=ocp.args.JsonSave({"lr": 0.5}),
            state=ocp.args.StandardSave(state()),
            params=ocp.args.PyTreeSave({"w": np.ones(2)}),
        )
        manager.save(1, args=items)
    with orbax.checkpoint.CheckpointManager(tmp_path) as manager:
        restored = manager.restore(1)
        assert sorted(restored.keys()) == ["meta", "params", "state"]
        assert restored.meta == {"lr": 0.5}
        assert_same(restored.params, {"w": np.ones(2)})
        args = orbax.checkpoint.args
        target = args.Composite(state=args.StandardRestore(state()))
        assert_same(manager.restore(1, args=target).state, state())


def test_items_that_are_no_trees(tmp_path: Path) -> None:
    save = ocp.args.JsonSave({"lr": 0.5})
    with ocp.CheckpointManager(tmp_path / "several") as manager:
        manager.save(1, args=ocp.args.Composite(meta=save))
    with ocp.CheckpointManager(tmp_path / "single") as manager:
        manager.save(1, args=save)
    with orbax.checkpoint.CheckpointManager(tmp_path / "several") as manager:
        assert manager.restore(1).meta == {"lr": 0.5}
    with orbax.checkpoint.CheckpointManager(tmp_path / "single") as manager:
        assert manager.restore(1, args=orbax.checkpoint.args.JsonRestore()) == {"lr": 0.5}


def test_the_items_of_a_step_are_checkpoints_for_both(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path, item_names=("params", "opt")) as manager:
        items = ocp.args.Composite(
            params=ocp.args.PyTreeSave({"w": jnp.ones(2)}),
            opt=ocp.args.PyTreeSave({"mu": jnp.zeros(2)}),
        )
        manager.save(1, args=items)
    target = {"w": jnp.zeros(2)}
    for module in (orbax.checkpoint, ocp):
        restore_args = module.checkpoint_utils.construct_restore_args(target)
        restored = module.PyTreeCheckpointer().restore(
            tmp_path / "1" / "params", item=target, restore_args=restore_args
        )
        assert_same(restored, {"w": jnp.ones(2)})
    assert_same(ocp.PyTreeCheckpointer().restore(tmp_path / "1" / "opt"), {"mu": jnp.zeros(2)})


def test_the_legacy_form(tmp_path: Path) -> None:
    manager = ocp.CheckpointManager(tmp_path, ocp.PyTreeCheckpointer())
    manager.save(1, state())
    manager.close()
    peer = orbax.checkpoint.CheckpointManager(tmp_path, orbax.checkpoint.PyTreeCheckpointer())
    restore_args = orbax.checkpoint.checkpoint_utils.construct_restore_args(state())
    restored = peer.restore(1, items=state(), restore_kwargs={"restore_args": restore_args})
    assert_same(restored, state())
    peer.close()


def test_the_steps_of_version_1(tmp_path: Path) -> None:
    with ocp.v1.training.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state(), metrics={"loss": 1.0})
        checkpointer.save_checkpointables(2, {"state": state(), "ema": {"w": np.ones(2)}})
    with orbax.checkpoint.v1.training.Checkpointer(tmp_path) as checkpointer:
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state())
        assert_same(checkpointer.load(1, abstract), state())
        loaded = checkpointer.load_checkpointables(2, {"state": abstract, "ema": None})
        assert_same(loaded["state"], state())
        assert_same(loaded["ema"], {"w": np.ones(2)})


def test_single_checkpoints(tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "standard", state())
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        assert_same(checkpointer.restore(tmp_path / "standard", state()), state())
    ocp.v1.save(tmp_path / "v1", state())
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state())
    assert_same(orbax.checkpoint.v1.load(tmp_path / "v1", abstract), state())
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        trees = ocp.args.Composite(
            a=ocp.args.StandardSave(state()), b=ocp.args.StandardSave({"w": np.ones(1)})
        )
        checkpointer.save(tmp_path / "several", args=trees)
    handler = orbax.checkpoint.CompositeCheckpointHandler()
    with orbax.checkpoint.Checkpointer(handler) as checkpointer:
        args = orbax.checkpoint.args
        target = args.Composite(a=args.StandardRestore(state()), b=args.StandardRestore())
        restored = checkpointer.restore(tmp_path / "several", args=target)
        assert_same(restored.a, state())
        assert_same(restored.b, {"w": np.ones(1)})


def test_a_step_keeps_the_name_of_its_tree_for_orbax(tmp_path: Path) -> None:
    """A job of cordwood's manager restores an item of Orbax by prefix=, and goes back later."""
    import cordwood

    args = orbax.checkpoint.args
    with orbax.checkpoint.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=args.Composite(state=args.StandardSave(state())))
    with cordwood.CheckpointManager(tmp_path, orbax=True) as cordwood_manager:
        restored = cordwood_manager.restore(like=state(), prefix="state", required=True)
        cordwood_manager.save(2, restored.tree)
    with orbax.checkpoint.CheckpointManager(tmp_path) as manager:
        target = args.Composite(state=args.StandardRestore(state()))
        assert_same(manager.restore(2, args=target).state, state())


def test_a_run_in_an_object_store(tmp_path: Path) -> None:
    with ocp.CheckpointManager("memory://compat/run") as manager:
        manager.save(1, args=ocp.args.StandardSave(state()))
        assert manager.latest_step() == 1
        assert_same(manager.restore(None, args=ocp.args.StandardRestore(state())), state())
        assert manager.directory == "memory://compat/run"
