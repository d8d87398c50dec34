"""Reports of failed saves: each failure once, and nothing else."""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import cordwood
from cordwood import (
    CheckpointManager,
    EverySeconds,
    EverySteps,
    KeepBest,
    KeepLast,
    StepReader,
    policies,
)
from cordwood.errors import PendingSaveError, StepError
from cordwood.policies import KeepPolicy, KeepWithin
from cordwood.results import SaveReport

TREE = {"w": np.zeros(3)}


def failing() -> Any:
    return patch("cordwood.storage.local_transaction.fill_file", side_effect=OSError(28, "full"))


def ended(pending: cordwood.PendingSave | None) -> cordwood.PendingSave:
    assert pending is not None
    while not pending.done:
        time.sleep(0.01)
    return pending


def test_a_hook_may_use_its_manager(tmp_path: Path) -> None:
    seen: list[Any] = []

    def on_save(report: SaveReport) -> None:
        manager.wait()
        restored = manager.restore()
        assert restored is not None
        seen.append((report.step, restored.step, manager.steps()))
        if report.step == 2:
            manager.delete(1)

    with CheckpointManager(tmp_path, on_save=on_save) as manager:
        manager.save(1, TREE)
        manager.wait()
        manager.save(2, TREE)
    assert seen == [(1, 1, [1]), (2, 2, [1, 2])]
    assert manager.steps() == [2]


def test_a_slow_hook_keeps_no_save_waiting(tmp_path: Path) -> None:
    go, steps = threading.Event(), []

    def on_save(report: SaveReport) -> None:
        assert go.wait(60)
        steps.append(report.step)

    with CheckpointManager(tmp_path, on_save=on_save, keep=1) as manager:
        for step in (1, 2):
            pending = manager.save(step, TREE)
            assert pending is not None
            pending.wait()
        assert manager.steps() == [1, 2]
        with pytest.raises(
            TimeoutError, match=r"on_save and deleting steps, is not done after 0\.01"
        ):
            manager.wait(0.01)
        third = threading.Thread(target=manager.save, args=(3, TREE))
        third.start()
        assert not (tmp_path / "3").exists()  # what nobody has yet cleaned does not add up
        go.set()
        third.join()
        manager.wait()
        assert steps == [1, 2, 3]
        assert manager.steps() == [3]


class Broken(KeepPolicy):
    """A policy with a mistake in it."""

    def kept(self, steps: Any, now: float) -> Any:
        raise ZeroDivisionError("the policy's own")


def test_a_policy_that_fails_fails_no_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(tmp_path, keep=Broken()) as manager:
        manager.save(1, TREE)
        manager.save(2, TREE)
    assert manager.steps() == [1, 2]
    assert "keep failed, and no step was deleted" in caplog.text
    assert "the policy's own" in caplog.text


