"""Messages of the logger "cordwood" about a run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordwood import CheckpointManager, KeepBest, KeepLast, StepReader
from cordwood.errors import StepError
from cordwood.results import SaveReport
from cordwood.storage import write_files
from tests.children import run_python
from tests.threads import until

TREE = {"w": np.zeros(3 << 20, np.uint8)}


@pytest.fixture
def info(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG, logger="cordwood")

    def lines(level: int = logging.INFO) -> list[str]:
        results = [each.getMessage() for each in caplog.records if each.levelno == level]
        caplog.clear()
        return results

    return lines


def test_what_is_restored_is_a_line(tmp_path: Path, info: Any) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE)
    assert len(info()) == 1
    StepReader(tmp_path).restore()
    (line,) = info()
    assert line.startswith("restored step 1: 3.0 MiB read in ")
    assert line.endswith(f"/s ({tmp_path}/1)")
    StepReader(tmp_path).restore(1, like=TREE)
    (line,) = info()
    assert line.startswith("restored step 1: 3.0 MiB read in ")


def test_what_is_deleted_is_a_line(tmp_path: Path, info: Any) -> None:
    with CheckpointManager(tmp_path, keep=KeepLast(2)) as manager:
        for step in range(4):
            manager.save(step, TREE)
            manager.wait()
        assert [line for line in info() if ": deleted " in line] == [
            f"{tmp_path}: deleted step 0: no policy keeps it",
            f"{tmp_path}: deleted step 1: no policy keeps it",
        ]
        manager.delete(2)
        assert info() == [f"{tmp_path}: deleted step 2: delete was called"]
        manager.delete_after(3)
        assert info() == []


def test_a_step_that_the_policy_leaves_out_is_a_line_for_debugging(
    tmp_path: Path, info: Any
) -> None:
    with CheckpointManager(tmp_path, save=2) as manager:
        for step in range(2):
            manager.save(step, TREE)
    (line,) = [each for each in info(logging.DEBUG) if "not saved" in each]
    assert line == f"{tmp_path}: step 1 is not saved: the policy does not ask for it"


def test_small_sizes_are_printed_in_bytes(tmp_path: Path) -> None:
    seen: list[SaveReport] = []
    with CheckpointManager(tmp_path, on_save=seen.append) as manager:
        manager.save(1, {"w": np.zeros(3, np.uint8)})
    assert str(seen[0]).startswith("saved step 1: 3 B written, 0 B linked, ")
    assert "MB" not in str(seen[0])


def test_a_closed_manager_saves_no_more_until_it_is_opened_again(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    with manager:
        manager.save(1, TREE)
    with pytest.raises(StepError, match="the manager is closed and saves no more: save inside"):
        manager.save(2, TREE)
    assert manager.steps() == [1]
    assert manager.restore(required=True).step == 1
    other = CheckpointManager(tmp_path)
    with pytest.raises(ZeroDivisionError), other:
        raise ZeroDivisionError
    with pytest.raises(StepError, match="is closed"):
        other.save(2, TREE)
    manager.delete(1)
    assert manager.steps() == []
    with manager:
        manager.save(2, TREE)
    assert manager.steps() == [2]


def test_a_metric_that_no_step_has_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep = KeepBest(2, "accuracy") | KeepLast(1)
    with CheckpointManager(tmp_path, keep=keep, background=False) as manager:
        manager.save(1, {"w": np.zeros(3)})
        assert not _warnings(caplog)  # no step has any metric
        for step in (2, 3, 4):
            manager.save(step, {"w": np.zeros(3)}, metrics={"acc": 0.5})
        why = "no step has the metric 'accuracy'; the metrics that steps have: acc"
        assert _warnings(caplog) == [f"{tmp_path}: keep: {why}"]
        manager.save(5, {"w": np.zeros(3)}, metrics={"accuracy": 0.5})
    assert len(_warnings(caplog)) == 1


def test_keep_best_without_any_metrics_is_warned_of_when_a_step_is_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(tmp_path, keep=KeepBest(1, "loss"), background=False) as manager:
        manager.save(1, {"w": np.zeros(3)})
        assert not _warnings(caplog)  # nothing is deleted
        for step in (2, 3):
            manager.save(step, {"w": np.zeros(3)})
    why = "no step has the metric 'loss': none was saved with metrics="
    assert _warnings(caplog) == [f"{tmp_path}: keep: {why}"]


def test_a_second_save_of_a_step_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="cordwood")
    with CheckpointManager(tmp_path, background=False) as manager:
        first = manager.save(1, {"w": np.zeros(3)})
        assert manager.save(1, {"w": np.ones(3)}, force=True) is first
        line = f"{tmp_path}: step 1 was already passed to save; this call saves nothing"
        assert [each.getMessage() for each in caplog.records].count(line) == 1
        assert not _warnings(caplog)
        restored = manager.restore(like={"w": np.zeros(3)})
        assert restored is not None
        np.testing.assert_array_equal(restored.tree["w"], np.zeros(3))


def test_best_of_a_metric_that_no_step_has_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(tmp_path, background=False) as manager:
        assert manager.best("loss") is None
        assert not _warnings(caplog)
        manager.save(1, {"w": np.zeros(3)}, metrics={"loss": 1.0, "acc": 0.5})
        assert manager.best("los") is None
        manager.save(2, {"w": np.zeros(3)})
    why = "no step has the metric 'los'; the metrics that steps have: acc, loss"
    assert _warnings(caplog) == [f"best: {why}"]
    with CheckpointManager(tmp_path, keep=KeepBest(2, "los")) as manager:
        assert str(manager.plan()).startswith(f"1  delete  no policy keeps it; {why}")


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_an_error_in_the_block_waits_for_the_running_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{tmp_path}: KeyError ends the block; waiting for the save of step 1, which is still"
    original = write_files.fill_file

    def slow(*arguments: Any, **named: Any) -> Any:
        until(lambda: text in caplog.text)
        return original(*arguments, **named)

    monkeypatch.setattr("cordwood.storage.local_transaction.fill_file", slow)

    def train() -> None:
        with CheckpointManager(tmp_path) as manager:
            manager.save(1, TREE)
            raise KeyError

    with pytest.raises(KeyError):
        train()
    assert StepReader(tmp_path).steps() == [1]


def test_a_new_run_prints_nothing(tmp_path: Path) -> None:
    """In a new process without settings of logging, a warning would go to standard error."""
    code = """
        import io, sys, warnings
        warnings.simplefilter("always")
        sys.stderr = captured = io.StringIO()
        import numpy as np
        from cordwood import CheckpointManager
        tree = {"w": np.ones(3)}
        with CheckpointManager(sys.argv[1], keep=2) as manager:
            assert manager.restore(like=tree) is None
            for step in range(4):
                manager.save(step, tree, metrics={"loss": 1.0})
        CheckpointManager(sys.argv[1] + "-2").save(0, tree).wait()
        print(repr(captured.getvalue()))
    """
    assert run_python(code, str(tmp_path / "run")).strip() == "''"
