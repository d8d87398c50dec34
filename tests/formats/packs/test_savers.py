"""Several savers of one directory, savers that are interrupted, and readers beside them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import StorageError
from cordwood.storage import syscalls
from cordwood.storage.local_storage import LocalStorage
from tests.alarms import interruptions
from tests.children import SRC
from tests.descriptors import open_descriptors
from tests.faults.systems import CountingSystem, FailingSystem
from tests.threads import in_threads, until


def tree_of(value: int) -> dict[str, Any]:
    return {"a": np.full(20_000, value), "b": [np.full(3, value, np.int16), value]}


def value_of(tree: Any) -> int:
    """Return the value of a tree that one save wrote, and no other."""
    (value,) = {*tree["a"].tolist(), *tree["b"][0].tolist(), tree["b"][1]}
    return int(value)


def data_files(path: Path) -> int:
    return sum(name.startswith("data-") for name in os.listdir(path))


def test_eight_prefixes_in_threads(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ckpt"

    def work(number: int) -> None:
        for step in range(4):
            cordwood.save(path, tree_of(10 * number + step), prefix=f"p{number}")

    in_threads(work, 8)
    for number in range(8):
        assert value_of(cordwood.load(path, prefix=f"p{number}")) == 10 * number + 3
    assert data_files(path) == 8
    assert cordwood.gc(path) == []
    cordwood.verify(path)


def test_one_path_in_threads_beside_readers(tmp_path: Path) -> None:
    """Every load gives the tree of one save; at the end the tree of one is left, and no more."""
    cordwood.save(tmp_path, tree_of(0))
    saving = set(range(4))
    seen: set[int] = set()

    def work(number: int) -> None:
        if number < 4:
            try:
                for step in range(6):
                    cordwood.save(tmp_path, tree_of(10 * number + step))
            finally:
                saving.remove(number)
            return
        while saving or not seen:
            seen.add(value_of(cordwood.load(tmp_path)))
            cordwood.verify(tmp_path)

    in_threads(work, 6)
    assert value_of(cordwood.load(tmp_path)) in {5, 15, 25, 35}
    assert data_files(tmp_path) == 1
    assert cordwood.gc(tmp_path) == []
    assert seen


def test_a_save_ends_while_another_looks_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = LocalStorage.names

    def names_after_a_save(store: LocalStorage) -> list[str]:
        monkeypatch.undo()
        cordwood.save(tmp_path, tree_of(1), prefix="first")
        return names(store)

    monkeypatch.setattr(LocalStorage, "names", names_after_a_save)
    cordwood.save(tmp_path, tree_of(2), prefix="second")
    assert value_of(cordwood.load(tmp_path, prefix="first")) == 1
    assert value_of(cordwood.load(tmp_path, prefix="second")) == 2


def test_a_handler_saves_what_is_being_saved(tmp_path: Path) -> None:
    """A signal comes in the middle of a commit, and its handler commits to the same directory."""
    interrupted: list[str] = []

    class Signalling(syscalls.SystemCalls):
        def replace(self, source: str, target: str) -> None:
            if not interrupted:
                interrupted.append(target)
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.2)  # the handler's save waits for the lock by now
            super().replace(source, target)

    def handle(*_: object) -> None:
        cordwood.save(tmp_path / "ckpt", tree_of(2), prefix="handler")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with syscalls.override(Signalling()):
            cordwood.save(tmp_path / "ckpt", tree_of(1), prefix="main")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [os.path.basename(name) for name in interrupted] == ["cordwood.json"]
    assert value_of(cordwood.load(tmp_path / "ckpt", prefix="main")) == 1
    assert value_of(cordwood.load(tmp_path / "ckpt", prefix="handler")) == 2


SAVER = """
import sys
import numpy as np
import cordwood
path, prefix, value = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
sys.stdin.readline()
for step in range(10):
    now = value + step
    tree = {"a": np.full(20_000, now), "b": [np.full(3, now, np.int16), now]}
    cordwood.save(path, tree, prefix=prefix)
