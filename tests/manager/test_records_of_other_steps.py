"""A directory that is named as one step and holds another is damage: it is never believed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.cli.main import cli
from cordwood.errors import CorruptionError


def tree_of(step: int) -> dict[str, Any]:
    return {"w": np.ones(3) * step, "step": step}


def save(root: Path, *steps: int) -> CheckpointManager:
    manager = CheckpointManager(root, keep=2)
    for step in steps:
        manager.save(step, tree_of(step), metrics={"loss": 1 / (1 + step)})
    manager.wait()
    return manager


@pytest.mark.parametrize("name", ["7", "checkpoint_7", "0007"])
def test_a_copy_of_another_step_is_passed_over(tmp_path: Path, name: str) -> None:
    save(tmp_path, 1, 2)
    shutil.copytree(tmp_path / "1", tmp_path / name)
    reader = StepReader(tmp_path)
    assert reader.steps() == [1, 2]
    assert reader.latest() == 2
    with pytest.warns(
        RuntimeWarning, match=rf"step 7 is passed over: damaged: {name} holds step 1: .* rename it"
    ):
        restored = reader.restore(required=True)
    assert (restored.step, restored.tree["step"]) == (2, 2)
    with pytest.raises(CorruptionError, match=rf"/{name}: step 7 is damaged: {name} holds step 1"):
        reader.restore(7)
    with pytest.raises(CorruptionError, match="holds step 1"):
        reader.metrics(7)
    os.rename(tmp_path / name, tmp_path / "moved")
    assert StepReader(tmp_path).restore(required=True).step == 2
    assert cordwood.load(tmp_path / "moved")["step"] == 1


def test_a_renamed_step_alone_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, 1)
    os.rename(tmp_path / "1", tmp_path / "7")
    with (
        pytest.warns(RuntimeWarning, match="step 7 is passed over"),
        pytest.raises(CorruptionError, match="no step can be restored"),
    ):
        StepReader(tmp_path).restore()
    os.rename(tmp_path / "7", tmp_path / "1")
    assert StepReader(tmp_path).restore(required=True).step == 1


def test_it_counts_for_no_policy_and_can_be_saved_anew(tmp_path: Path) -> None:
    manager = save(tmp_path, 1, 2)
    shutil.copytree(tmp_path / "1", tmp_path / "7")
    assert manager.best("loss") == 2
    assert "damaged: 7 holds step 1" in str(manager.plan())
    with manager:
        manager.save(5, tree_of(5))
        manager.wait()
        assert manager.steps() == [2, 5]
        assert (tmp_path / "7").exists()
        manager.save(7, tree_of(7))
    assert StepReader(tmp_path).restore(required=True).tree["step"] == 7


def test_verify_and_steps_say_so(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    shutil.copytree(tmp_path / "1", tmp_path / "7")
    assert cordwood.verify(tmp_path / "1").verified_bytes
    with pytest.raises(CorruptionError, match="7 holds step 1: it is a copy of that"):
        cordwood.verify(tmp_path / "7")
    result = CliRunner().invoke(cli, ["steps", str(tmp_path), "--json"])
    *_, last = json.loads(result.stdout)["steps"]
    assert last["name"] == "7"
    assert last["problem"].startswith("damaged: 7 holds step 1")
    assert result.exit_code == 1


def test_steps_lists_what_a_manager_restores(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    cordwood.save(tmp_path / "ckpt_3", tree_of(3))
    result = CliRunner().invoke(cli, ["steps", str(tmp_path), "--json"])
    notes = {each["name"]: each["note"] for each in json.loads(result.stdout)["steps"]}
    assert [name for name, note in notes.items() if not note] == ["1", "2"]
    assert notes["ckpt_3"].startswith(
        "CheckpointManager does not restore it: it reads the names 100, "
    )
    assert StepReader(tmp_path).steps() == [1, 2]