def test_a_failure_is_reported_once(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    with failing():
        pending = manager.save(1, TREE)
        assert pending is not None
        with pytest.raises(OSError, match="No space left"):
            pending.wait()
    with manager:
        manager.save(2, TREE)
    assert manager.steps() == [2]


def test_a_failure_is_reported_by_its_own_manager(tmp_path: Path) -> None:
    one, other = CheckpointManager(tmp_path / "one"), CheckpointManager(tmp_path / "other")
    with failing():
        ended(one.save(1, TREE))
    with other:
        other.save(1, TREE)
    cordwood.save_async(tmp_path / "tree", TREE).wait()
    with pytest.raises(PendingSaveError, match="the save of step 1 in the background failed"):
        one.save(2, TREE)
    with one:
        one.save(2, TREE)
    assert (one.steps(), other.steps()) == ([2], [1])


def test_a_manager_reports_the_failure_of_another_save(tmp_path: Path) -> None:
    with failing():
        ended(cordwood.save_async(tmp_path / "tree", TREE))
    with CheckpointManager(tmp_path / "run") as manager:
        with pytest.raises(PendingSaveError, match="tree in the background failed"):
            manager.save(1, TREE)
        manager.save(1, TREE)


def test_a_step_is_saved_once(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        first = manager.save(7, TREE, metrics={"loss": float("nan")}, extras=[1])
        assert manager.save(7, TREE) is first
        assert manager.save(7, TREE, metrics={"loss": float("nan")}, extras=[1]) is first
        with pytest.raises(StepError, match=r"with the metrics .*nan.*, and cannot be given .*0.5"):
            manager.save(7, TREE, metrics={"loss": 0.5})
        with pytest.raises(
            StepError, match=r"with the extras \[1\], and cannot be given \[2\] now"
        ):
            manager.save(7, TREE, extras=[2])


def test_the_step_that_a_run_goes_on_from_is_there(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(7, TREE)
    again = CheckpointManager(tmp_path)
    assert again.restore() is not None
    assert again.save(7, TREE) is None
    again.delete(7)
    with again:
        assert again.save(7, TREE) is not None
    other = CheckpointManager(tmp_path)
    with pytest.raises(StepError, match=r"step 7 already exists\. To continue .* save step 8"):
        other.save(7, TREE)


def test_policies_refuse_what_is_no_integer(tmp_path: Path) -> None:
    for make in (KeepLast, EverySteps):
        with pytest.raises(TypeError, match=r"count: expected an integer, found 2\.0"):
            make(2.0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="count: expected more than 0, found 0"):
            make(0)
        assert make(np.int64(2)) == make(2)  # type: ignore[arg-type]
    for name in ("KeepAt", "AtSteps"):
        with pytest.raises(
            TypeError, match=rf"{name}: expected several steps, as \[5, 7\], found 5"
        ):
            getattr(policies, name)(5)


@pytest.mark.parametrize("other", [5, EverySteps(2), None])
def test_policies_are_joined_with_their_like(other: Any) -> None:
    for join in ("__or__", "__and__"):
        assert getattr(KeepLast(3), join)(other) is NotImplemented
        other_kind = KeepLast(3) if isinstance(other, EverySteps) else other
        assert getattr(EverySteps(3), join)(other_kind) is NotImplemented
    with pytest.raises(TypeError, match="unsupported operand"):
        KeepLast(3) | other


def test_best_goes_by_its_policy(tmp_path: Path) -> None:
    keep = KeepBest(3, "loss") | KeepBest(3, "acc", "max")
    with CheckpointManager(tmp_path, keep=keep) as manager:
        for step, acc in ((1, 0.2), (2, 0.9), (3, 0.4)):
            manager.save(step, TREE, metrics={"loss": step, "acc": acc})
    assert manager.best() == 1
    assert manager.best("acc") == 2
    assert manager.best("acc", mode="min") == 1
    with pytest.raises(ValueError, match="best: mode: expected 'min' or 'max', found 'maximum'"):
        manager.best("acc", mode="maximum")  # type: ignore[arg-type]


def test_an_unreported_failure_is_a_warning_at_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing of other tests.
    monkeypatch.setattr("cordwood.saving.background_saves._unreported", {})
    with failing():
        pending = ended(CheckpointManager(tmp_path).save(1, TREE))
    assert pending._has_unreported_failure
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from cordwood.saving.background_saves import _warn_at_exit

        with pytest.raises(RuntimeWarning, match="1 in the background failed"):
            _warn_at_exit()
    assert pending.exception is not None
    assert not pending._has_unreported_failure


@pytest.mark.parametrize("kind", [EverySeconds, KeepWithin])
@pytest.mark.parametrize("seconds", ["3", None, True])
def test_seconds_that_are_no_number(kind: Any, seconds: Any) -> None:
    with pytest.raises(TypeError, match=f"seconds: expected a number, found {seconds!r}"):
        kind(seconds)


def test_a_metric_in_the_place_of_the_count() -> None:
    with pytest.raises(TypeError, match=r"the metric comes second, as KeepBest\(1, 'loss'\)"):
        KeepBest("loss", "min")  # type: ignore[arg-type]


def test_items_that_are_a_list_of_names(tmp_path: Path) -> None:
    names: Any = ["ema"]
    with pytest.raises(TypeError, match=r"a dict by name, .* or \{'ema': None\} to restore"):
        StepReader(tmp_path).restore(items=names)


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.array(["a"]), r"an array of text \(<U1\)"),
        (np.array([{}], dtype=object), r"an array of objects \(\|O\)"),
    ],
)
def test_a_state_with_an_array_that_holds_no_numbers(tmp_path: Path, array: Any, what: str) -> None:
    class Loader:
        def state_dict(self) -> Any:
            return {"names": array}

        def load_state_dict(self, state: Any) -> None: ...

    with pytest.raises(TypeError, match=rf"\['names'\]: .* arrays of numbers, found {what}"):
        CheckpointManager(tmp_path).save(1, {}, items={"data": Loader()})
