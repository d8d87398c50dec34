"""Steps that Orbax names by a prefix or with padding: read, or named in a warning, and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.errors import StepError


def save(root: Path, **options: Any) -> None:
    with ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions(**options)) as manager:
        for step in (90, 100):
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(3, step)}))
        manager.wait_until_finished()


READ: dict[str, dict[str, Any]] = {
    "00000100": {"step_format_fixed_length": 8},
    "checkpoint_100": {"step_prefix": "checkpoint"},
    "step_100": {"step_prefix": "step"},
    "ckpt_00000100": {"step_prefix": "ckpt", "step_format_fixed_length": 8},
    "checkpoint_00000100": {"step_prefix": "checkpoint", "step_format_fixed_length": 8},
}


@pytest.mark.parametrize("name", READ)
def test_padded_steps_are_restored_and_not_replaced(tmp_path: Path, name: str) -> None:
    save(tmp_path, **READ[name])
    assert (tmp_path / name).is_dir()
    before = set(tmp_path.rglob("*"))
    with CheckpointManager(tmp_path, keep=1) as manager:
        restored = manager.restore()
        assert restored is not None
        assert (restored.step, restored.tree["w"].tolist()) == (100, [100, 100, 100])
        for step in (0, 95):
            with pytest.raises(StepError, match=f"step {step} is not newer than step 100"):
                manager.save(step, {"w": jnp.ones(3)})
        manager.save(100, {"w": jnp.ones(3)})  # it has just been restored: nothing is saved
        assert not (tmp_path / "100").exists()
        manager.save(110, {"w": jnp.ones(3)})
        manager.save(120, {"w": jnp.ones(3)})
    assert manager.steps() == [90, 100, 120]
    assert before <= set(tmp_path.rglob("*"))


@pytest.mark.parametrize("prefix", ["weights", "model"])
def test_steps_of_another_prefix_are_named_and_stay(tmp_path: Path, prefix: str) -> None:
    save(tmp_path, step_prefix=prefix)
    before = set(tmp_path.rglob("*"))
    with CheckpointManager(tmp_path, keep=1) as manager:
        with pytest.warns(RuntimeWarning, match=f"nothing is restored, and there are {prefix}_90"):
            assert manager.restore() is None
        with pytest.raises(FileNotFoundError, match=f"{prefix}_100 is an Orbax checkpoint"):
            manager.restore(required=True)
        manager.save(0, {"w": jnp.ones(3)})
        manager.save(1, {"w": jnp.ones(3)})
    assert before <= set(tmp_path.rglob("*"))
    assert cordwood.load(tmp_path / f"{prefix}_100")["w"].tolist() == [100, 100, 100]
    (tmp_path / f"{prefix}_100").rename(tmp_path / "100")  # as the warning says
    assert CheckpointManager(tmp_path).restore(100).tree["w"].tolist() == [100, 100, 100]
