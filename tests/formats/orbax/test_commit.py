"""Steps of Orbax that were killed before their commit, where Orbax does not rename."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint._src.path import atomicity

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.errors import CordwoodError, IncompleteCheckpointError


@pytest.fixture(params=[atomicity.CommitFileTemporaryPath, atomicity.AtomicRenameTemporaryPath])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a run of two steps, of one of the two ways in which Orbax commits."""
    options = ocp.CheckpointManagerOptions(temporary_path_class=request.param)
    with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.StandardSave({"w": np.full(3, step)}))
        manager.wait_until_finished()
    return tmp_path / "run"


def assert_not_committed(root: Path) -> None:
    reader = StepReader(root)
    assert reader.steps() == [1]
    with pytest.warns(RuntimeWarning, match="/2: the save of step 2 did not finish; it is pass"):
        restored = reader.restore()
    assert restored is not None
    assert restored.tree["w"].tolist() == [1, 1, 1]
    for read in (cordwood.load, cordwood.open, cordwood.verify):
        with pytest.raises(IncompleteCheckpointError, match=r"/2: Orbax did not finish this save"):
            read(root / "2")
    files = sorted(root.rglob("*"))
    with CheckpointManager(root) as manager:
        with pytest.raises(CordwoodError, match="Orbax has written, which cordwood on"):
            manager.save(2, {"w": np.ones(3)})
        manager.save(3, {"w": np.ones(3)})
    assert set(files) <= set(root.rglob("*"))


def test_whole_steps_are_restored(root: Path) -> None:
    assert StepReader(root).steps() == [1, 2]
    assert cordwood.load(root / "2")["w"].tolist() == [2, 2, 2]
    assert cordwood.load(root / "2" / "default")["w"].tolist() == [2, 2, 2]


def test_a_step_without_the_commit_file_that_its_items_have(root: Path) -> None:
    (root / "2" / "commit_success.txt").unlink()
    assert_not_committed(root)
    (root / "2" / "commit_success.txt").touch()  # the remedy of the message
    assert cordwood.load(root / "2")["w"].tolist() == [2, 2, 2]


def test_a_step_without_the_time_of_a_commit(root: Path) -> None:
    """Killed while its items were written."""
    for file in (root / "2").rglob("commit_success.txt"):
        file.unlink()
    assert StepReader(root).steps() == [1, 2]  # as older versions write it
    edit(root / "2" / "_CHECKPOINT_METADATA", commit_timestamp_nsecs=None)
    assert_not_committed(root)


def test_nothing_but_a_step_that_was_not_committed(root: Path) -> None:
    (root / "1").rename(root.parent / "1")
    (root / "2" / "commit_success.txt").unlink()
    with pytest.warns(RuntimeWarning, match="the save of step 2 did not finish; it is passed over"):
        assert StepReader(root).restore() is None


def edit(path: Path, **members: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))
