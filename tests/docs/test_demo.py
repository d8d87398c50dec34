"""The kill in the demo happens between the start and the end of a save."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demo.children import INDEX, RunOutput, kill_in_a_save, require_links

# Begins to save a step, if it gets one as an argument, and does not end.
CHILD = """
import sys, time
from pathlib import Path

for folder in map(Path, sys.argv[1:]):
    folder.mkdir()
    folder.joinpath("data-0-0-0.safetensors").write_bytes(b"x")
    time.sleep(600)
"""


def child_saving(*folders: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, *map(str, folders)], text=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a root in which step 3 is complete."""
    (tmp_path / "3").mkdir()
    for name in ("data-0-0-0.safetensors", INDEX):
        (tmp_path / "3" / name).write_bytes(b"x")
    return tmp_path


def test_it_passes_over_a_save_that_has_ended(root: Path) -> None:
    with child_saving(root / "6") as child:
        assert kill_in_a_save(child, root, [3, 6]) == 6
    assert child.returncode == -signal.SIGKILL
    assert not (root / "6" / INDEX).exists()


def test_it_fails_where_there_is_no_such_save(root: Path) -> None:
    message = r"no save of steps \[3, 6\] was met in the middle"
    with child_saving() as child, pytest.raises(SystemExit, match=message):
        kill_in_a_save(child, root, [3, 6])


def output(*linked: int) -> RunOutput:
    saves = [{"step": i, "linked_bytes": size} for i, size in enumerate(linked)]
    return RunOutput({}, saves, {}, {})


def test_it_fails_where_what_is_frozen_is_written_again() -> None:
    require_links(output(0, 5, 7))
    with pytest.raises(SystemExit, match="the save of step 2 linked nothing"):
        require_links(output(0, 5, 0))
    with pytest.raises(SystemExit, match="expected two saves or more, found 1"):
        require_links(output(0))
