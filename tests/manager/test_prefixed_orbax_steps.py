"""Steps that Orbax names by `step_prefix` and `step_format_fixed_length` are steps of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.errors import StepError


def tree_of(step: int) -> dict[str, Any]:
    return {"w": np.arange(4.0) + step}


def save_with_orbax(root: Path, *steps: int, **names: Any) -> None:
    options = ocp.CheckpointManagerOptions(
        best_fn=lambda metrics: float(metrics["loss"]), best_mode="min", **names
    )
    with ocp.CheckpointManager(root, options=options) as manager:
        for step in steps:
            args = ocp.args.StandardSave(tree_of(step))
            manager.save(step, args=args, metrics={"loss": 1 / step})


def listed_steps(root: Path) -> list[str]:
    """Return the lines of `cordwood steps`."""
    command = [sys.executable, "-m", "cordwood", "steps", str(root)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("names", "entry"),
    [
        ({"step_prefix": "ckpt"}, "ckpt_200"),
        ({"step_prefix": "ckpt", "step_format_fixed_length": 8}, "ckpt_00000200"),
    ],
)
def test_readers_and_managers_take_them_for_steps(
    tmp_path: Path, names: dict[str, Any], entry: str
) -> None:
    save_with_orbax(tmp_path, 100, 200, **names)
    assert (tmp_path / entry).is_dir()
    reader = StepReader(tmp_path)
    assert reader.steps() == [100, 200]
    assert reader.best("loss") == 200
    assert reader.restore(100, like=tree_of(0)).tree["w"][0] == 100
    assert cordwood.load(tmp_path / "latest", like=tree_of(0))["w"][0] == 200
    assert all("saved by orbax" in line for line in listed_steps(tmp_path))
    with CheckpointManager(tmp_path, keep=1) as manager:
        with pytest.raises(StepError, match=f"remove what another tool saved first: .*{entry}"):
            manager.save(200, tree_of(201))
        restored = manager.restore(like=tree_of(0))
        assert restored is not None
        assert (restored.step, restored.tree["w"][0]) == (200, 200)
        with pytest.raises(StepError, match="step 150 is not newer than step 200"):
            manager.save(150, tree_of(150))
        manager.save(300, tree_of(300))
        manager.save(400, tree_of(400))
        with pytest.raises(StepError, match="it was saved by orbax, and a manager deletes only"):
            manager.delete(200)
    assert StepReader(tmp_path).steps() == [100, 200, 400]
    with ocp.CheckpointManager(
        tmp_path, options=ocp.CheckpointManagerOptions(**names)
    ) as orbax_manager:
        assert {100, 200} <= set(orbax_manager.all_steps())


def test_a_save_that_orbax_has_not_finished_is_no_step(tmp_path: Path) -> None:
    save_with_orbax(tmp_path, 100, step_prefix="ckpt")
    os.rename(tmp_path / "ckpt_100", tmp_path / "ckpt_100.orbax-checkpoint-tmp")
    assert StepReader(tmp_path).steps() == []


def test_what_is_not_a_step_of_orbax_is_none_by_such_a_name(tmp_path: Path) -> None:
    save_with_orbax(tmp_path, 300, step_prefix="weights")  # perhaps an export
    cordwood.save(tmp_path / "ckpt_200", tree_of(200))
    (tmp_path / "step_100").mkdir()
    (tmp_path / "run_50").write_text("a log")
    with pytest.warns(RuntimeWarning, match="there are .*ckpt_200"):
        assert StepReader(tmp_path).restore() is None
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, tree_of(1))
    assert manager.steps() == [1]


def test_two_names_of_one_step_are_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_with_orbax(tmp_path, 100, step_prefix="ckpt")
    with CheckpointManager(tmp_path / "new") as manager:
        manager.save(100, tree_of(7))
    os.rename(tmp_path / "new" / "100", tmp_path / "100")
    reader = StepReader(tmp_path)
    restored = reader.restore(like=tree_of(0))
    assert restored is not None
    assert restored.tree["w"][0] == 7
    assert reader.steps() == [100]
    (text,) = [each.getMessage() for each in caplog.records if "are all step" in each.getMessage()]
    assert text.startswith(f"{tmp_path}: 100 and ckpt_100 are all step 100: 100 is taken for it")
    text = "\n".join(listed_steps(tmp_path))
    assert "100 is step 100, too, and is the one that counts" in text
