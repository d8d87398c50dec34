"""The benchmark of managers, on a small state: every contender saves, resumes and fails."""

from __future__ import annotations

from pathlib import Path

from benchmarks.manager import measure_in_child
from benchmarks.manager_failures import QUESTIONS, answers
from benchmarks.manager_names import CORDWOOD, NAMES, WITHOUT
from benchmarks.manager_report import as_markdown


def test_all_contenders_work(tmp_path: Path) -> None:
    measured = measure_in_child("smoke", tmp_path)
    assert list(tmp_path.iterdir()) == []
    text = as_markdown({"smoke": measured}, {}, {}, "this machine")
    for name in (WITHOUT, *NAMES):
        assert f"| {name} |" in text
    assert text.count("| overhead, ") == 2
    assert set(measured.resumes) == set(measured.frozen_bytes) == set(NAMES)


def test_a_save_that_fails_is_reported_and_leaves_the_last_good_step(tmp_path: Path) -> None:
    results = answers(CORDWOOD, tmp_path)
    assert set(results) == set(QUESTIONS)
    assert results["latest_2"] == results["latest_3"] == results["left"] == "1"
    assert results["save_3"].startswith(
        "PendingSaveError: the save of step 2 in the background failed"
    )
    assert results["resume"] == "1, as it was saved"
