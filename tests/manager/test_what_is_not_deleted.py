"""Nothing is deleted that a run may still need: steps of newer versions, of other tools, links."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from unittest.mock import patch

import flax.serialization
import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.errors import IncompleteCheckpointError, StepError, UnsupportedFormatError
from cordwood.formats.packs.cordwood_json import decode_index, encode_index
from cordwood.formats.step_record import KEY
from cordwood.storage import syscalls
from tests.manager.test_manager import break_data, cut_short

TREE = {"w": np.arange(4.0)}
FULL = patch("cordwood.storage.local_transaction.fill_file", side_effect=OSError(28, "full"))


def saved(root: Path, *steps: int) -> CheckpointManager:
    with CheckpointManager(root) as manager:
        for step in steps:
            manager.save(step, {"w": np.full(4, float(step))}, metrics={"loss": step})
    return manager


def newer_index(folder: Path) -> None:
    index = folder / "cordwood.json"
    index.write_bytes(index.read_bytes().replace(b'"version":1,', b'"version":2,', 1))


def newer_record(folder: Path) -> None:
    index = folder / "cordwood.json"
    items = decode_index(index.read_bytes())
    text = items[""]["metadata"][KEY]
    items[""]["metadata"][KEY] = text.replace('{"version":1,', '{"version":2,"new":0,')
    index.write_bytes(encode_index(items))


@pytest.mark.parametrize("make_newer", [newer_index, newer_record])
def test_a_step_of_a_newer_version_is_not_damage(tmp_path: Path, make_newer: object) -> None:
    saved(tmp_path, 10, 20)
    assert callable(make_newer)
    make_newer(tmp_path / "20")
    manager = CheckpointManager(tmp_path, keep=1)
    for ask in (manager.restore, lambda: manager.restore(20)):
        with pytest.raises(UnsupportedFormatError, match="version 2 is newer than this cordwood"):
            ask()
    with pytest.raises(UnsupportedFormatError, match="version 2 is newer"):
        manager.metrics(20)
    for step, message in (
        (15, "step 15 is not newer than step 20"),
        (20, "step 20 already exists"),
    ):
        with pytest.raises(StepError, match=message):
            manager.save(step, TREE)
    with manager:
        manager.save(30, TREE)
    assert manager.plan().kept == [20, 30]
    assert "20  keep    of a newer version: " in str(manager.plan())


@pytest.mark.parametrize("index", [True, False], ids=["index", "data"])
def test_a_damaged_step_stays_until_it_is_saved_anew(tmp_path: Path, index: bool) -> None:
    saved(tmp_path, 10, 20)
    if index:
        (tmp_path / "20" / "cordwood.json").write_bytes(b"{}")
    else:
        break_data(tmp_path / "20")
    manager = CheckpointManager(tmp_path)
    with pytest.warns(RuntimeWarning, match="step 20 is passed over: damaged"):
        assert manager.restore().step == 10  # type: ignore[union-attr]
    with FULL:
        manager.save(20, TREE)
        with pytest.raises(OSError, match="No space left"):
            manager.wait()
    assert len(list(tmp_path.rglob("data-*.safetensors"))) == 2  # of 10, and what was there of 20
    with manager:
        manager.save(20, TREE)
    assert manager.steps() == [10, 20]
    assert (manager.restore(20).tree["w"] == TREE["w"]).all()
    assert sorted(os.listdir(tmp_path)) == ["10", "20"]


def test_a_step_of_another_tool_with_another_name_is_saved_beside(tmp_path: Path) -> None:
    data = flax.serialization.to_bytes(TREE)
    (tmp_path / "checkpoint_90").write_bytes(data)
    (tmp_path / "checkpoint_100").write_bytes(data[:-9])
    manager = CheckpointManager(tmp_path)
    with pytest.warns(RuntimeWarning, match="checkpoint_100: step 100 is passed over"):
        assert manager.restore().step == 90  # type: ignore[union-attr]
    with manager:
        manager.save(100, TREE)
    assert sorted(os.listdir(tmp_path)) == ["100", "checkpoint_100", "checkpoint_90"]
    assert (tmp_path / "checkpoint_100").read_bytes() == data[:-9]
    assert (manager.restore(100).tree["w"] == TREE["w"]).all()


def test_a_step_of_another_tool_is_not_replaced(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    cordwood.save(tmp_path / "20", TREE)
    break_data(tmp_path / "20")
    manager = CheckpointManager(tmp_path)
    with pytest.warns(RuntimeWarning, match=r"damaged: .*; it was saved by cordwood\.save, and is"):
        assert manager.restore().step == 10  # type: ignore[union-attr]
    before = sorted(os.listdir(tmp_path / "20"))
    with pytest.raises(StepError, match="and is not replaced: move it away"):
        manager.save(20, TREE)
    assert sorted(os.listdir(tmp_path / "20")) == before


def test_a_step_may_be_a_link(tmp_path: Path) -> None:
    root, archive = tmp_path / "run", tmp_path / "archive"
    saved(archive, 100, 101)
    root.mkdir()
    for step in (100, 101):
        (root / str(step)).symlink_to(archive / str(step))
    manager = CheckpointManager(root)
    assert manager.steps() == [100, 101]
    restored = manager.restore()
    assert restored is not None
    assert restored.step == 101
    with pytest.raises(StepError, match="step 100 is not newer than step 101"):
        manager.save(100, TREE)
    manager.delete(101)
    assert os.listdir(root) == ["100"]
    assert sorted(os.listdir(archive)) == ["100", "101"]
    assert cordwood.load(archive / "101")["w"][0] == 101
    cut_short(archive / "100")
    with pytest.raises(StepError, match="run/100 lies where step 100 goes: it is a symbolic link"):
        manager.save(100, TREE)
    with manager:
        manager.save(110, TREE)
    assert list((archive / "100").glob("data-*"))  # no leftover of this run's


def test_what_another_tool_saved_under_that_number_stays(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    (tmp_path / "checkpoint_5").write_bytes(flax.serialization.to_bytes(TREE))
    manager = CheckpointManager(tmp_path)
    with pytest.raises(StepError, match=r"checkpoint_5: it was saved by Flax.*deleted: 5\)"):
        manager.delete(5)
    assert os.listdir(tmp_path) == ["checkpoint_5"]
    assert manager.steps() == [5]
    with pytest.raises(StepError, match=r"remove what another tool saved first: cordwood rm /"):
        manager.save(5, TREE)


def test_all_that_cordwood_saved_under_one_number_is_deleted(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    for name in ("checkpoint_5", "005"):
        cordwood.save(tmp_path / name, TREE)
    CheckpointManager(tmp_path).delete(5)
    assert os.listdir(tmp_path) == []


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_the_root_of_another_run_is_never_deleted(tmp_path: Path) -> None:
    """Its name is a number, as that of a step of the run above it."""
    saved(tmp_path, 1, 2, 3)
    saved(tmp_path / "42", 1, 2)
    (tmp_path / "43").mkdir()
    (tmp_path / "43" / "thesis.tex").write_text("42")
    before = snapshot(tmp_path / "42") | snapshot(tmp_path / "43")
    manager = CheckpointManager(tmp_path, keep=1)
    with pytest.raises(StepError, match="/42: it holds 1, 2, which cordwood did not write; move"):
        manager.delete(42)
    with pytest.raises(StepError, match=r"step 43 was not deleted: .*thesis.tex") as e:
        manager.delete_after(1)
    assert "step 42 was not deleted" in str(e.value)
    assert manager.steps() == [1]
    with manager:
        manager.save(4, TREE)
    assert manager.steps() == [4]
    assert snapshot(tmp_path / "42") | snapshot(tmp_path / "43") == before


def test_the_root_of_another_run_is_never_deleted_in_a_store() -> None:
    root = "memory://runs-in-runs/exp"
    for place, steps in ((root, (1, 2, 3)), (f"{root}/42", (1, 2))):
        with CheckpointManager(place) as manager:
            for step in steps:
                manager.save(step, TREE)
    manager = CheckpointManager(root, keep=1)
    with pytest.raises(StepError, match=r"/42: it holds \.data/, 1/, 2/, which cordwood did not"):
        manager.delete(42)
    with pytest.raises(StepError, match=r"step 42 was not deleted.*\(deleted: 2, 3\)"):
        manager.delete_after(1)
    with manager:
        manager.save(4, TREE)
    assert manager.steps() == [4]
    other = CheckpointManager(f"{root}/42")
    assert other.steps() == [1, 2]
    for step in (1, 2):
        assert cordwood.verify(f"{root}/42/{step}").unverified_bytes == 0


def test_what_an_evaluation_wrote_into_a_step_outlives_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 1)
    notes = tmp_path / "1" / "eval" / "result.json"
    notes.parent.mkdir()
    notes.write_text("{}")
    manager = CheckpointManager(tmp_path, keep=1)
    with pytest.raises(StepError, match="it holds eval, which cordwood did not write; move that"):
        manager.delete(1)
    assert manager.steps() == [1]
    with manager:
        for step in (2, 3):
            manager.save(step, TREE)
    assert manager.steps() == [3]
    assert snapshot(tmp_path / "1") == {"eval/result.json": b"{}"}
    assert caplog.text.count("/1 was deleted, except eval, which cordwood did not write") == 1


def test_once_it_is_moved_away_as_the_error_says_the_step_is_deleted(tmp_path: Path) -> None:
    saved(tmp_path / "run", 1)
    (tmp_path / "run" / "1" / "notes").write_text("")
    manager = CheckpointManager(tmp_path / "run")
    with pytest.raises(StepError, match="move that away, and delete the step again"):
        manager.delete(1)
    (tmp_path / "run" / "1" / "notes").rename(tmp_path / "notes")
    manager.delete(1)
    assert os.listdir(tmp_path / "run") == []


def test_one_step_that_cannot_be_deleted_does_not_keep_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(syscalls.SystemCalls):
        def replace(self, source: str, target: str) -> None:
            if source == f"{tmp_path}/2":  # a mount point, or immutable
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), source)
            super().replace(source, target)

    saved(tmp_path, 1, 2, 3)
    with syscalls.override(Refusing()), CheckpointManager(tmp_path, keep=1) as manager:
        for step in (4, 5):
            manager.save(step, TREE)
        manager.wait()
        assert manager.steps() == [2, 5]
        with pytest.raises(StepError, match=r"step 2 was not deleted.*busy") as e:
            manager.delete_after(1)
        assert isinstance(e.value.__cause__, OSError)
    assert manager.steps() == [2]
    assert caplog.text.count("/2 cannot be deleted: ") == 1


def test_damage_with_other_files_beside_it_is_not_hidden(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    (tmp_path / "20" / "cordwood.json").write_bytes(b"{}")
    (tmp_path / "20" / "notes").write_text("")
    before = snapshot(tmp_path)
    with pytest.raises(StepError, match="step 20 goes, and is damaged: it holds notes, which"):
        CheckpointManager(tmp_path).save(20, TREE)
    assert snapshot(tmp_path) == before


def test_a_step_that_is_being_saved_is_not_deleted(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    (held,) = (tmp_path / "5").glob("data-*")
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as a save of another process holds it
        with pytest.raises(StepError, match="step 5 is in use, and was not deleted"):
            CheckpointManager(tmp_path).delete(5)
    assert CheckpointManager(tmp_path).steps() == [5]


def test_metrics_and_pins_of_what_no_manager_saved(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "5", TREE)
    (tmp_path / "checkpoint_6").write_bytes(flax.serialization.to_bytes(TREE))
    manager = CheckpointManager(tmp_path)
    for step, entry in ((5, "5"), (6, "checkpoint_6")):
        assert manager.metrics(step) == {}
        with manager.pin(step) as path:
            assert path == f"{tmp_path}/{entry}"
    saved(tmp_path, 7)
    cut_short(tmp_path / "7")
    for ask in (manager.metrics, lambda step: manager.pin(step).__enter__()):
        with pytest.raises(IncompleteCheckpointError, match="the save of step 7 did not finish"):
            ask(7)
