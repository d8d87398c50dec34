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
STEPS = 40  # of an example without other arguments
KILLS = {"train_sharded": 2}  # others: 1


def start(script: Path, folder: Path, *, compiled: Path | None) -> subprocess.Popen[str]:
    """Run a script in a folder; jax keeps in `compiled` what it compiles, and finds it there."""
    paths = [str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if compiled is not None:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(compiled)
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        environment["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(script)]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def losses_of(
    script: Path, folder: Path, *, compiled: Path | None = None, stop_after: int | None = None
) -> dict[int, str]:
    """Return the losses that a run prints; kill it after the loss of the step `stop_after`."""
    by_name = {}
    with start(script, folder, compiled=compiled) as child:
        assert child.stdout is not None
        for line in child.stdout:
            step, loss = line.split()
            by_name[int(step)] = loss
            if int(step) == stop_after:
                child.kill()
                break
        status = child.wait()
    assert stop_after is not None or status == 0
    return by_name


def test_there_are_examples() -> None:
    assert [script.stem.removeprefix("train_") for script in EXAMPLES] == [
        "equinox",
        "linen",
        "nnx",
        "sharded",
    ]


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_a_run_that_is_killed_goes_on_exactly(script: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "compiled"
    expected = losses_of(script, tmp_path / "whole", compiled=compiled)
    assert sorted(expected) == list(range(STEPS))
    rng = random.Random(script.stem)
    by_name: dict[int, str] = {}
    stops = sorted(rng.sample(range(8, STEPS - 1), KILLS.get(script.stem, 1)))
    for stop in stops:
        folder = tmp_path / "killed"
        by_name.update(losses_of(script, folder, compiled=compiled, stop_after=stop))
    last = losses_of(script, tmp_path / "killed")  # which compiles all for itself
    assert min(last) > 0  # it resumed, and did not begin anew
    by_name.update(last)
    assert by_name == expected
    root = f"run-{script.stem.removeprefix('train_')}"
    steps = cordwood.CheckpointManager(tmp_path / "killed" / root).steps()
    assert steps[-2:] == [STEPS - 10, STEPS - 5]
    whole, killed = (tmp_path / name / root / str(STEPS - 5) for name in ("whole", "killed"))
    assert cordwood.diff(whole, killed).equal
