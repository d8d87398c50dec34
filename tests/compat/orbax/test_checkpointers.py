"""The calls of checkpointers, with Orbax and with cordwood in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compat.orbax.both import assert_same, both, quiet

pytestmark = quiet


def small() -> dict[str, Any]:
    return {"a": jnp.arange(4.0), "b": np.arange(3)}


@both
def test_a_tree_by_the_standard_checkpointer(ocp: Any, tmp_path: Path) -> None:
    path = tmp_path / "tree"
    with ocp.StandardCheckpointer() as checkpointer:
        assert checkpointer.save(path, small()) is None
        checkpointer.wait_until_finished()
        assert_same(checkpointer.restore(path), small())
        assert_same(checkpointer.restore(path, small()), small())
        with pytest.raises(ValueError, match=r"Destination .* already exists"):
            checkpointer.save(path, small())
        checkpointer.save(path, {"c": np.ones(2)}, force=True)
        checkpointer.wait_until_finished()
        assert_same(checkpointer.restore(path), {"c": np.ones(2)})
        with pytest.raises(FileNotFoundError):
            checkpointer.restore(tmp_path / "absent")
        metadata = checkpointer.metadata(path).item_metadata
        assert (metadata["c"].shape, metadata["c"].dtype) == ((2,), np.float64)


@both
@pytest.mark.parametrize("make", ["PyTreeCheckpointer", "Checkpointer", "AsyncCheckpointer"])
def test_a_tree_by_other_checkpointers(ocp: Any, make: str, tmp_path: Path) -> None:
    arguments = () if make == "PyTreeCheckpointer" else (ocp.PyTreeCheckpointHandler(),)
    with getattr(ocp, make)(*arguments) as checkpointer:
        checkpointer.save(tmp_path / "one", small())
        checkpointer.save(tmp_path / "two", args=ocp.args.PyTreeSave(small()))
        if make == "AsyncCheckpointer":
            checkpointer.wait_until_finished()
        assert (tmp_path / "two").is_dir()
        assert_same(checkpointer.restore(tmp_path / "one"), small())
        assert_same(checkpointer.restore(tmp_path / "two", item=small()), small())
        assert_same(
            checkpointer.restore(tmp_path / "two", args=ocp.args.PyTreeRestore(small())), small()
        )


@both
def test_several_items_in_one_checkpoint(ocp: Any, tmp_path: Path) -> None:
    handler = ocp.CompositeCheckpointHandler("state", "params", "meta")
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(
            tmp_path / "all",
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(small()),
                params=ocp.args.StandardSave({"w": np.ones(2)}),
                meta=ocp.args.JsonSave({"lr": 0.5}),
            ),
        )
        restored = checkpointer.restore(
            tmp_path / "all",
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(small()), meta=ocp.args.JsonRestore()
            ),
        )
        assert_same(restored.state, small())
        assert restored["meta"] == {"lr": 0.5}


@both
def test_json_alone(ocp: Any, tmp_path: Path) -> None:
    with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "json", args=ocp.args.JsonSave({"lr": [0.5, None]}))
        assert checkpointer.restore(tmp_path / "json") == {"lr": [0.5, None]}


@both
def test_an_array_alone(ocp: Any, tmp_path: Path) -> None:
    with ocp.Checkpointer(ocp.ArrayCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "array", args=ocp.args.ArraySave(jnp.arange(3)))
        restored = checkpointer.restore(tmp_path / "array", args=ocp.args.ArrayRestore())
        assert np.asarray(restored).tolist() == [0, 1, 2]


@both
@pytest.mark.parametrize(
    "target",
    [
        {"a": jnp.zeros(5), "b": np.zeros(3, int)},
        {"a": jnp.zeros(4)},
        {"a": jnp.zeros(4), "b": np.zeros(3, int), "c": jnp.zeros(1)},
        {"a": jnp.zeros(4), "b": 1},
    ],
    ids=["another shape", "a leaf less", "a leaf more", "a number"],
)
def test_a_target_that_does_not_fit_is_a_value_error(ocp: Any, target: Any, tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", small())
        checkpointer.wait_until_finished()
        with pytest.raises(ValueError):
            checkpointer.restore(tmp_path / "tree", target)


@both
@pytest.mark.parametrize(
    ("stored", "target"),
    [
        (1, jnp.zeros(3)),
        ("text", np.zeros(3)),
        ("text", 1.0),
        (np.ones(3), "text"),
        (jax.random.split(jax.random.key(1), 4), jax.random.key(0)),
        (jax.random.split(jax.random.key(1), 4), jnp.zeros(4)),
    ],
    ids=["number", "text", "text for a number", "array", "keys", "keys for an array"],
)
def test_a_leaf_of_another_kind_or_shape_is_a_value_error(
    ocp: Any, stored: Any, target: Any, tmp_path: Path
) -> None:
    ocp.PyTreeCheckpointer().save(tmp_path / "tree", {"x": stored})
    with ocp.StandardCheckpointer() as checkpointer, pytest.raises(ValueError):
        checkpointer.restore(tmp_path / "tree", {"x": target})


@both
def test_keys_are_restored_like_keys(ocp: Any, tmp_path: Path) -> None:
    keys = jax.random.split(jax.random.key(1), 4)
    ocp.PyTreeCheckpointer().save(tmp_path / "tree", {"x": keys})
    target = {"x": jax.random.split(jax.random.key(0), 4)}
    with ocp.StandardCheckpointer() as checkpointer:
        assert_same(checkpointer.restore(tmp_path / "tree", target), {"x": keys})


@both
def test_without_strict_arrays_are_padded_and_cut(ocp: Any, tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", {"a": jnp.ones((2, 3)), "b": jnp.ones(4)})
        checkpointer.wait_until_finished()
        target = {"a": jnp.zeros((3, 2)), "b": jnp.zeros(6)}
        restored = checkpointer.restore(tmp_path / "tree", target, strict=False)
        assert restored["a"].tolist() == [[1, 1], [1, 1], [0, 0]]
        assert restored["b"].tolist() == [1, 1, 1, 1, 0, 0]


@both
def test_dtypes_and_kinds_of_the_target(ocp: Any, tmp_path: Path) -> None:
    tree = {"f": jnp.arange(3.0), "n": np.arange(3.0), "i": 3, "z": jnp.int32(4)}
    target = {
        "f": jax.ShapeDtypeStruct((3,), jnp.bfloat16),
        "n": jnp.zeros(3, jnp.float32),
        "i": 0,
        "z": np.zeros((), np.int64),
    }
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", tree)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "tree", target)
    assert_same(
        restored,
        {
            "f": jnp.arange(3, dtype=jnp.bfloat16),
            "n": jnp.arange(3.0),
            "i": 3,
            "z": np.asarray(4, np.int64),
        },
    )


@both
def test_restore_args_say_types_and_dtypes(ocp: Any, tmp_path: Path) -> None:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", {"a": jnp.ones(4), "b": np.ones(3), "c": jnp.ones(2)})
        restored = checkpointer.restore(
            tmp_path / "tree",
            restore_args={
                "a": ocp.RestoreArgs(restore_type=np.ndarray, dtype=np.float64),
                "b": ocp.ArrayRestoreArgs(dtype=jnp.float32, sharding=device),
                "c": ocp.ArrayRestoreArgs(
                    mesh=mesh,
                    mesh_axes=jax.sharding.PartitionSpec("x"),
                    global_shape=(3,),
                    strict=False,
                ),
            },
        )
    expected = {"a": np.ones(4), "b": jnp.ones(3), "c": jnp.asarray([1.0, 1.0, 0.0])}
    assert_same(restored, expected)
    assert restored["c"].sharding.spec == jax.sharding.PartitionSpec("x")


@both
def test_an_item_gives_the_structure_alone(ocp: Any, tmp_path: Path) -> None:
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", {"t": (jnp.ones(4), [np.ones(3)])})
        item = {"t": (jnp.zeros(1), [jnp.zeros(1)])}
        restored = checkpointer.restore(tmp_path / "tree", item=item)
        assert_same(restored, {"t": (jnp.ones(4), [np.ones(3)])})


@both
def test_parts_of_a_tree(ocp: Any, tmp_path: Path) -> None:
    args = ocp.args
    part, more = {"a": jnp.zeros(4)}, {**small(), "z": jnp.full(2, 7.0)}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", small())
        for item, expected in [(part, {"a": small()["a"]}), (more, {**more, **small()})]:
            restored = checkpointer.restore(
                tmp_path / "tree", args=args.PyTreeRestore(item, partial_restore=True)
            )
            assert_same(restored, expected)
            restore_args = ocp.checkpoint_utils.construct_restore_args(item)
            restored = checkpointer.restore(
                tmp_path / "tree", item=item, restore_args=restore_args, transforms={}
            )
            assert_same(restored, expected)
        with_placeholder = args.PyTreeRestore({"a": jnp.zeros(4), "b": ocp.PLACEHOLDER})
        restored = checkpointer.restore(tmp_path / "tree", args=with_placeholder)
        assert restored["b"] is ...


@both
def test_a_cast_while_saving(ocp: Any, tmp_path: Path) -> None:
    save_args = {"a": ocp.SaveArgs(dtype=jnp.dtype(jnp.bfloat16)), "b": ocp.SaveArgs()}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", small(), save_args=save_args)
        assert checkpointer.restore(tmp_path / "tree")["a"].dtype == jnp.bfloat16


@both
def test_version_1_saves_and_loads(ocp: Any, tmp_path: Path) -> None:
    v1 = ocp.v1
    v1.save(tmp_path / "one", small())
    assert_same(v1.load(tmp_path / "one", small()), small())
    plain = v1.load(tmp_path / "one")
    assert jax.tree.map(lambda x: x.tolist(), plain) == {"a": [0, 1, 2, 3], "b": [0, 1, 2]}
    with pytest.raises(ValueError):
        v1.save(tmp_path / "one", small())
    v1.save(tmp_path / "one", {"c": np.ones(2)}, overwrite=True)
    assert_same(v1.load_pytree(tmp_path / "one"), {"c": np.ones(2)})
    response = v1.save_async(tmp_path / "two", small())
    response.result()
    assert_same(v1.load(tmp_path / "two", small()), small())
    v1.save_checkpointables(tmp_path / "all", {"x": small(), "y": {"w": np.ones(1)}})
    assert_same(v1.load_checkpointables(tmp_path / "all", {"x": small()}), {"x": small()})
    assert sorted(v1.load_checkpointables(tmp_path / "all")) == ["x", "y"]


@both
def test_version_1_finds_a_tree_by_its_usual_name(ocp: Any, tmp_path: Path) -> None:
    v1 = ocp.v1
    trees = {"state": {"w": np.ones(2)}, "ema": {"w": np.zeros(2)}}
    v1.save_checkpointables(tmp_path / "all", trees)
    assert_same(v1.load(tmp_path / "all"), trees["state"])
    assert_same(v1.load(tmp_path / "all", checkpointable_name="state"), trees["state"])
    assert_same(v1.load(tmp_path / "all", checkpointable_name="ema"), trees["ema"])
    v1.save(tmp_path / "one", trees["ema"])
    assert_same(v1.load_checkpointables(tmp_path / "one"), {"state": trees["ema"]})
    target = {"state": trees["state"]}
    assert_same(v1.load_checkpointables(tmp_path / "one", target), {"state": trees["ema"]})


@both
def test_the_steps_of_version_1(ocp: Any, tmp_path: Path) -> None:
    training = ocp.v1.training
    checkpointer: Any
    with training.Checkpointer(
        tmp_path,
        save_decision_policy=training.save_decision_policies.FixedIntervalPolicy(2),
        preservation_policy=training.preservation_policies.LatestN(2),
    ) as checkpointer:
        before = checkpointer.latest
        assert before is None
        saved = [checkpointer.save(step, small(), metrics={"x": step}) for step in range(7)]
        assert saved == [True, False, True, False, True, False, True]
        assert [each.step for each in checkpointer.checkpoints] == [4, 6]
        assert checkpointer.latest.step == 6
        assert checkpointer.latest.metrics == {"x": 6}
        assert str(checkpointer.latest.path) == str(tmp_path / "6")
        assert_same(checkpointer.load(abstract_state=small()), small())
        assert_same(checkpointer.load(checkpointer.checkpoints[0], small()), small())
        with pytest.raises(FileExistsError):
            checkpointer.save(6, small())
        assert checkpointer.save(6, {"c": np.ones(1)}, overwrite=True)
        assert_same(checkpointer.load(6), {"c": np.ones(1)})
        with pytest.raises(FileNotFoundError):
            checkpointer.load(5)
        assert checkpointer.should_save(8)
        assert not checkpointer.should_save(9)
        response = checkpointer.save_checkpointables_async(8, {"x": small(), "y": {"w": 1}})
        assert response.result()
        assert_same(checkpointer.load_checkpointables(8, {"x": small()})["x"], small())
        checkpointer.delete(8)
        assert checkpointer.latest.step == 6
