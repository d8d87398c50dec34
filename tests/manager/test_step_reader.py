"""StepReader: which step is meant, what comes with it, and what is new."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.errors import IncompleteCheckpointError, MismatchError, StepError
from cordwood.storage.paths import temporary_path
from tests.manager.counters import Counter
from tests.manager.test_manager import cut_short

TREE = {"a": {"w": np.arange(4.0), "b": np.zeros(2)}, "step": 3}


def save(root: Path, *steps: int, **named: Any) -> CheckpointManager:
    with CheckpointManager(root) as manager:
        for step in steps:
            manager.save(step, TREE, **named)
    return manager


def test_a_step_reader_prints_as_code(tmp_path: Path) -> None:
    assert repr(StepReader(tmp_path)) == f"StepReader({str(tmp_path)!r})"


def test_a_step_that_is_none_is_not_the_newest(tmp_path: Path) -> None:
    manager = save(tmp_path, 1, metrics={"loss": 1.0})
    assert manager.best("acc") is None
    with pytest.raises(
        TypeError, match=r"step: expected an integer, found None: latest\(\) and best"
    ):
        manager.restore(manager.best("acc"))  # type: ignore[arg-type]


def test_a_reader_has_the_best_step_of_a_metric(tmp_path: Path) -> None:
    reader = StepReader(tmp_path)
    assert reader.best("loss") is None
    save(tmp_path, 1, 2, metrics={"loss": 1.0})
    manager = save(tmp_path, 3, metrics={"loss": 3.0})
    assert reader.best("loss") == manager.best("loss") == 2  # of equal ones the newer
    assert reader.best("loss", mode="max") == 3
    with pytest.raises(ValueError, match="mode: expected 'min' or 'max'"):
        reader.best("loss", mode="least")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [StepReader, CheckpointManager])
def test_the_best_of_no_steps_says_what_the_root_holds(
    kind: type[StepReader], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cordwood.save(tmp_path / "old" / "model.safetensors", {"w": 1})
    with caplog.at_level(logging.INFO, "cordwood"):
        assert kind(tmp_path / "absent").best("loss") is None
        assert kind(tmp_path / "old").best("loss") is None
    first, second = caplog.messages
    assert first == (
        f"there is no best step in {tmp_path}/absent: there is no such directory; check the path, "
        "or save a step first"
    )
    assert second.startswith(f"there is no best step in {tmp_path}/old: there are model.safetens")


def test_what_is_restored_may_be_chosen_as_load_has_it(tmp_path: Path) -> None:
    save(tmp_path, 1)
    reader = StepReader(tmp_path)
    chosen = reader.restore(select="a/w")
    assert chosen is not None
    assert cordwood.open(tmp_path / "1").keys() >= {"a/w", "a/b"}
    assert list(chosen.tree["a"]) == ["w"]
    renamed = reader.restore(1, rename={"a": "x"})
    assert sorted(renamed.tree) == ["step", "x"]
    like = {"a": {"w": np.ones(4), "new": np.ones(1)}}
    restored = reader.restore(1, like=like, missing="keep", extra="ignore")
    assert restored.tree["a"]["new"] is like["a"]["new"]
    assert restored.tree["a"]["w"][3] == 3


def test_absent_items_are_reported_before_the_tree_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    cordwood.save(tmp_path / "2", TREE)
    monkeypatch.setattr(
        "cordwood.manager.load_step.load_checkpoint", lambda *_, **__: pytest.fail("loaded")
    )
    for step in (1, 2):
        with pytest.raises(
            MismatchError, match=r"no item 'data'; it has: none\. To restore the tre"
        ):
            StepReader(tmp_path).restore(step, items={"data": Counter()})
    with pytest.raises(MismatchError, match="leave it out of items="):
        StepReader(tmp_path).restore(items={"data": Counter()})
    with pytest.raises(TypeError, match="items: expected names that are str, found 1"):
        CheckpointManager(tmp_path).save(3, TREE, items={1: Counter()})  # type: ignore[dict-item]


def test_restoring_an_old_step_does_not_make_the_new_ones_new(tmp_path: Path) -> None:
    save(tmp_path, 0, 1)
    reader, seen = StepReader(tmp_path), []
    for step in reader.new_steps(0):
        seen.append(step)
        assert reader.restore(0).step == 0
        assert len(seen) < 5
    assert seen == [1]


def test_steps_that_are_saved_anew_are_new(tmp_path: Path) -> None:
    manager = save(tmp_path, *range(5, 11))
    reader = StepReader(tmp_path)
    assert reader.wait_for_new_step(0) == 10
    assert manager.delete_after(5) == [6, 7, 8, 9, 10]
    assert reader.wait_for_new_step(0) is None
    save(tmp_path, 6)
    assert reader.wait_for_new_step(0) == 6
    assert reader.wait_for_new_step(0) is None


def test_every_new_step_comes(tmp_path: Path) -> None:
    save(tmp_path, 0, 1)
    reader, seen = StepReader(tmp_path), []
    for step in reader.new_steps(0):
        seen.append(step)
        if step == 1:
            save(tmp_path, 2, 3, 4)
        if step == 2:
            shutil.rmtree(tmp_path / "3")
    assert seen == [1, 2, 4]


def test_after_a_restore_all_that_follow_are_new(tmp_path: Path) -> None:
    save(tmp_path, 0, 1, 2, 3)
    reader = StepReader(tmp_path)
    reader.restore(1)
    assert list(reader.new_steps(0)) == [2, 3]


def test_the_step_that_was_restored_may_be_deleted(tmp_path: Path) -> None:
    for remaining, new in (([1, 4, 5], [4, 5]), ([1, 2], [2])):
        save(tmp_path, 1, 2, 3, 4, 5)
        reader = StepReader(tmp_path)
        reader.restore(3)
        for step in {1, 2, 3, 4, 5} - set(remaining):
            shutil.rmtree(tmp_path / str(step))
        assert list(reader.new_steps(0)) == new
        shutil.rmtree(tmp_path)


def test_a_save_that_goes_on_is_no_reason_to_warn(tmp_path: Path) -> None:
    """Its files are locked, but for those that a commit makes while it holds the index's lock."""
    save(tmp_path, 1, 2)
    cut_short(tmp_path / "2")
    index = Path(temporary_path(str(tmp_path / "2"), "cordwood.json"))
    index.write_bytes(b"{")
    lock = tmp_path / "2" / ".cordwood.json.cordwood-lock"
    lock.write_bytes(b"")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert StepReader(tmp_path).restore() is not None
        assert str(index) not in cordwood.gc(tmp_path / "2", dry_run=True)
    with pytest.warns(RuntimeWarning, match="the save of step 2 did not finish; it is passed over"):
        StepReader(tmp_path).restore()
    assert str(index) in cordwood.gc(tmp_path / "2", dry_run=True)


