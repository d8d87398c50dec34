"""The calls of CheckpointManager, with Orbax and with cordwood in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.compat.orbax.both import assert_same, both, quiet, steps_on_disk

pytestmark = quiet


def state_at(step: int) -> dict[str, Any]:
    params = {"w": jnp.full((4, 2), float(step)), "b": np.arange(3) + step}
    return {"params": params, "opt": optax.adam(1e-3).init(params), "step": step}


@both
def test_a_loop_with_an_interval_and_a_limit(ocp: Any, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(save_interval_steps=2, max_to_keep=2)
    saved = []
    with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
        assert manager.latest_step() is None
        assert manager.all_steps() == []
        for step in range(1, 8):
            saved.append(manager.save(step, args=ocp.args.StandardSave(state_at(step))))
            assert manager.latest_step() == max(1, step - step % 2)
        manager.wait_until_finished()
        assert saved == [True, True, False, True, False, True, False]
        assert list(manager.all_steps()) == [4, 6]
        assert manager.latest_step() == manager.best_step() == 6
        assert manager.should_save(8)
        assert not manager.should_save(6)
        assert not manager.should_save(9)
        assert str(manager.directory) == str(tmp_path / "run")
        assert not manager.reached_preemption(8)
    assert steps_on_disk(tmp_path / "run") == [4, 6]


@both
def test_the_latest_step_is_restored_like_a_target(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(3, args=ocp.args.StandardSave(state_at(3)))
        manager.save(4, args=ocp.args.StandardSave(state_at(4)))
        manager.wait_until_finished()
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state_at(0))
    with ocp.CheckpointManager(tmp_path) as manager:
        restored = manager.restore(None, args=ocp.args.StandardRestore(abstract))
        assert_same(restored, state_at(4))
        assert_same(manager.restore(3, args=ocp.args.StandardRestore(state_at(0))), state_at(3))


@both
def test_without_a_target_containers_are_plain(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(3, args=ocp.args.PyTreeSave({**state_at(3), "name": "run", "none": None}))
        manager.wait_until_finished()
        restored = manager.restore(3)
    assert set(restored) == {"params", "opt", "step", "name", "none"}
    assert type(restored["opt"]) is list
    assert set(restored["opt"][0]) == {"count", "mu", "nu"}
    assert restored["opt"][1] is None
    assert_same(restored["params"], state_at(3)["params"])
    assert (restored["step"], restored["name"], restored["none"]) == (3, "run", None)


@both
def test_a_composite_has_attributes(ocp: Any, tmp_path: Path) -> None:
    items = ocp.args.Composite(
        state=ocp.args.StandardSave(state_at(5)),
        params=ocp.args.PyTreeSave(state_at(5)["params"]),
        meta=ocp.args.JsonSave({"lr": 0.1, "tags": ["a", None]}),
    )
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.save(5, args=items)
        manager.wait_until_finished()
    with ocp.CheckpointManager(tmp_path) as manager:
        restored = manager.restore(
            5,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(state_at(0)), meta=ocp.args.JsonRestore()
            ),
        )
        assert sorted(restored.keys()) == ["meta", "state"]
        assert_same(restored.state, state_at(5))
        assert restored.meta == restored["meta"] == {"lr": 0.1, "tags": ["a", None]}
        assert "params" not in restored
        with pytest.raises(KeyError):
            _ = restored.params
        with pytest.raises(KeyError):
            manager.restore(5, args=ocp.args.Composite(absent=ocp.args.StandardRestore()))
    with ocp.CheckpointManager(tmp_path) as manager:
        everything = manager.restore(5)
        assert sorted(everything.keys()) == ["meta", "params", "state"]
        assert_same(everything.params, state_at(5)["params"])


@both
def test_the_best_steps_are_kept(ocp: Any, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=2, best_fn=lambda metrics: metrics["loss"], best_mode="min", keep_period=4
    )
    losses = {0: 9.0, 1: 3.0, 2: 5.0, 3: 4.0, 5: 3.0}
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        for step, loss in losses.items():
            manager.save(
                step, args=ocp.args.StandardSave({"w": np.ones(2)}), metrics={"loss": loss}
            )
        manager.wait_until_finished()
        assert list(manager.all_steps()) == [0, 1, 5]
        assert manager.best_step() == 5
        assert manager.latest_step() == 5
        assert manager.metrics(1) == {"loss": 3.0}
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        assert manager.best_step() == 5


@both
def test_an_existing_step_is_refused(ocp: Any, tmp_path: Path) -> None:
    tree = ocp.args.StandardSave({"w": np.ones(2)})
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.save(3, args=tree)
        manager.wait_until_finished()
        assert not manager.save(3, args=tree)
        assert not manager.save(2, args=tree)
        with pytest.raises(ValueError, match="Checkpoint for step 3 already exists"):
            manager.save(3, args=tree, force=True)
        assert list(manager.all_steps()) == [3]


@both
def test_force_saves_whatever_the_interval_is(ocp: Any, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(save_interval_steps=10)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        tree = ocp.args.StandardSave({"w": np.ones(2)})
        assert manager.save(10, args=tree)
        assert not manager.save(13, args=tree)
        assert manager.save(13, args=tree, force=True)
        manager.wait_until_finished()
        assert list(manager.all_steps()) == [10, 13]


@both
def test_deleted_and_missing_steps(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        with pytest.raises(FileNotFoundError):
            manager.restore(None)
        for step in (1, 2):
            manager.save(step, args=ocp.args.StandardSave({"w": np.ones(2)}))
        manager.wait_until_finished()
        manager.delete(1)
        assert list(manager.all_steps()) == [2]
        with pytest.raises(FileNotFoundError):
            manager.delete(1)
        with pytest.raises(FileNotFoundError):
            manager.restore(1, args=ocp.args.StandardRestore())
        manager.reload()
        manager.check_for_errors()
    assert steps_on_disk(tmp_path) == [2]


@both
def test_metadata_of_items(ocp: Any, tmp_path: Path) -> None:
    tree = {"w": jnp.ones((4, 2), jnp.bfloat16), "b": np.arange(3), "n": 7, "t": (jnp.ones(1),)}
    with ocp.CheckpointManager(tmp_path / "one") as manager:
        manager.save(1, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()
        metadata = manager.item_metadata(1)
        assert (metadata["w"].shape, metadata["w"].dtype) == ((4, 2), jnp.bfloat16)
        assert (metadata["b"].shape, metadata["b"].dtype) == ((3,), np.int64)
        assert metadata["n"].dtype == np.int64
        assert metadata["t"][0].shape == (1,)
        assert manager.metadata(1).item_metadata.tree["w"].shape == (4, 2)
    with ocp.CheckpointManager(tmp_path / "two") as manager:
        manager.save(1, args=ocp.args.Composite(state=ocp.args.StandardSave(tree)))
        manager.wait_until_finished()
        assert manager.item_metadata(1).state["b"].shape == (3,)


@both
def test_the_legacy_constructor_with_one_item(ocp: Any, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
    manager = ocp.CheckpointManager(tmp_path / "run", ocp.PyTreeCheckpointer(), options)
    tree = state_at(1)
    save_args = jax.tree.map(lambda _: ocp.SaveArgs(), tree)
    assert manager.save(1, tree, save_kwargs={"save_args": save_args})
    assert steps_on_disk(tmp_path / "run") == [1]  # it waits
    assert_same(manager.restore(1, items=state_at(0)), tree)
    plain = manager.restore(manager.latest_step())
    assert type(plain["opt"]) is list
    restore_args = ocp.checkpoint_utils.construct_restore_args(state_at(0))
    restored = manager.restore(1, state_at(0), restore_kwargs={"restore_args": restore_args})
    assert_same(restored, tree)
    manager.close()


@both
def test_the_legacy_constructor_with_several_items(ocp: Any, tmp_path: Path) -> None:
    checkpointers = {
        "state": ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()),
        "meta": ocp.AsyncCheckpointer(ocp.JsonCheckpointHandler()),
    }
    with ocp.CheckpointManager(tmp_path, checkpointers) as manager:
        assert manager.save(7, {"state": state_at(7), "meta": {"lr": 0.5}})
        manager.wait_until_finished()
        restored = manager.restore(7, items={"state": state_at(0), "meta": None})
        assert_same(restored["state"], state_at(7))
        assert restored["meta"] == {"lr": 0.5}


@both
def test_item_names_and_handlers(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(
        tmp_path / "a", item_names=("params", "meta"), options=ocp.CheckpointManagerOptions()
    ) as manager:
        manager.save(
            1,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave({"w": np.ones(2)}), meta=ocp.args.JsonSave({"x": 1})
            ),
        )
        manager.wait_until_finished()
        assert manager.restore(1).meta == {"x": 1}
    with ocp.CheckpointManager(
        tmp_path / "b", item_handlers=ocp.StandardCheckpointHandler()
    ) as manager:
        manager.save(1, args=ocp.args.StandardSave({"w": np.ones(2)}))
        manager.wait_until_finished()
        assert_same(manager.restore(1), {"w": np.ones(2)})
        with pytest.raises(ValueError, match="Composite"):
            manager.save(2, args=ocp.args.Composite(x=ocp.args.StandardSave({"w": np.ones(2)})))


@both
@pytest.mark.parametrize(
    "call",
    [
        lambda ocp, manager: manager.save(1),
        lambda ocp, manager: manager.save(1, ocp.args.StandardSave({"w": np.ones(2)})),
        lambda ocp, manager: manager.save(1, args={"w": np.ones(2)}),
        lambda ocp, manager: manager.save(1, args=ocp.args.StandardSave(jnp.ones(3))),
        lambda ocp, manager: manager.save(1, args=ocp.args.StandardSave(None)),
    ],
    ids=["nothing", "arguments as items", "a bare tree", "a single array", "None"],
)
def test_wrong_arguments_are_value_errors(ocp: Any, call: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager, pytest.raises(ValueError):
        call(ocp, manager)


@both
def test_policies_say_when_to_save_and_what_to_keep(ocp: Any, tmp_path: Path) -> None:
    policies = ocp.checkpoint_managers
    options = ocp.CheckpointManagerOptions(
        save_decision_policy=policies.AnySavePolicy(
            [policies.FixedIntervalPolicy(3), policies.SpecificStepsPolicy([4, 8])]
        ),
        preservation_policy=policies.AnyPreservationPolicy(
            [policies.LatestN(2), policies.EveryNSteps(4), policies.CustomSteps([3])]
        ),
    )
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        saved = [
            step
            for step in range(1, 14)
            if manager.save(step, args=ocp.args.StandardSave({"w": np.ones(2)}))
        ]
        manager.wait_until_finished()
        assert saved == [3, 4, 6, 8, 9, 12]
        assert list(manager.all_steps()) == [3, 4, 8, 9, 12]


@both
def test_a_save_in_another_directory_is_restored(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as manager:
        manager.save(1, args=ocp.args.StandardSave({"w": np.ones(2)}))
    with ocp.CheckpointManager(tmp_path / "b") as manager:
        restored = manager.restore(
            1, directory=tmp_path / "a", args=ocp.args.StandardRestore({"w": np.zeros(2)})
        )
        assert_same(restored, {"w": np.ones(2)})


@both
def test_read_only_managers_save_nothing(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=ocp.args.StandardSave({"w": np.ones(2)}))
    options = ocp.CheckpointManagerOptions(read_only=True)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        assert not manager.save(2, args=ocp.args.StandardSave({"w": np.ones(2)}))
        manager.delete(1)
        assert list(manager.all_steps()) == [1]


@both
def test_a_tree_that_cannot_be_saved_is_no_step(ocp: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        with pytest.raises((ValueError, TypeError)):
            manager.save(1, args=ocp.args.StandardSave({"w": object()}))
        assert steps_on_disk(tmp_path / "run") == []


@both
def test_items_that_are_no_trees(ocp: Any, tmp_path: Path) -> None:
    args = ocp.args
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=args.Composite(meta=args.JsonSave({"lr": 0.5})))
    with ocp.CheckpointManager(tmp_path) as manager:
        assert dict(manager.restore(1).items()) == {"meta": {"lr": 0.5}}
    with ocp.CheckpointManager(tmp_path) as manager:
        assert list(manager.item_metadata(1).keys()) == ["meta"]
