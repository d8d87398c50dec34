"""Threads for which there is no memory end in an error; calls need none that cannot be started."""

from __future__ import annotations

import _thread
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cordwood as cw
from cordwood.storage.object_stores import object_uploads, request_loop
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.threads.started_thread import StartedThread
from cordwood.threads.thread_pool import run_tasks

TREE = {"w": np.ones(3, np.float32)}


def dies(*arguments: object) -> int:
    """Start a thread that ends before its first step: there is no memory for a frame."""
    del arguments
    return 1


def fails(*arguments: object) -> int:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", dies)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_loop._Loop, "loop", None)  # of other tests
    monkeypatch.setattr(request_loop._Loop, "jobs", None)
    monkeypatch.setattr(_thread, "start_new_thread", fails)


@pytest.mark.usefixtures("no_memory")
def test_a_thread_without_memory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match="too little memory for it"):
        StartedThread(lambda: None).wait_until_begun()
    for call in (
        lambda: run_in_worker(lambda: 1),
        lambda: cw.save(tmp_path / "tree", TREE),
        lambda: cw.save_async(tmp_path / "tree", TREE),
        lambda: cw.CheckpointManager(tmp_path / "run").save(1, TREE),
    ):
        with pytest.raises(MemoryError, match="too little memory for it"):
            call()
    assert not (tmp_path / "tree").exists()


def test_a_save_whose_thread_gets_no_memory_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = _thread.start_new_thread
    started = 0

    def only_once(function: Callable[..., object], arguments: tuple[object, ...]) -> int:
        nonlocal started
        started += 1
        return start(function, arguments) if started == 1 else dies()

    monkeypatch.setattr(_thread, "start_new_thread", only_once)
    with pytest.raises(MemoryError, match="too little memory for it"):
        cw.save_async(tmp_path / "tree", TREE)
    monkeypatch.undo()
    cw.save_async(tmp_path / "tree", TREE).wait()  # the queue is as it was


def test_tasks_of_helpers_that_got_no_memory_are_done_by_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", dies)
    done: list[int] = []
    run_tasks(5, threads=4, make_worker=lambda: done.append)
    assert done == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("root", ["disk", "memory://no-threads"])
def test_without_threads_saves_are_made_at_once(tmp_path: Path, root: str) -> None:
    base = str(tmp_path) if root == "disk" else root
    cw.save(f"{base}/tree", TREE)
    pending = cw.save_async(f"{base}/other", TREE)
    assert pending.done
    with cw.CheckpointManager(f"{base}/run") as manager:
        manager.save(1, TREE)
        assert manager.steps() == [1]
    for name in ("tree", "other", "run/1"):
        np.testing.assert_array_equal(cw.load(f"{base}/{name}")["w"], TREE["w"])


@pytest.mark.usefixtures("no_threads")
def test_without_threads_large_objects_are_sent_in_parts() -> None:
    tree = {"w": np.arange(object_uploads.PART_BYTES // 2, dtype=np.int32)}
    cw.save("memory://no-threads/large", tree)
    np.testing.assert_array_equal(cw.load("memory://no-threads/large")["w"], tree["w"])


@pytest.mark.parametrize("first", ["", "cw.CheckpointManager('memory://exit/run')"])
@pytest.mark.parametrize("call", ["cw.save", "cw.save_async"])
def test_a_save_to_a_store_while_python_exits(first: str, call: str) -> None:
    code = f"""
import atexit, cordwood as cw
{first}
def save():
    {call}("memory://exit/tree", {{"w": 1.5}})
    print(cw.load("memory://exit/tree"))
atexit.register(save)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.stdout, done.stderr, done.returncode) == ("{'w': 1.5}\n", "", 0)
