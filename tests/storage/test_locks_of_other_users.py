"""Lock files that a killed save of another user has left."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood.storage.locks.lock_files import locked
from tests.children import run_python

_SAVE_AS_ANOTHER_USER = """
    import os, sys
    import numpy as np
    import cordwood

    def save(root, step):
        with cordwood.CheckpointManager(root) as manager:
            manager.save(step, {"w": np.ones(3)})

    save(sys.argv[2], 1)  # imports all: another user may not reach the modules
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
    try:
        save(sys.argv[1], 2)
        print("saved")
    except OSError as e:
        print(type(e).__name__, e)
"""


@pytest.fixture
def shared_step() -> Iterator[Path]:
    """Yield the directory of a step, in a run where all users may write."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    with tempfile.TemporaryDirectory() as folder:
        above = Path(folder)
        if not all(each.stat().st_mode & 0o001 for each in above.parents):
            pytest.skip("other users cannot reach the directory of temporary files")
        above.chmod(0o755)
        step = above / "run" / "2"
        step.mkdir(parents=True)
        for each in (step.parent, step):
            each.chmod(0o777)
        yield step


def test_a_lock_that_another_user_has_left_is_named_with_what_to_do(shared_step: Path) -> None:
    lock = shared_step / ".cordwood.json.cordwood-lock"
    lock.touch()
    lock.chmod(0o600)
    run, above = str(shared_step.parent), shared_step.parent.parent
    out = run_python(_SAVE_AS_ANOTHER_USER, run, str(above / "rehearsal"))
    assert out.startswith("LockedOutError ")
    assert "belongs to the user 0, with the mode 600, and cannot be opened" in out
    command = out.partition("remove it: ")[2].split(": '")[0]
    assert shlex.split(command) == ["rm", str(lock)]
    subprocess.run(shlex.split(command), check=True)  # as the message says
    assert run_python(_SAVE_AS_ANOTHER_USER, run, str(above / "again")).strip() == "saved"


def test_a_lock_can_be_opened_by_all_who_may_write_there(shared_step: Path) -> None:
    """Whatever the umask of the save that was killed."""
    path = str(shared_step / ".lock")
    previous = os.umask(0o077)
    try:
        with locked(path):
            assert os.stat(path).st_mode & 0o777 == 0o644
        shared_step.chmod(0o700)
        with locked(path):
            assert os.stat(path).st_mode & 0o777 == 0o600
    finally:
        os.umask(previous)
