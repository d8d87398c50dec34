"""`save(overwrite=True)` of a manager: the newest step is replaced, and is never missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orbax.checkpoint
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.errors import CordwoodError, StepError, UnsupportedLeafError
from cordwood.manager.mirror import Mirror


def tree(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(3, value)}


def value_at(root: Path, step: int) -> float:
    return float(cordwood.load(root / str(step), like=tree(0))["w"][0])


@pytest.mark.parametrize("orbax", [False, True])
@pytest.mark.parametrize("same_manager", [True, False])
def test_the_newest_step_is_replaced_with_its_record(
    orbax: bool, same_manager: bool, tmp_path: Path
) -> None:
    manager = CheckpointManager(tmp_path, save=2, orbax=orbax)
    manager.save(2, tree(1), metrics={"loss": 1.0}, extras={"epoch": 1}, items={"ema": tree(5)})
    if not same_manager:
        manager.close()
        manager = CheckpointManager(tmp_path, save=2, orbax=orbax)
        manager.restore(like=tree(0))
    with manager:
        assert manager.save(2, tree(3), metrics={"loss": 2.0}, overwrite=True) is not None
        manager.wait()
        assert manager.steps() == [2]
        assert manager.metrics(2) == {"loss": 2.0}
        restored = manager.restore(like=tree(0), required=True)
    assert restored.tree["w"][0] == 3
    assert restored.extras is None
    cordwood.verify(tmp_path / "2")
    assert not (tmp_path / "2" / "ema").exists()


def test_a_step_that_is_not_there_is_saved_whatever_the_policy_says(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, save=10) as manager:
        manager.save(0, tree(0))
        assert manager.save(3, tree(1), overwrite=True) is not None
    assert value_at(tmp_path, 3) == 1


def test_the_old_step_stays_if_the_new_one_cannot_be_saved(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, tree(1))
        with pytest.raises(UnsupportedLeafError):
            manager.save(1, {"w": object()}, overwrite=True)
        assert manager.steps() == [1]
    assert value_at(tmp_path, 1) == 1


def test_older_steps_are_not_replaced(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            manager.save(step, tree(step))
        with pytest.raises(StepError, match="step 1 is not newer than step 2"):
            manager.save(1, tree(5), overwrite=True)
    assert value_at(tmp_path, 1) == 1


@pytest.mark.parametrize("tool", ["orbax", "cordwood.save"])
def test_a_step_that_no_manager_saved_is_not_replaced(tool: str, tmp_path: Path) -> None:
    if tool == "orbax":
        with orbax.checkpoint.CheckpointManager(tmp_path) as other:
            other.save(1, args=orbax.checkpoint.args.StandardSave(tree(1)))
    else:
        cordwood.save(tmp_path / "1", tree(1))
    with CheckpointManager(tmp_path) as manager:
        with pytest.raises(CordwoodError, match=r"remove it|move it away|remove what|delete\(1\)"):
            manager.save(1, tree(5), overwrite=True)
        assert manager.steps() == [1]
    assert value_at(tmp_path, 1) == 1


def test_the_error_for_a_step_that_exists_names_the_argument_that_replaces_it(
    tmp_path: Path,
) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, tree(1))
    with CheckpointManager(tmp_path) as manager:
        with pytest.raises(StepError, match="pass overwrite=True to save"):
            manager.save(1, tree(2))
        manager.save(1, tree(2), overwrite=True)
    assert value_at(tmp_path, 1) == 2


def test_a_mirror_gets_the_new_step(tmp_path: Path) -> None:
    root, mirror = tmp_path / "run", tmp_path / "mirror"
    for value in (1, 2):
        with CheckpointManager(root, mirror=Mirror(str(mirror))) as manager:
            manager.save(1, tree(value), overwrite=True)
    assert value_at(mirror, 1) == 2
