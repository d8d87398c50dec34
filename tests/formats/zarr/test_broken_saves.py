"""Saves of a directory of the zarr layout over an older one, broken in every way."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cordwood.storage.syscalls import SystemCalls
from tests.faults import (
    Scenario,
    cut_power,
    fail_calls,
    kill_calls,
    strace_kills,
    why_no_power_cuts,
    why_no_strace,
)
from tests.outcomes import check, check_errors

TREES = """
import numpy as np

def tree_of(start, elements):
    w = np.arange(start, start + elements, dtype=np.float32)
    return {"w": w, "name": f"run {start}"}

old = tree_of(0, 1000)
new = tree_of(5, ELEMENTS)
"""

# Beside the tree there are another item and a file that is no part of the checkpoint.
SAVE = """
import os
import cordwood

if not os.path.isdir(path) and not os.path.isdir(os.path.dirname(path) + "/.c.cordwood-old"):
    cordwood.save(path, {"other": np.ones(3)}, format="zarr", prefix="other")
    with open(path + "/note", "w") as note:
        note.write("mine")
        os.fsync(note.fileno())
    directory = os.open(path, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
cordwood.save(path, tree, format="zarr"OPTIONS)
"""
LOAD = """
from pathlib import Path
import cordwood
from cordwood.storage.paths import (locate_directory)

found = cordwood.load(path, prefix="")
assert cordwood.load(path, prefix="other")["other"].tolist() == [1, 1, 1]
assert Path(locate_directory(path), "note").read_text() == "mine"
"""
LEFTOVERS = """
import os
known = {"w", "other", "note", "tensorstore_index.json"}
leftovers = sorted(set(os.listdir(path)) - known)
"""
NO_EXCHANGE = """
import errno
from cordwood.storage.syscalls import SystemCalls

def exchange(self, one, other):
    raise OSError(errno.EINVAL, "no exchange here")

SystemCalls.exchange = exchange
"""


def scenario(elements: int, options: str = "", *, exchange: bool = True) -> Scenario:
    trees = TREES.replace("ELEMENTS", str(elements)) + ("" if exchange else NO_EXCHANGE)
    return Scenario("c", trees, SAVE.replace("OPTIONS", options), LOAD, LEFTOVERS)


SCENARIOS = {
    "raw": scenario(3000),
    "zstd": scenario(3000, ', compression="zstd"'),
    "large": scenario(2_500_000),
    "no-exchange": scenario(3000, exchange=False),
}


@pytest.fixture(autouse=True)
def _exchange_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemCalls, "exchange", SystemCalls.exchange)  # a scenario may replace it


@pytest.mark.parametrize(
    ("name", "code"),
    [("raw", errno.EIO), ("zstd", errno.ENOSPC), ("no-exchange", errno.EIO)],
)
def test_a_failed_system_call_leaves_old_or_new(memory_folder: str, name: str, code: int) -> None:
    outcomes = list(fail_calls(SCENARIOS[name], memory_folder, code))
    check(outcomes, at_least=40)
    check_errors(outcomes, code, name="c")


@pytest.mark.parametrize("name", ["raw", "no-exchange"])
def test_the_process_ends_at_any_call(memory_folder: str, name: str) -> None:
    outcomes = list(kill_calls(SCENARIOS[name], memory_folder, torn=name == "raw"))
    check(outcomes, at_least=40)
    assert {outcome.found for outcome in outcomes} == {"old", "new"}
    assert not any(outcome.returned for outcome in outcomes)


def test_a_killed_save_leaves_old_or_new(tmp_path: Path) -> None:
    if why := why_no_strace():
        pytest.skip(why)
    outcomes = list(strace_kills(SCENARIOS["large"], str(tmp_path), sample=10))
    check(outcomes, at_least=8)
    assert any(not outcome.returned for outcome in outcomes)


def test_a_power_cut_leaves_the_new_tree(tmp_path: Path) -> None:
    """The power is cut when save returns, and 8 s later, when the kernel has written more."""
    if why := why_no_power_cuts(str(tmp_path)):
        pytest.skip(why)
    scenarios = [SCENARIOS[name] for name in ("large", "no-exchange")]
    check(cut_power(scenarios, str(tmp_path), delays_seconds=(0.0, 8.0)), at_least=4)
