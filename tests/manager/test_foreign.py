"""A run moves over from another tool: its steps are restored, and never deleted."""

from __future__ import annotations

import datetime
import os
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import cordwood
from cordwood import CheckpointManager


def tree_of(step: int) -> dict[str, Any]:
    return {"w": jnp.arange(8.0) + step, "b": {"x": jnp.full(3, step, jnp.int32)}}


def save_with_orbax(root: Path, steps: list[int]) -> None:
    with ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions()) as manager:
        for step in steps:
            manager.save(step, args=ocp.args.StandardSave(tree_of(step)))
        manager.wait_until_finished()


def save_with_flax(root: Path, steps: list[int]) -> None:
    import flax.serialization

    root.mkdir()
    for step in steps:  # as flax.training.checkpoints has it
        data = flax.serialization.to_bytes(jax.tree.map(np.asarray, tree_of(step)))
        (root / f"checkpoint_{step}").write_bytes(data)


def save_with_eformer(root: Path, steps: list[int]) -> None:
    from eformer.serialization import Checkpointer

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    checkpointer = Checkpointer(str(root), datetime.timedelta(hours=1), [])
    for step in steps:
        checkpointer.save_pytree(tree_of(step), prefix="model", mesh=mesh, step=step)


WRITERS = {
    "Orbax": (save_with_orbax, "{}"),
    "Flax": (save_with_flax, "checkpoint_{}"),
    "eFormer": (save_with_eformer, "run-{}"),
}


@pytest.mark.parametrize("tool", WRITERS)
def test_a_run_moves_over(tmp_path: Path, tool: str) -> None:
    write, name = WRITERS[tool]
    root = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tool's own
        write(root, [90, 100])
    with CheckpointManager(root, keep=1) as manager:
        assert manager.steps() == [90, 100]
        restored = manager.restore(like=tree_of(0))
        assert restored is not None
        assert restored.step == 100
        assert (restored.tree["w"] == tree_of(100)["w"]).all()
        assert (restored.tree["b"]["x"] == 100).all()
        assert (manager.restore(90, like=tree_of(0)).tree["b"]["x"] == 90).all()
        with pytest.raises(cordwood.StepError, match="step 95 is not newer than step 100"):
            manager.save(95, tree_of(95))
        manager.save(110, tree_of(110))
        manager.save(120, tree_of(120))
    assert manager.steps() == [90, 100, 120]
    assert str(manager.plan()).splitlines()[0].startswith(" 90  keep    saved by ")
    assert tool.lower() in str(manager.plan()).splitlines()[0].lower()
    assert {name.format(90), name.format(100), "120"} <= set(os.listdir(root))
    assert "110" not in os.listdir(root)


def test_what_is_no_step_of_theirs(tmp_path: Path) -> None:
    for name in ("run-3", "checkpoint_4", "run-x", "7.orbax-checkpoint-tmp-1", "5"):
        (tmp_path / name).mkdir()
    (tmp_path / "run-3" / "tensorstore_index.json").write_text("{}")  # not finished
    (tmp_path / "6").write_text("")
    manager = CheckpointManager(tmp_path)
    assert manager.steps() == []
    assert manager.restore() is None


def test_one_that_is_a_file_can_be_deleted(tmp_path: Path) -> None:
    save_with_flax(tmp_path / "run", [90, 100])
    manager = CheckpointManager(tmp_path / "run")
    manager.delete(90)
    assert os.listdir(tmp_path / "run") == ["checkpoint_100"]
