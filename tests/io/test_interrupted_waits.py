"""Ctrl-C in a call that waits for an earlier save in the background: the wait ends at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood import PendingSave
from cordwood.storage import syscalls

TREE = {"w": np.ones(4, np.float32)}


class HeldFsync(syscalls.SystemCalls):
    """The real system calls; fsync waits until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def fsync(self, fd: int) -> None:
        assert self.go_on.wait(120)
        super().fsync(fd)


def save(folder: Path) -> Callable[[], object]:
    cordwood.save_async(folder / "tree", TREE)
    return lambda: cordwood.save(folder / "tree", TREE)


def copy(folder: Path) -> Callable[[], object]:
    cordwood.save_async(folder / "tree", TREE)
    return lambda: cordwood.copy(folder / "tree", folder / "copy")


def save_step(folder: Path) -> Callable[[], object]:
    manager = cordwood.CheckpointManager(folder / "run")
    manager.save(1, TREE)
    return lambda: manager.save(2, TREE)


@pytest.mark.parametrize("begin", [save, copy, save_step])
def test_the_wait_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Path], Callable[[], object]]
) -> None:
    waiting = threading.Event()
    wait = PendingSave._wait

    def waits(pending: PendingSave, timeout_seconds: float | None) -> bool:
        waiting.set()
        return wait(pending, timeout_seconds)

    def interrupt() -> None:
        assert waiting.wait(120)
        os.kill(os.getpid(), signal.SIGINT)

    held = HeldFsync()
    with syscalls.override(held):
        call = begin(tmp_path)
        monkeypatch.setattr(PendingSave, "_wait", waits)
        sender = threading.Thread(target=interrupt)
        sender.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                call()
            assert not held.go_on.is_set()
        finally:
            held.go_on.set()
            sender.join()
        monkeypatch.undo()
        cordwood.save(tmp_path / "tree", TREE)  # waits for what was begun
    assert cordwood.load(tmp_path / "tree").keys() == TREE.keys()
