"""Metrics are added to a committed step: atomically, and by several jobs at once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager, KeepBest, StepReader
from cordwood.errors import StepError
from cordwood.storage import syscalls
from tests.cli.conftest import Run, run
from tests.manager.dying import Dying, Killed
from tests.storage.stores import new_url
from tests.threads import in_threads

__all__ = ["run"]

TREE = {"w": np.arange(400.0), "frozen": np.ones(900)}


@pytest.fixture(params=["local", "memory", "s3", "gs"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "run")
    else:
        with new_url(request.param, monkeypatch) as url:
            yield url


def saved(root: str, *steps: int, **metrics: float) -> CheckpointManager:
    with CheckpointManager(root) as manager:
        for step in steps:
            manager.save(step, {**TREE, "step": step}, metrics=metrics)
    return manager


def test_they_count_as_if_they_had_been_saved(root: str, run: Run) -> None:
    saved(root, 1, 2, 3, loss=0.5)
    other = CheckpointManager(root)  # of the evaluation
    for step, accuracy in ((1, 0.7), (2, 0.9), (3, np.float32(0.8))):
        other.add_metrics(step, {"accuracy": accuracy})
    reader = StepReader(root)
    assert reader.metrics(2) == {"loss": 0.5, "accuracy": 0.9}
    assert reader.best("accuracy", mode="max") == 2
    for step in (1, 2, 3):
        assert reader.restore(step).tree["step"] == step
        assert cordwood.verify(f"{root}/{step}").unverified_bytes == 0
        assert cordwood.gc(f"{root}/{step}") == []
    keep = KeepBest(1, "accuracy", mode="max")
    with CheckpointManager(root, keep=keep) as manager:
        manager.save(4, TREE, metrics={"loss": 0.5, "accuracy": 0.1})
    assert manager.steps() == [2, 4]
    steps = json.loads(run("steps", root, "--json").out)["steps"]
    assert steps[0]["metrics"] == {"loss": 0.5, "accuracy": 0.9}


def test_a_value_is_replaced_only_on_request(root: str) -> None:
    manager = saved(root, 1, loss=math.nan)
    manager.add_metrics(1, {"a": 1, "loss": math.nan})
    manager.add_metrics(1, {"a": 1.0})
    with pytest.raises(StepError, match="step 1 has a=1 already, and cannot be given 2: pass"):
        manager.add_metrics(1, {"a": 2, "b": 3})
    assert manager.metrics(1).keys() == {"a", "loss"}
    manager.add_metrics(1, {"a": 2}, overwrite=True)
    assert manager.metrics(1)["a"] == 2


def test_what_has_no_record_is_refused(root: str) -> None:
    cordwood.save(f"{root}/5", TREE)
    manager = CheckpointManager(root)
    with pytest.raises(StepError, match="no CheckpointManager saved this step"):
        manager.add_metrics(5, {"a": 1})
    with pytest.raises(FileNotFoundError, match="there is no step 6; there are: 5"):
        manager.add_metrics(6, {"a": 1})
    with pytest.raises(TypeError, match="metrics: a: expected a number"):
        manager.add_metrics(5, {"a": "x"})  # type: ignore[dict-item]


def test_several_jobs_add_theirs_at_once(root: str) -> None:
    saved(root, 1)
    managers = [CheckpointManager(root) for _ in range(6)]
    in_threads(lambda number: managers[number].add_metrics(1, {f"m{number}": number}), 6)
    assert StepReader(root).metrics(1) == {f"m{number}": number for number in range(6)}


def test_a_killed_call_leaves_the_metrics_before_or_after(tmp_path: Path) -> None:
    saved(str(tmp_path), 1, 2)
    for call in range(1, 30):
        dying = Dying(call)
        with syscalls.override(dying), suppress(Killed):
            CheckpointManager(tmp_path).add_metrics(1, {f"m{call}": call})
        metrics = StepReader(tmp_path).metrics(1)
        assert metrics.keys() <= {f"m{number}" for number in range(1, call + 1)}
        assert cordwood.verify(tmp_path / "1").unverified_bytes == 0
        if not dying.died:
            break
    assert not dying.died
    assert metrics[f"m{call}"] == call
    assert [name.name for name in (tmp_path / "1").iterdir() if ".cordwood-" in name.name] == []


def test_they_are_no_new_step_for_whoever_follows_the_run(root: str) -> None:
    """An evaluation that adds metrics to each new step would never end."""
    saved(root, 1)
    reader = StepReader(root)
    seen = []
    for step in reader.new_steps(timeout_seconds=0, poll_seconds=0.01):
        seen.append(step)
        CheckpointManager(root).add_metrics(step, {"accuracy": step})
        if step < 3:
            saved(root, step + 1)
    assert seen == [1, 2, 3]


def test_links_and_copies_of_a_step(tmp_path: Path, root: str) -> None:
    """The files are shared; a copy gets metrics that were added later, and keeps its own."""
    manager = saved(root, 1, 2)
    copied = str(tmp_path / "copied")
    cordwood.copy(root, copied)
    manager.add_metrics(1, {"here": 1})
    CheckpointManager(copied).add_metrics(1, {"there": 2})
    report = cordwood.copy(root, copied)
    assert report.files == 0
    assert StepReader(copied).metrics(1) == {"here": 1, "there": 2}
    assert StepReader(root).metrics(1) == {"here": 1}
    assert StepReader(copied).restore(1).tree["step"] == 1
    assert cordwood.verify(f"{copied}/1").unverified_bytes == 0
    CheckpointManager(copied).add_metrics(1, {"here": 3}, overwrite=True)
    with pytest.raises(FileExistsError, match="another one than that to copy"):
        cordwood.copy(root, copied)