def test_a_run_goes_on_from_an_older_step_after_delete_after(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 30)
    manager = CheckpointManager(tmp_path)
    with pytest.raises(StepError, match=r"step 15 is not newer than step 30, .* \(delete_after\)"):
        manager.save(15, TREE)
    with (
        manager.pin(20),
        pytest.raises(StepError, match="step 20 is in use, and was not deleted"),
    ):
        manager.delete_after(10)
    assert manager.steps() == [10, 20]
    assert manager.delete_after(10) == [20]
    assert manager.delete_after(10) == []
    with manager:
        manager.save(15, TREE)
    assert manager.steps() == [10, 15]
    cut_short(tmp_path / "15")
    with pytest.raises(IncompleteCheckpointError):
        manager.restore(15)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_pin_needs_write_permission(tmp_path: Path, code: int) -> None:
    save(tmp_path, 1)
    writable_open = "cordwood.storage.step_pins.WritableFile.open"
    refused = patch(writable_open, side_effect=OSError(code, "no"))
    with (
        refused,
        pytest.raises(
            PermissionError, match=r"step 1 cannot be pinned: .* needs write permission in both"
        ),
        StepReader(tmp_path).pin(1),
    ):
        pytest.fail("nothing is pinned")


def test_a_root_of_steps_with_other_names_is_reported(tmp_path: Path) -> None:
    for name in ("ckpt_10", "logs"):
        (tmp_path / name).mkdir()
    for name in ("ckpt_20", "run_1.log", "epoch_3.msgpack"):
        (tmp_path / name).write_bytes(b"")
    with pytest.warns(
        RuntimeWarning, match="nothing is restored, and there are ckpt_10, ckpt_20: "
    ):
        assert StepReader(tmp_path).restore() is None
    os.rename(tmp_path / "ckpt_10", tmp_path / "notes")
    os.rename(tmp_path / "ckpt_20", tmp_path / "more")
    assert StepReader(tmp_path).restore() is None