"""


def start_saver(path: Path, prefix: str, value: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SAVER, str(path), prefix, str(value)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )


def test_prefixes_and_one_path_in_processes(tmp_path: Path) -> None:
    """Four of prefixes of their own, and two without: nothing is lost, nothing is left over."""
    prefixes = ["p0", "p1", "p2", "p3", "", ""]
    children = [start_saver(tmp_path, prefix, 10 * i) for i, prefix in enumerate(prefixes)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        _, err = child.communicate(timeout=300)
        assert child.returncode == 0, err
    for i, prefix in enumerate(prefixes[:4]):
        assert value_of(cordwood.load(tmp_path, prefix=prefix)) == 10 * i + 9
    assert value_of(cordwood.load(tmp_path)) in {49, 59}
    assert data_files(tmp_path) == 5
    assert cordwood.gc(tmp_path) == []


def has_saved_or_ended(child: subprocess.Popen[str], index: Path, old: bytes) -> bool:
    return child.poll() is not None or index.read_bytes() != old


def test_savers_that_are_killed(tmp_path: Path) -> None:
    """The tree of a save that finished is there; what the dead one left goes with the next save."""
    cordwood.save(tmp_path, tree_of(0))
    rng = np.random.default_rng(0)
    index = tmp_path / "cordwood.json"
    for _ in range(8):
        old = index.read_bytes()
        child = start_saver(tmp_path, "", 1)
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        until(partial(has_saved_or_ended, child, index, old))
        with suppress(subprocess.TimeoutExpired):
            child.wait(float(rng.uniform(0, 0.05)))
        child.kill()
        child.communicate()
        assert value_of(cordwood.load(tmp_path)) in range(11)
    cordwood.save(tmp_path, tree_of(5))
    assert data_files(tmp_path) == 1
    assert value_of(cordwood.load(tmp_path)) == 5


def test_ctrl_c_leaves_the_old_tree_or_the_new_one(tmp_path: Path) -> None:
    """Ctrl-C at any moment leaves the old tree or the new one, no descriptor and no file."""
    value = 0

    def save() -> None:
        nonlocal value
        value += 1
        cordwood.save(tmp_path, tree_of(value))

    save()
    descriptors = open_descriptors()
    cuts = 0
    last = None
    for cut in interruptions(save, times=120):
        cuts += cut
        result = value_of(cordwood.load(tmp_path))
        before = value - 1 if last is None else last
        assert result in ((before, value) if cut else (value,))
        last = result
    assert cuts > 20
    assert len(os.listdir("/proc/self/fd")) == descriptors
    cordwood.save(tmp_path, tree_of(200))
    assert sorted(name[:4] for name in os.listdir(tmp_path)) == ["cord", "data", "mode"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_first_save_that_fails_leaves_nothing(tmp_path: Path, code: int) -> None:
    path = tmp_path / "a" / "b"
    counting = CountingSystem()
    with syscalls.override(counting):
        cordwood.save(tmp_path / "other" / "b", tree_of(1))
    loaded = 0
    codes = set()
    for number in range(1, len(counting.made) + 1):
        try:
            with syscalls.override(FailingSystem(number, code)):
                cordwood.save(path, tree_of(1))
        except OSError as e:
            codes.add(e.errno)
            if "is in place and whole" not in str(e):
                assert not (path / "cordwood.json").exists()
                with pytest.raises(FileNotFoundError):
                    cordwood.load(path)
                cordwood.save(path, tree_of(2))
                assert value_of(cordwood.load(path)) == 2
        loaded += value_of(cordwood.load(path)) == 1
        assert data_files(path) == 1
        for name in os.listdir(path):
            (path / name).unlink()
        path.rmdir()
        path.parent.rmdir()
    assert loaded >= 5
    assert codes == {code}


def test_a_disk_that_fails_is_no_reason_to_remove_a_checkpoint(tmp_path: Path) -> None:
    cordwood.save(tmp_path, tree_of(1))
    with (
        syscalls.override(FailingSystem(1, errno.EIO)),
        pytest.raises(StorageError, match=r"while reading cordwood.json") as raised,
    ):
        cordwood.save(tmp_path, tree_of(2))
    assert "remove it" not in str(raised.value)
    assert raised.value.filename == str(tmp_path)
    assert value_of(cordwood.load(tmp_path)) == 1


def test_a_living_save_is_not_cleaned_away(tmp_path: Path) -> None:
    """One that takes long, while others come and go, and gc is called."""
    cordwood.save(tmp_path, tree_of(0))
    begun, go_on = threading.Event(), threading.Event()

    class Slow(syscalls.SystemCalls):
        def fsync(self, fd: int) -> None:
            if threading.current_thread().name == "slow":
                begun.set()
                assert go_on.wait(60)
            super().fsync(fd)

    def save() -> None:
        cordwood.save(tmp_path, tree_of(7), prefix="slow")

    with syscalls.override(Slow()):
        slow = threading.Thread(target=save, name="slow")
        slow.start()
        assert begun.wait(60)
        cordwood.save(tmp_path, tree_of(1))
        assert cordwood.gc(tmp_path) == []
        cordwood.verify(tmp_path)
        assert data_files(tmp_path) == 2
        go_on.set()
        slow.join()
    assert value_of(cordwood.load(tmp_path, prefix="slow")) == 7
    assert value_of(cordwood.load(tmp_path)) == 1


def test_many_small_leaves_take_few_files_and_calls(tmp_path: Path) -> None:
    """They take no files of their own, and no calls."""
    tree = {f"layer{i}": {"w": np.full(3, i, np.float32)} for i in range(1000)}
    counting = CountingSystem()
    with syscalls.override(counting):
        cordwood.save(tmp_path, tree)
    assert len(os.listdir(tmp_path)) == 3
    # The parent, the data and its entry; the index, the sidecar, and the entry of each.
    assert counting.made.count("fsync") == 7
    assert len(counting.made) < 50
    loaded = cordwood.load(tmp_path)
    assert all(loaded[f"layer{i}"]["w"].tolist() == [i] * 3 for i in range(1000))
