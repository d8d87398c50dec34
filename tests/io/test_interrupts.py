"""Ctrl-C in the middle of a save: no thread goes on writing after it was reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordwood.storage import syscalls
from cordwood.storage.write_stream import write_stream
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.threads.thread_pool import run_tasks
from tests.alarms import alarms, interrupted, interruptions
from tests.descriptors import open_descriptors
from tests.faults.systems import CountingSystem


def test_no_task_runs_after_an_interrupt_was_raised() -> None:
    rng = np.random.default_rng(0)
    running: set[int] = set()
    lock = threading.Lock()

    def make_worker() -> Callable[[int], None]:
        def work(task: int) -> None:
            with lock:
                running.add(task)
            try:
                np.ones(100_000).sum()
            finally:
                with lock:
                    running.discard(task)

        return work

    cut = 0
    with alarms():
        for _ in range(150):
            begun = time.perf_counter()
            cut += interrupted(
                float(rng.uniform(1e-4, 5e-3)),
                lambda: run_tasks(1000, threads=4, make_worker=make_worker),
            )
            assert time.perf_counter() - begun < 100
            helpers_busy = {task for task in running if task is not None}
            with lock:
                # The caller's own task may have been cut off; helpers' never are.
                assert len(helpers_busy) <= 1
                running.clear()
    assert cut > 50


def test_the_first_failure_is_raised() -> None:
    def make_worker() -> Callable[[int], None]:
        def work(task: int) -> None:
            if task == 7:
                raise OSError("the disk")

        return work

    with pytest.raises(OSError, match="the disk"):
        run_tasks(100, threads=4, make_worker=make_worker)


@pytest.mark.parametrize("call", ["open", "flock", "fsync", "replace"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interrupted_call_leaves_no_temporary(tmp_path: Path, call: str, after: bool) -> None:
    class Interrupted(CountingSystem):
        def _make(
            self, number: int, name: str, make: Callable[..., Any], args: tuple[Any, ...]
        ) -> Any:
            if name != call or self.made.count(call) > 1:
                return make(*args)
            if after:
                make(*args)
            raise KeyboardInterrupt

    path = tmp_path / "f"
    path.write_bytes(b"old")
    with syscalls.override(Interrupted()), pytest.raises(KeyboardInterrupt):
        run_in_worker(lambda: write_stream(path, [b"new"]))
    assert path.read_bytes() == (b"new" if call == "replace" and after else b"old")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_interrupts_at_any_moment_leave_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "f"

    def save() -> None:
        run_in_worker(lambda: write_stream(path, [b"whole"]))

    save()
    open_before = open_descriptors()
    cuts = 0
    for cut in interruptions(save, times=200):
        cuts += cut
        assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert cuts > 20
    assert open_descriptors() == open_before
    assert path.read_bytes() == b"whole"
