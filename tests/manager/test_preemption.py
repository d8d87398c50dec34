"""SIGTERM: the next save saves, in time, and says that the loop is to end."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from cordwood import CheckpointManager, EverySteps
from cordwood.engine import write
from cordwood.engine.preemption import Notice

TREE = {"w": np.zeros(3)}


def told() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_job_that_is_told_to_end(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with CheckpointManager(tmp_path, save=EverySteps(100), preemption_seconds=30) as manager:
        for step in range(300):
            if step == 142:
                told()
            pending = manager.save(step, TREE)
            if manager.preempted:
                break
        assert step == 142
        assert pending is not None
        assert pending.done
        assert manager.steps() == [0, 100, 142]
        assert manager.save(143, TREE) is None  # once is enough
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_save_that_goes_on_is_finished_where_there_is_no_time_for_another(tmp_path: Path) -> None:
    go = threading.Event()
    original = write.fill_file

    def slow(*arguments: Any, **named: Any) -> Any:
        assert go.wait(20)
        return original(*arguments, **named)

    with CheckpointManager(tmp_path, save=EverySteps(10), preemption_seconds=20) as manager:
        manager.save(0, TREE)
        manager.wait()
        manager._saver.last_seconds = 15.0
        with patch("cordwood.engine.local_store.fill_file", slow):
            manager.save(10, TREE)
            told()
            timer = threading.Timer(0.05, go.set)
            timer.start()
            assert manager.save(11, TREE) is None
            timer.join()
        assert manager.preempted
        assert manager.steps() == [0, 10]


def test_no_time_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()
    original = write.fill_file

    def slow(*arguments: Any, **named: Any) -> Any:
        assert go.wait(20)
        return original(*arguments, **named)

    with CheckpointManager(tmp_path, preemption_seconds=0.05) as manager:
        with patch("cordwood.engine.local_store.fill_file", slow):
            told()
            manager.save(1, TREE)
            assert manager.preempted
            assert "the job has been told to end, and " in caplog.text
            assert "still being saved" in caplog.text
            go.set()
        manager.wait()
    assert manager.steps() == [1]


def test_a_handler_that_was_there_is_called() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    try:
        notice = Notice()
        notice.listen()
        assert notice.since is None
        told()
        assert notice.since is not None
        assert calls == [signal.SIGTERM]
        notice.stop()
        told()
        assert len(calls) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_only_the_main_thread_can_listen(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def listen() -> None:
        try:
            CheckpointManager(tmp_path, preemption_seconds=1)
        except RuntimeError as e:
            errors.append(e)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert "SIGTERM can only be taken in the main thread" in str(errors[0])
