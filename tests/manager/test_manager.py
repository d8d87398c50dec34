"""CheckpointManager in one process: what is saved, kept, deleted and restored."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager, KeepBest, KeepEvery, KeepLast
from cordwood.errors import (
    CorruptionError,
    IncompleteCheckpointError,
    MismatchError,
    PendingSaveError,
    StepError,
)
from cordwood.policies import WhenIdle
from cordwood.results import SaveReport
from cordwood.storage import local_step_storage, write_files

_numbers = itertools.count()


def tree_of(step: int) -> dict[str, Any]:
    return {"w": jnp.arange(8.0) + step, "b": np.full(3, step, np.int16), "step": step}


def loads(path: str | Path, step: int) -> bool:
    cordwood.verify(path)
    tree = cordwood.load(path, like=tree_of(step))
    return bool(tree["step"] == step and tree["w"][0] == step and tree["b"][0] == step)


def break_data(folder: Path) -> None:
    (file,) = folder.glob("data-*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def cut_short(folder: Path) -> None:
    """Make a step look as after a killed save."""
    (folder / "cordwood.json").unlink()
    (folder / "model.safetensors.index.json").unlink()


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "a" / "run")
    return f"memory://tests-of-managers/{next(_numbers)}"


@pytest.fixture
def blocked() -> Iterator[threading.Event]:
    """Return an event that saves in the background wait for."""
    go = threading.Event()
    original = write_files.fill_file

    def waiting(*arguments: Any, **named: Any) -> Any:
        assert go.wait(60)
        return original(*arguments, **named)

    with patch("cordwood.storage.local_transaction.fill_file", waiting):
        yield go
        go.set()


def test_a_manager_saves_keeps_and_restores_by_policy(root: str) -> None:
    with CheckpointManager(root, save=10, keep=KeepLast(2) | KeepBest(1, "loss")) as manager:
        assert manager.restore(like=tree_of(0)) is None
        assert manager.latest() is None
        assert manager.best() is None
        for step in range(55):
            pending = manager.save(
                step, tree_of(step), metrics={"loss": abs(step - 10)}, extras={"at": [step]}
            )
            assert (pending is not None) == (step % 10 == 0)
    assert manager.steps() == [10, 40, 50]
    assert manager.latest() == 50
    assert manager.best() == 10
    assert manager.best("loss", mode="max") == 50
    assert manager.best("accuracy") is None
    assert manager.metrics(10) == {"loss": 0.0}
    for step in manager.steps():
        assert loads(f"{manager.root}/{step}", step)
    again = CheckpointManager(root)
    restored = again.restore(like=tree_of(0))
    assert restored is not None
    assert (restored.step, restored.metrics, restored.extras) == (50, {"loss": 40.0}, {"at": [50]})
    assert restored.tree["step"] == 50
    assert isinstance(restored.tree["w"], jax.Array)
    assert again.restore(10).tree["step"] == 10


def test_the_plan_says_why(root: str) -> None:
    with CheckpointManager(root) as manager:
        for step in range(0, 50, 10):
            manager.save(step, tree_of(step), metrics={"loss": abs(step - 10)})
    other = CheckpointManager(root, keep=KeepLast(2) | KeepEvery(20) | KeepBest(1, "loss"))
    assert str(other.plan()) == (
        " 0  keep    a multiple of 20\n"
        "10  keep    loss 0, of the best 1\n"
        "20  keep    a multiple of 20\n"
        "30  keep    of the last 2\n"
        "40  keep    the newest; of the last 2; a multiple of 20"
    )
    last = CheckpointManager(root, keep=1)
    assert last.plan().deleted == [0, 10, 20, 30]
    assert last.steps() == [0, 10, 20, 30, 40]  # nothing goes before a newer one is there
    with last:
        last.save(41, tree_of(41))
    assert last.steps() == [41]


def test_a_policy_is_asked_and_can_be_overruled(root: str) -> None:
    with CheckpointManager(root, save=10) as manager:
        assert not manager.should_save(3)
        assert manager.save(3, tree_of(3)) is None
        assert manager.save(3, tree_of(3), force=True) is not None
        assert manager.should_save(10)
        manager.wait()
        assert manager.steps() == [3]


def test_the_tree_of_the_call_is_saved(root: str) -> None:
    with CheckpointManager(root) as manager:
        tree: dict[str, Any] = {"w": np.zeros(1000), "x": jnp.ones(1000)}
        manager.save(1, tree)
        tree["w"] += 1
        tree["x"].delete()
    restored = manager.restore(1)
    assert not restored.tree["w"].any()
    assert restored.tree["x"].sum() == 1000


def test_one_save_at_a_time(tmp_path: Path, blocked: threading.Event) -> None:
    manager = CheckpointManager(tmp_path, save=WhenIdle())
    first = manager.save(1, tree_of(1))
    assert first is not None
    assert not first.done
    assert manager.save(2, tree_of(2)) is None  # not idle
    assert manager.save(1, tree_of(1), force=True) is first
    assert manager.latest() is None
    with pytest.raises(TimeoutError, match="still being saved"):
        manager.wait(timeout_seconds=0.01)
    timer = threading.Timer(0.05, blocked.set)
    timer.start()
    assert manager.save(2, tree_of(2), force=True) is not first
    assert first.done
    manager.wait()
    assert manager.steps() == [1, 2]
    timer.join()


def test_a_step_that_another_has_deleted_is_saved_again(root: str) -> None:
    with CheckpointManager(root) as manager:
        first = manager.save(1, tree_of(1))
        manager.wait()
        assert manager.save(1, tree_of(1)) is first
        CheckpointManager(root).delete(1)
        assert manager.save(1, tree_of(1)) is not first
    assert loads(f"{root}/1", 1)


def test_a_save_in_the_foreground_is_done_when_it_returns(root: str) -> None:
    manager = CheckpointManager(root, background=False, keep=1)
    for step in range(3):
        pending = manager.save(step, tree_of(step))
        assert pending is not None
        assert pending.done
        assert manager.steps() == [step]


@pytest.mark.parametrize("step", [5, 7])
def test_a_step_that_is_not_newer_is_refused(root: str, step: int) -> None:
    with CheckpointManager(root) as manager:
        manager.save(7, tree_of(7))
    other = CheckpointManager(root)
    with pytest.raises(StepError, match=r"step 7, which is there|step 7 already exists"):
        other.save(step, tree_of(step))
    assert loads(f"{other.root}/7", 7)
    other.delete(7)
    assert other.latest() is None
    with other:
        other.save(step, tree_of(step))
    assert other.steps() == [step]


@pytest.mark.parametrize("step", [-1, 10**18, 1.5, "1", None])
def test_numbers_that_are_no_steps(tmp_path: Path, step: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="step: expected"):
        CheckpointManager(tmp_path).save(step, tree_of(0))


def test_a_step_may_be_an_array(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(jnp.int32(3), tree_of(3))
        manager.save(np.int64(4), tree_of(4))
    assert manager.steps() == [3, 4]


def test_damage_is_passed_over(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2, 3, 4):
            manager.save(step, tree_of(step))
    break_data(tmp_path / "4")
    (tmp_path / "3" / "cordwood.json").write_bytes(b"{}")
    with pytest.warns(RuntimeWarning) as warned:
        restored = manager.restore(like=tree_of(0))
    assert restored is not None
    assert restored.tree["step"] == 2
    texts = sorted(str(each.message) for each in warned)
    assert len(texts) == 2
    assert f"{tmp_path}/3: step 3 is passed over: damaged: " in texts[0]
    assert f"{tmp_path}/4: step 4 is passed over: damaged: " in texts[1]
    assert all(each.filename == __file__ for each in warned)
    assert manager.steps() == [1, 2]
    assert manager.plan().kept == [1, 2, 3, 4]
    with pytest.raises(CorruptionError):
        manager.restore(4)
    # The run goes on from step 2, and saves 3 and 4 again.
    with manager:
        for step in (3, 4):
            manager.save(step, tree_of(step))
    assert manager.steps() == [1, 2, 3, 4]
    assert all(loads(tmp_path / str(step), step) for step in manager.steps())
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "3", "4"]


def test_damaged_steps_do_not_count_as_kept(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2, 3):
            manager.save(step, tree_of(step))
    break_data(tmp_path / "3")
    with CheckpointManager(tmp_path, keep=2) as other:
        with pytest.warns(RuntimeWarning, match="step 3 is passed over"):
            other.restore()
        other.save(4, tree_of(4))
    assert other.steps() == [2, 4]
    assert sorted(os.listdir(tmp_path)) == ["2", "3", "4"]  # what is damaged is left to people


def test_a_restore_fails_where_all_steps_are_damaged(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, tree_of(1))
        manager.save(2, tree_of(2))
    break_data(tmp_path / "1")
    break_data(tmp_path / "2")
    with (
        pytest.warns(RuntimeWarning, match="passed over"),
        pytest.raises(CorruptionError, match=r"no step can be restored:\n  1: damaged: .*\n  2: "),
    ):
        manager.restore()


def test_an_unfinished_step_is_passed_over(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, tree_of(1))
        manager.save(2, tree_of(2))
    cut_short(tmp_path / "2")
    with pytest.warns(RuntimeWarning, match=f"{tmp_path}/2: the save of step 2 did not finish"):
        restored = manager.restore()
    assert restored is not None
    assert restored.step == 1
    assert manager.latest() == 1
    message = f"{tmp_path}/2: the save of step 2 did not finish; the newest complete step is 1"
    with pytest.raises(IncompleteCheckpointError, match=message):
        manager.restore(2)
    with manager:  # what is left of it goes with the next save
        manager.save(3, tree_of(3))
    assert sorted(os.listdir(tmp_path)) == ["1", "3"]


def test_a_step_that_is_being_saved_is_no_reason_to_warn(
    tmp_path: Path, blocked: threading.Event
) -> None:
    manager = CheckpointManager(tmp_path)
    manager.save(1, tree_of(1))
    for _ in range(500):
        if (tmp_path / "1").is_dir() and os.listdir(tmp_path / "1"):
            break
        threading.Event().wait(0.01)
    other = CheckpointManager(tmp_path)
    assert other.restore() is None
    blocked.set()
    manager.wait()
    assert other.latest() == 1


def test_a_tree_that_does_not_fit_is_an_error(root: str) -> None:
    with CheckpointManager(root) as manager:
        manager.save(1, {"w": np.zeros(3)})
        manager.save(2, {"w": np.zeros(4)})
    with pytest.raises(MismatchError, match="expected float64"):
        manager.restore(like={"w": np.zeros(3)})


def test_a_step_that_is_not_there(root: str) -> None:
    with CheckpointManager(root, keep=20) as manager:
        for step in range(12):
            manager.save(step, tree_of(step))
    message = r"there is no step 99; there are: \.\.\. 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
    with pytest.raises(FileNotFoundError, match=message):
        manager.restore(99)
    for ask in (manager.metrics, manager.delete):
        with pytest.raises(FileNotFoundError, match="there is no step 99"):
            ask(99)


def test_a_failed_save_is_no_step_and_deletes_none(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=1)
    manager.save(1, tree_of(1))
    manager.wait()
    with patch("cordwood.storage.local_transaction.fill_file", side_effect=OSError(28, "full")):
        manager.save(2, tree_of(2))
        with pytest.raises(OSError, match="No space left on device"):
            manager.wait()
        assert manager.steps() == [1]
        assert manager.latest() == 1
        manager.save(3, tree_of(3))
        message = "the save of step 3 in the background failed: StorageError: .*No space left"
        with pytest.raises(PendingSaveError, match=message):
            manager.save(4, tree_of(4))
        assert manager.plan().kept == [1]
    assert sorted(os.listdir(tmp_path)) == ["1"]
    with manager:
        manager.save(2, tree_of(2))
    assert manager.steps() == [2]


def loop_that_fails(root: Path) -> None:
    with CheckpointManager(root) as manager:
        manager.save(1, tree_of(1))
        raise RuntimeError("the loop's own")


def test_a_failure_leaves_the_block(tmp_path: Path) -> None:
    with patch("cordwood.storage.local_transaction.fill_file", side_effect=OSError(28, "full")):
        with pytest.raises(OSError, match="No space left"), CheckpointManager(tmp_path) as manager:
            manager.save(1, tree_of(1))
        with pytest.raises(RuntimeError, match="the loop's own") as error:
            loop_that_fails(tmp_path)
        assert "and a save in the background failed: StorageError" in error.value.__notes__[0]


def test_failed_deletions_are_reported_and_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = CheckpointManager(tmp_path, keep=1, background=False)
    manager.save(1, tree_of(1))
    with patch(
        "cordwood.storage.local_step_storage.sync_directory", side_effect=OSError(5, "broken")
    ):
        manager.save(2, tree_of(2))
    assert "steps could not be deleted: [Errno 5] broken" in caplog.text
    assert manager.steps() == [2]
    manager.save(3, tree_of(3))
    assert sorted(os.listdir(tmp_path)) == ["3"]


def test_what_is_not_a_managers_stays(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "1", {"w": np.ones(3)})
    (tmp_path / "logs").mkdir()
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "mine.txt").write_text("")
    with CheckpointManager(tmp_path, keep=1) as manager:
        manager.save(2, tree_of(2))
        manager.save(3, tree_of(3))
    assert manager.steps() == [1, 3]
    assert str(manager.plan()).splitlines()[0] == "1  keep    saved by cordwood.save"
    assert sorted(os.listdir(tmp_path)) == ["1", "3", "7", "logs"]
    assert manager.restore(1).tree["w"].sum() == 3


def test_a_line_of_log_and_a_hook(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cordwood")
    reports: list[SaveReport] = []
    with CheckpointManager(tmp_path, on_save=reports.append) as manager:
        manager.save(5, {"w": np.zeros(1_000_000, np.float32)})
        manager.save(6, {"w": np.zeros(1_000_000, np.float32)})
    assert [report.step for report in reports] == [5, 6]
    report = reports[0]
    assert report.written_bytes == 4_000_000
    assert 0 < report.blocking_seconds < report.total_seconds
    assert report.bytes_per_second == pytest.approx(4e6 / report.total_seconds)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [str(report) for report in reports]
    assert lines[0].startswith("saved step 5: 3.8 MiB written, 0 B linked, ")


def test_a_hook_that_fails_fails_no_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(report: SaveReport) -> None:
        raise RuntimeError("the hook's own")

    with CheckpointManager(tmp_path, on_save=fail, keep=1) as manager:
        manager.save(1, tree_of(1))
        manager.save(2, tree_of(2))
    assert manager.steps() == [2]
    assert "on_save failed for step 2, which is saved" in caplog.text
    assert "the hook's own" in caplog.text


def test_best_needs_a_metric(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"best: name a metric, or keep steps by one: keep=Keep"):
        CheckpointManager(tmp_path).best()


def test_several_managers_on_one_root(root: str) -> None:
    one, other = (CheckpointManager(root, keep=3) for _ in range(2))
    with one, other:
        for step in range(12):
            manager = (one, other)[step % 2]
            manager.save(step, tree_of(step))
            manager.wait()
    assert one.steps() == other.steps() == [9, 10, 11]
    assert all(loads(f"{one.root}/{step}", step) for step in one.steps())


def test_a_step_that_replaces_another_while_they_are_listed(tmp_path: Path) -> None:
    """The new one is looked at before its commit, the old one after its deletion."""
    writer = CheckpointManager(tmp_path, keep=1, background=False)
    writer.save(1, tree_of(1))
    (tmp_path / "2").mkdir()
    original, looked = local_step_storage._stamp, []

    def late(path: str) -> Any:
        looked.append(path)
        if len(looked) == 1:
            writer.save(2, tree_of(2))
        first = looked.index(path) == len(looked) - 1
        return None if first and path.startswith(f"{tmp_path}/2/") else original(path)

    reader = CheckpointManager(tmp_path)
    with patch.object(local_step_storage, "_stamp", late):
        assert reader.latest() == 2
    assert reader.restore(like=tree_of(0)) is not None


def test_a_relative_root_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    manager = CheckpointManager("run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with manager:
        manager.save(1, tree_of(1))
    assert loads(tmp_path / "run" / "1", 1)


def test_a_manager_prints_as_code(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, save=10, keep=KeepLast(2) | KeepBest(1, "loss"))
    assert repr(manager) == (
        f"CheckpointManager({str(tmp_path)!r}, save=EverySteps(count=10), "
        "keep=KeepLast(count=2) | KeepBest(count=1, metric='loss', mode='min'))"
    )


def test_roots_that_are_none(tmp_path: Path) -> None:
    """To start anew would lose a run."""
    cordwood.save(tmp_path / "run" / "100", {"w": 1})
    cordwood.save(tmp_path / "m.safetensors", {"w": 1})
    with pytest.raises(ValueError, match=f"100 is a checkpoint itself .* perhaps {tmp_path}/run"):
        CheckpointManager(tmp_path / "run" / "100").restore()
    with pytest.raises(NotADirectoryError, match="expected the directory that steps lie in"):
        CheckpointManager(tmp_path / "m.safetensors").restore()
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match=r"shards is a checkpoint itself .*index of Hugging"):
        CheckpointManager(shards).restore()
    assert CheckpointManager(tmp_path / "new").restore() is None
    (tmp_path / "run" / "cordwood.json").write_text("{}")  # of somebody's, beside the steps
    restored = CheckpointManager(tmp_path / "run").restore()
    assert restored is not None
    assert restored.step == 100
