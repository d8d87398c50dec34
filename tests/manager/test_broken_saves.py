"""A manager's save, and the deletion that follows, broken at every call of the system."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from tests.faults import Scenario, cut_power, fail_calls, kill_calls, why_no_power_cuts
from tests.faults.calls import calls_of_save
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

# Most of the tree stays, so its file is linked.
LINKED_TREES = """
import numpy as np

frozen = np.arange(9000, dtype=np.float32)
old = {"frozen": frozen, "w": np.arange(1000, dtype=np.float32), "step": 1}
new = {"frozen": frozen, "w": np.arange(5, 1005, dtype=np.float32), "step": 2}
"""
LINKED_LEFT = """
import json, os
leftovers = [] if len(os.listdir(path)) == 1 else os.listdir(path)
(step,) = [name for name in os.listdir(path) if not name.startswith(".")]
with open(f"{path}/{step}/cordwood.json") as file:
    items = json.load(file)["items"].values()
files = [row[0] for item in items for row in item["files"]]
inside = {"cordwood.json", "model.safetensors.index.json", *files}
leftovers += sorted(set(os.listdir(f"{path}/{step}")) - inside)
"""
LINKED = Scenario("run", LINKED_TREES, SAVE, LOAD, LINKED_LEFT)

# Several trees, one of which is linked: they are committed together.
ITEM_TREES = """
import numpy as np

frozen = {"w": np.arange(9000, dtype=np.float32)}
old = {"state": {"w": np.arange(1000, dtype=np.float32)}, "frozen": frozen, "step": 1}
new = {"state": {"w": np.arange(5, 1005, dtype=np.float32)}, "frozen": frozen, "step": 2}
"""
ITEM_SAVE = """
import warnings
import cordwood

class Step:
    def get_state(self):
        return {"step": np.int64(tree["step"])}

    def set_state(self, state): ...

with cordwood.CheckpointManager(path, keep=1) as manager:
    items = {"frozen": tree["frozen"], "step": Step()}
    manager.save((manager.latest() or 0) + 1, tree["state"], items=items)
"""
ITEM_LOAD = """
import warnings
import cordwood

with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)  # of steps that did not finish
    manager = cordwood.CheckpointManager(path)
    restored = manager.restore(items={"frozen": None, "step": None})
    step = int(restored.items["step"]["step"])
    found = {"state": restored.tree, "frozen": restored.items["frozen"], "step": step}
"""
ITEMS = Scenario("run", ITEM_TREES, ITEM_SAVE, ITEM_LOAD, LINKED_LEFT)

each = pytest.mark.parametrize("steps", [STEPS, LINKED, ITEMS], ids=["written", "linked", "items"])


def test_files_are_linked(tmp_path: Path) -> None:
    assert calls_of_save(LINKED, str(tmp_path)).count("link") == 1
    assert calls_of_save(ITEMS, str(tmp_path / "items")).count("link") == 1
    assert calls_of_save(STEPS, str(tmp_path / "other")).count("link") == 0


@each
def test_saves_in_memory_make_the_calls_of_saves_on_a_disk(
    memory_folder: str, tmp_path: Path, steps: Scenario
) -> None:
    """The files are too small for direct writes, which tests/storage breaks on a disk."""
    assert Counter(calls_of_save(steps, memory_folder)) == Counter(
        calls_of_save(steps, str(tmp_path / "disk"))
    )


@each
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_failed_system_call_leaves_complete_steps(
    memory_folder: str, steps: Scenario, code: int
) -> None:
    check(list(fail_calls(steps, memory_folder, code)), at_least=20)


@each
@pytest.mark.parametrize("torn", [False, True], ids=["before", "torn"])
def test_the_process_ends_at_any_call(memory_folder: str, steps: Scenario, torn: bool) -> None:
    outcomes = list(kill_calls(steps, memory_folder, torn=torn))
    check(outcomes, at_least=20)
    assert {outcome.found for outcome in outcomes} == {"old", "new"}


@each
def test_a_power_cut_leaves_complete_steps(tmp_path: Path, steps: Scenario) -> None:
    if why := why_no_power_cuts(str(tmp_path)):
        pytest.skip(why)
    check(list(cut_power([steps], str(tmp_path), delays_seconds=(0.0,))), at_least=1)
