"""A manager's save, and the deletion that follows, broken at every call of the system."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cordwood.testing.faults import Scenario, cut_power, fail_calls, kill_calls, why_no_power_cuts
from tests.outcomes import check

# Numpy only: the children that fork must not start jax.
TREES = """
import numpy as np

old = {"w": np.arange(1000, dtype=np.float32), "step": 1}
new = {"w": np.arange(5, 3005, dtype=np.float32), "step": 2}
"""
SAVE = """
import warnings
import cordwood

with cordwood.CheckpointManager(path, keep=1) as manager:
    manager.save((manager.latest() or 0) + 1, tree)
"""
LOAD = """
import warnings
import cordwood

with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)  # of steps that did not finish
    found = cordwood.CheckpointManager(path).restore().tree
"""
LEFT = """
import os
leftovers = [] if len(os.listdir(path)) == 1 else os.listdir(path)
(step,) = [name for name in os.listdir(path) if not name.startswith(".")]
inside = os.listdir(f"{path}/{step}")
if len(inside) != 3:
    leftovers += inside
"""
STEPS = Scenario("run", TREES, SAVE, LOAD, LEFT)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_any_call_fails(tmp_path: Path, code: int) -> None:
    check(list(fail_calls(STEPS, str(tmp_path), code)), at_least=20)


@pytest.mark.parametrize("torn", [False, True], ids=["before", "torn"])
def test_the_process_ends_at_any_call(tmp_path: Path, torn: bool) -> None:
    outcomes = list(kill_calls(STEPS, str(tmp_path), torn=torn))
    check(outcomes, at_least=20)
    assert {outcome.found for outcome in outcomes} == {"old", "new"}


def test_the_power_is_cut(tmp_path: Path) -> None:
    if why := why_no_power_cuts(str(tmp_path)):
        pytest.skip(why)
    check(list(cut_power(STEPS, str(tmp_path), delays_seconds=(0.0,))), at_least=1)
