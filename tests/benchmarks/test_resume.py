"""The benchmark of loads in new processes: every contender loads, and the page has the claims."""

from __future__ import annotations

from pathlib import Path

from benchmarks import in_turns
from benchmarks.directory_trees import smoke
from benchmarks.resume import (
    CLAIMS,
    CLAIMS_IN_TURNS,
    CONTENDERS_OF,
    MODES,
    REPEATS,
    page,
    page_in_turns,
    prepare,
    run_contender,
)


def test_all_contenders_load_what_was_prepared(tmp_path: Path) -> None:
    prepare(smoke(), tmp_path)
    for name in CONTENDERS_OF["repeated"]:
        seconds = run_contender(name, "repeated", tmp_path)
        assert len(seconds) == REPEATS
        assert min(seconds) > 0


def test_a_claim_that_is_not_met_is_said() -> None:
    medians = {mode: dict.fromkeys(CONTENDERS_OF[mode], 1.0) for mode in MODES}
    text = page(medians, 1_500_000_000, 5, ["# Title"])
    for claim in CLAIMS:
        met = "met" if claim.target <= 1 else "**not met**"
        assert f"| {claim.other} / {claim.ours} | 1.00 | {claim.target:g} | {met} |" in text
    assert text.count("## ") == len(MODES)


def test_in_turns_every_contender_saves_and_loads(tmp_path: Path) -> None:
    seconds = in_turns.run_in_turns(smoke(), tmp_path)
    assert list(seconds) == in_turns.CONTENDERS
    for pairs in seconds.values():
        assert len(pairs) == in_turns.ROUNDS - 1
        assert min(min(pair) for pair in pairs) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_claim_in_turns_that_is_not_met_is_said() -> None:
    medians = {what: dict.fromkeys(in_turns.CONTENDERS, 1.0) for what in ("save", "load")}
    text = page_in_turns(medians, 500_000_000, 5)
    for claim in CLAIMS_IN_TURNS:
        met = "met" if claim.target <= 1 else "**not met**"
        row = f"{claim.mode}: {claim.other} / {claim.ours}"
        assert f"| {row} | 1.00 | {claim.target:g} | {met} |" in text
