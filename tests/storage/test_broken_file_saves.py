"""Every way to save one file, over an older one, broken in every way that the harness knows."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

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


def trees(elements: int) -> str:
    """Numpy only: the children that fork must not start jax."""
    return f"""
import numpy as np

def tree_of(start, elements):
    w = np.arange(start, start + elements, dtype=np.float32)
    return {{"params": {{"w": w, "b": w[:7].astype(np.int16)}}, "step": np.asarray(start)}}

old = tree_of(0, 1000)
new = tree_of(5, {elements})
"""


SAVE = "import cordwood; cordwood.save(path, tree)"
LOAD = "import cordwood; found = cordwood.load(path)"
SAVE_TO_FILE = "import cordwood; cordwood.save_to_file(tree, path)"
LOAD_FROM_FILE = "import cordwood; found = cordwood.load_from_file(new, path)"

LEFT_IN_PACKS = """
import os
import cordwood
leftovers = cordwood.gc(path, dry_run=True)
names = [name for name in os.listdir(path) if not name.startswith("data-")]
if sorted(names) != ["cordwood.json", "model.safetensors.index.json"]:
    leftovers += names
if len(os.listdir(path)) != 3:
    leftovers += os.listdir(path)
"""
SAVE_PREFIX = "import cordwood; cordwood.save(path, tree, prefix='p')"

SMALL, LARGE = trees(3000), trees(2_500_000)  # LARGE takes O_DIRECT, fallocate and threads

SCENARIOS = {
    "safetensors": Scenario("m.safetensors", SMALL, SAVE, LOAD),
    "safetensors-large": Scenario("m.safetensors", LARGE, SAVE, LOAD),
    "msgpack": Scenario("m.msgpack", SMALL, SAVE, LOAD),
    "msgpack-large": Scenario("m.msgpack", LARGE, SAVE, LOAD),
    "msgpack-zst": Scenario("m.msgpack.zst", SMALL, SAVE, LOAD),
    "packs": Scenario("ckpt", SMALL, SAVE, LOAD, LEFT_IN_PACKS),
    "packs-large": Scenario("ckpt", LARGE, SAVE_PREFIX, LOAD, LEFT_IN_PACKS),
    "save_to_file": Scenario("m.bin", SMALL, SAVE_TO_FILE, LOAD_FROM_FILE),
    "save_to_file-large": Scenario("m.bin", LARGE, SAVE_TO_FILE, LOAD_FROM_FILE),
}
each_scenario = pytest.mark.parametrize("name", SCENARIOS)


@each_scenario
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_failed_system_call_leaves_old_or_new(tmp_path: Path, name: str, code: int) -> None:
    outcomes = list(fail_calls(SCENARIOS[name], str(tmp_path), code))
    check(outcomes, at_least=9)
    check_errors(outcomes, code, name=SCENARIOS[name].name)


@each_scenario
@pytest.mark.parametrize("torn", [False, True], ids=["before", "torn"])
def test_the_process_ends_at_any_call(tmp_path: Path, name: str, torn: bool) -> None:
    outcomes = list(kill_calls(SCENARIOS[name], str(tmp_path), torn=torn))
    check(outcomes, at_least=9)
    assert {outcome.found for outcome in outcomes} == {"old", "new"}
    assert not any(outcome.returned for outcome in outcomes)


@pytest.mark.parametrize(
    "name", ["safetensors-large", "msgpack", "msgpack-zst", "save_to_file", "packs"]
)
def test_a_killed_save_leaves_old_or_new(tmp_path: Path, name: str) -> None:
    if why := why_no_strace():
        pytest.skip(why)
    outcomes = list(strace_kills(SCENARIOS[name], str(tmp_path), sample=6))
    check(outcomes, at_least=5)
    assert any(not outcome.returned for outcome in outcomes)


def test_a_power_cut_leaves_the_new_file(tmp_path: Path) -> None:
    """The power is cut when save returns, and 8 s later, when the kernel has written more."""
    if why := why_no_power_cuts(str(tmp_path)):
        pytest.skip(why)
    names = ["safetensors-large", "msgpack", "save_to_file", "packs-large"]
    scenarios = [SCENARIOS[name] for name in names]
    check(cut_power(scenarios, str(tmp_path), delays_seconds=(0.0, 8.0)), at_least=8)
