"""Signal handlers that save, at any moment of the main thread."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import cordwood as cw
from cordwood.storage import write_files
from cordwood.threads.latch import Latch
from cordwood.threads.log import log
from cordwood.threads.run_in_worker import run_in_worker
from tests.signal_moments import run, spread

TREE = {"w": np.zeros(3, np.float32)}
NEWER = {"w": np.ones(3, np.float32)}


@pytest.fixture
def handled() -> Iterator[list[Any]]:
    """Functions that the handler of SIGUSR1 calls, one at each signal."""
    calls: list[Any] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.pop(0)())
    yield calls
    signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    """Let the main thread run the handler; return at once."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def test_a_handler_saves_at_any_moment_of_any_call(tmp_path: Path) -> None:
    outcomes = run(spread(4), tmp_path)
    assert len(outcomes) == len(spread(4))
    places = {outcome["at"].split(":")[0] for outcome in outcomes}
    assert len(places) > 20
    assert any("(main)" in outcome["at"] for outcome in outcomes)


@pytest.mark.parametrize("call", ["save", "save_async", "manager"])
def test_the_save_of_the_handler_is_the_one_that_stays(
    tmp_path: Path, handled: list[Any], call: str
) -> None:
    original = write_files.fill_file
    begun = Latch()

    def fill_file(*arguments: Any, **named: Any) -> Any:
        if not begun.is_set:
            interrupt()
            assert begun.wait(60)
        return original(*arguments, **named)

    path = tmp_path / "tree"
    manager = cw.CheckpointManager(tmp_path / "run")

    def handler() -> None:
        begun.set()
        if call == "manager":
            pending = manager.save(2, NEWER)
            assert pending is not None
            pending.wait()
        else:
            cw.save(path, NEWER)

    handled.append(handler)
    with patch("cordwood.storage.local_transaction.fill_file", fill_file):
        if call == "save":
            cw.save(path, TREE)
        elif call == "save_async":
            cw.save_async(path, TREE).wait()
        else:
            manager.save(1, TREE)
            manager.wait()
    if call == "manager":
        assert manager.steps() == [1, 2]
    else:
        np.testing.assert_array_equal(cw.load(path)["w"], NEWER["w"])


def test_a_handler_that_interrupts_a_wait_for_a_save(tmp_path: Path, handled: list[Any]) -> None:
    original = write_files.fill_file
    waits = Latch()

    def fill_file(*arguments: Any, **named: Any) -> Any:
        if not waits.is_set:
            interrupt()
            assert waits.wait(60)
        return original(*arguments, **named)

    def handler() -> None:
        second = cw.save_async(tmp_path / "second", NEWER)
        waits.set()  # the first one ends while the handler waits
        second.wait()

    handled.append(handler)
    with patch("cordwood.storage.local_transaction.fill_file", fill_file):
        first = cw.save_async(tmp_path / "first", TREE)
        first.wait()
    np.testing.assert_array_equal(cw.load(tmp_path / "first")["w"], TREE["w"])
    np.testing.assert_array_equal(cw.load(tmp_path / "second")["w"], NEWER["w"])


def test_a_save_does_not_wait_for_the_lock_of_a_log_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread may have been interrupted while it logs, and holds that lock."""
    monkeypatch.setattr("cordwood.threads.log._WAIT_SECONDS", 0.01)
    handler = logging.FileHandler(tmp_path / "log")
    logger = logging.getLogger("cordwood")
    logger.addHandler(handler)
    try:
        handler.acquire()
        try:
            run_in_worker(lambda: log.warning("one of %d", 2))
            run_in_worker(lambda: log.warning("the other"))
        finally:
            handler.release()
        while (tmp_path / "log").read_text() != "one of 2\nthe other\n":
            time.sleep(0.01)
    finally:
        logger.removeHandler(handler)
        handler.close()


def test_a_record_of_a_worker_says_where_it_was_logged(caplog: pytest.LogCaptureFixture) -> None:
    run_in_worker(lambda: log.warning("from %s", "a worker"))
    log.warning("from the main thread")
    records = [record for record in caplog.records if record.name == "cordwood"]
    assert [record.getMessage() for record in records] == ["from a worker", "from the main thread"]
    assert {record.filename for record in records} == {Path(__file__).name}
    assert [record.threadName for record in records] == ["cordwood", "MainThread"]


def test_no_module_logs_without_the_thread_for_the_log() -> None:
    source = Path(cw.__file__).parent
    modules = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if 'getLogger("cordwood")' in path.read_text()
    ]
    assert modules == ["threads/log.py"]
