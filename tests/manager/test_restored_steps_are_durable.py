"""A step that a manager has restored survives a power cut, although no save of it has returned."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cordwood import CheckpointManager, StepReader
from cordwood.storage import syscalls


class _Flushes(syscalls.SystemCalls):
    """System calls that record the directories that are flushed, or fail to flush them."""

    def __init__(self, failure: OSError | None = None) -> None:
        self.directories: list[str] = []
        self._failure = failure

    def fsync(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isdir(path):
            self.directories.append(path)
            if self._failure is not None:
                raise self._failure
        super().fsync(fd)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with CheckpointManager(tmp_path / "run", background=False) as manager:
        for step in (1, 2):
            manager.save(step, {"w": np.full(3, step)})
    return tmp_path / "run"


@pytest.mark.parametrize("step", [(), (1,)], ids=["the newest", "by its number"])
def test_a_manager_flushes_what_it_restores(root: Path, step: tuple[int, ...]) -> None:
    system = _Flushes()
    with syscalls.override(system), CheckpointManager(root) as manager:
        restored = manager.restore(*step)
    assert restored is not None
    assert system.directories == [str(root), str(root / str(restored.step))]


@pytest.mark.parametrize(
    "read", [lambda root: StepReader(root).restore(), lambda root: CheckpointManager(root).latest()]
)
def test_readers_flush_nothing(root: Path, read: Callable[[Path], object]) -> None:
    system = _Flushes()
    with syscalls.override(system):
        read(root)
    assert system.directories == []


def test_a_disk_that_cannot_flush_is_reported(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        syscalls.override(_Flushes(OSError(5, "the disk fails"))),
        CheckpointManager(root) as manager,
    ):
        restored = manager.restore()
    assert restored is not None
    assert restored.step == 2
    (record,) = caplog.records
    assert "the restored step could not be flushed: [Errno 5] the disk fails" in record.message
