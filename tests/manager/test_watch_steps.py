"""Jobs that only read: they wait for steps, and pin those that they read."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from cordwood import CheckpointManager
from cordwood.errors import StepError

TREE = {"w": np.zeros(3)}


def save(root: Path, step: int, keep: int = 9) -> None:
    with CheckpointManager(root, keep=keep) as manager:
        manager.save(step, TREE)


def test_waiting_for_a_step(tmp_path: Path) -> None:
    reader = CheckpointManager(tmp_path)
    assert reader.wait_for_new_step(0.05, poll_seconds=0.01) is None
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert reader.wait_for_new_step(0) == 2
    assert reader.wait_for_new_step(0) is None
    timer = threading.Timer(0.1, save, (tmp_path, 3))
    timer.start()
    assert reader.wait_for_new_step(poll_seconds=0.01) == 3
    timer.join()
    save(tmp_path, 4)
    assert reader.restore() is not None
    assert reader.wait_for_new_step(0) is None  # it has been restored


def test_new_steps_as_they_come(tmp_path: Path) -> None:
    reader, seen = CheckpointManager(tmp_path), []
    save(tmp_path, 1)
    for step in reader.new_steps(0):
        seen.append(step)
        if step < 5:
            save(tmp_path, step + 2)
    assert seen == [1, 3, 5]


def test_a_pinned_step_is_not_deleted(tmp_path: Path) -> None:
    reader = CheckpointManager(tmp_path, keep=1)
    save(tmp_path, 1)
    with reader.pin(1) as path:
        assert path == f"{tmp_path}/1"
        save(tmp_path, 2, keep=1)
        assert reader.steps() == [1, 2]
        assert str(reader.plan()).splitlines()[0] == "1  keep    pinned"
        with pytest.raises(StepError, match="step 1 is in use, and was not deleted"):
            reader.delete(1)
        assert reader.restore(1).tree["w"].shape == (3,)
    assert reader.plan().deleted == [1]
    save(tmp_path, 3, keep=1)
    assert reader.steps() == [3]


def test_a_pin_goes_with_its_process(tmp_path: Path) -> None:
    save(tmp_path, 1)
    code = (
        "import sys, cordwood\n"
        "with cordwood.CheckpointManager(sys.argv[1]).pin(1):\n"
        "    print('pinned', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"pinned\n"
    save(tmp_path, 2, keep=1)
    assert CheckpointManager(tmp_path).steps() == [1, 2]
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    save(tmp_path, 3, keep=1)
    assert CheckpointManager(tmp_path).steps() == [3]


def test_pinning_what_is_not_there(tmp_path: Path) -> None:
    save(tmp_path, 1)
    reader = CheckpointManager(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no step 2; there are: 1"), reader.pin(2):
        pytest.fail("nothing is pinned")
    with pytest.raises(FileNotFoundError, match="the reader's own"), reader.pin(1):
        raise FileNotFoundError("the reader's own")
