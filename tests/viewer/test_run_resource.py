"""The resource `run`: the steps, their sizes, and the state of each."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.manager.step_summaries import summarize_steps
from cordwood.viewer.export_page import export_page
from cordwood.viewer.resources import Resources
from cordwood.viewer.sources import OpenArguments, open_sources
from tests.viewer.gpt2_run import Faults, save_run

FAULTS = Faults(damaged=30, unfinished=60)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "run"
    save_run(root, count=6, every=10, faults=FAULTS)
    return root


def run_of(root: Path | str) -> dict[str, Any]:
    sources = open_sources(str(root), None, OpenArguments())
    answer: dict[str, Any] = Resources(sources).answer("run")
    sources.close()
    return answer


@pytest.fixture(scope="module")
def run(root: Path) -> dict[str, Any]:
    return run_of(root)


def test_each_step_has_its_number_time_and_metrics(run: dict[str, Any]) -> None:
    assert [step["number"] for step in run["steps"]] == [10, 20, 30, 40, 50, 60]
    assert run["metric_names"] == ["loss", "accuracy", "learning_rate"]
    times = [step["time"] for step in run["steps"]]
    assert times == sorted(times)
    losses = [step["metrics"].get("loss") for step in run["steps"]]
    assert [loss is None for loss in losses] == [False, False, True, False, False, True]


def test_damaged_and_unfinished_steps_say_so(run: dict[str, Any]) -> None:
    states = [step["state"] for step in run["steps"]]
    assert states == ["whole", "whole", "damaged", "whole", "whole", "unfinished"]
    assert run["steps"][2]["problem"].startswith("damaged: ")
    assert "no index" in run["steps"][5]["problem"]


def test_reasons_to_keep_a_step_are_those_in_the_files(run: dict[str, Any]) -> None:
    kept = [step["kept"] for step in run["steps"]]
    expected = ["it is damaged: no policy deletes it"]
    assert kept == [[], [], expected, [], ["it is the newest whole step"], []]
    assert "manager.plan()" in run["policy"]


def test_linked_bytes_are_those_of_files_that_an_earlier_step_has(
    root: Path, run: dict[str, Any]
) -> None:
    first, second = run["steps"][:2]
    assert first["linked_bytes"] == 0
    shared = [file for file in (root / "20").iterdir() if (root / "10" / file.name).exists()]
    linked = [file.stat().st_size for file in shared if file.name != "cordwood.json"]
    assert second["linked_bytes"] == sum(linked) > 1 << 20
    assert second["written_bytes"] + second["linked_bytes"] == second["disk_bytes"]


def test_a_pinned_step_is_marked(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"w": np.zeros(3)})
        manager.save(2, {"w": np.zeros(3)})
        manager.wait()
        with manager.pin(1):
            steps = run_of(tmp_path)["steps"]
    assert [step["pinned"] for step in steps] == [True, False]
    assert steps[0]["kept"] == ["a job has pinned it"]


def test_steps_of_other_tools_say_that_no_policy_deletes_them(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "7", {"w": np.zeros(3)})
    (step,) = run_of(tmp_path)["steps"]
    assert step["kept"][1:] == ["saved by cordwood.save: no policy deletes it"]
    assert step["state"] == "whole"


def test_a_run_in_an_object_store_has_no_sizes(tmp_path: Path) -> None:
    url = f"memory://runview-{uuid.uuid4().hex}/run"
    with CheckpointManager(url) as manager:
        manager.save(1, {"w": np.zeros(3)}, metrics={"loss": float("nan")})
        manager.save(2, {"w": np.zeros(3)}, metrics={"loss": 1.0})
    run = run_of(url)
    assert [step["disk_bytes"] for step in run["steps"]] == [None, None]
    assert [step["written_bytes"] for step in run["steps"]] == [None, None]
    assert [step["format"] for step in run["steps"]] == ["packs", "packs"]
    assert run["steps"][1]["metrics"] == {"loss": 1.0}


def test_a_run_that_goes_on_is_listed_anew(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, background=False) as manager:
        manager.save(1, {"w": np.zeros(3)})
        sources = open_sources(str(tmp_path), None, OpenArguments())
        resources = Resources(sources)
        assert [step["name"] for step in resources.answer("run")["steps"]] == ["1"]
        manager.save(2, {"w": np.full(4, 1.5)})
        manager.delete(1)
        assert [step["name"] for step in resources.answer("run")["steps"]] == ["2"]
        assert resources.answer("norms/2/all")["l2"] == [3.0]
        manager.delete(2)
        with pytest.raises(FileNotFoundError):
            resources.answer("run")
    sources.close()


def test_an_export_lists_a_run_once(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "run") as manager:
        for step in range(3):
            manager.save(step, {"w": np.full(4, step)})
    sources = open_sources(str(tmp_path / "run"), None, OpenArguments())
    name = "cordwood.viewer.run_view.summarize_steps"
    with mock.patch(name, side_effect=summarize_steps) as listing:
        export_page(Resources(sources), max_bytes=20_000_000)
    sources.close()
    assert listing.call_count == 1
