"""Every training example, killed by SIGKILL and run again, goes on bit for bit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import cordwood
from tests.children import SRC

EXAMPLES = sorted((SRC.parent / "examples").glob("train_*.py"))
STEPS = 40
KILLS = 2


def start(script: Path, root: Path) -> subprocess.Popen[str]:
    paths = [str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, str(script), str(root), str(STEPS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
    )


def losses_of(script: Path, root: Path, *, stop_after: int | None = None) -> dict[int, str]:
    """The losses that a run prints; killed once it has printed that step's."""
    found = {}
    with start(script, root) as child:
        assert child.stdout is not None
        for line in child.stdout:
            step, loss = line.split()
            found[int(step)] = loss
            if int(step) == stop_after:
                child.kill()
                break
        status = child.wait()
    assert stop_after is not None or status == 0
    return found


def test_there_are_examples() -> None:
    assert [script.stem.removeprefix("train_") for script in EXAMPLES] == [
        "equinox",
        "linen",
        "nnx",
        "sharded",
    ]


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_a_run_that_is_killed_goes_on_exactly(script: Path, tmp_path: Path) -> None:
    expected = losses_of(script, tmp_path / "whole")
    assert sorted(expected) == list(range(STEPS))
    rng = random.Random(script.stem)
    found: dict[int, str] = {}
    stops = sorted(rng.sample(range(8, STEPS - 1), KILLS))
    for stop in stops:
        found.update(losses_of(script, tmp_path / "killed", stop_after=stop))
    last = losses_of(script, tmp_path / "killed")
    assert min(last) > 0  # it resumed, and did not begin anew
    found.update(last)
    assert found == expected
    steps = cordwood.CheckpointManager(tmp_path / "killed").steps()
    assert steps[-2:] == [STEPS - 10, STEPS - 5]
    whole, killed = (tmp_path / name / str(STEPS - 5) for name in ("whole", "killed"))
    one, other = cordwood.open(whole), cordwood.open(killed)
    assert list(one) == list(other)
