"""Locks of places: one holder at a time, whatever becomes of the file that stands for them."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from cordwood.engine import system
from cordwood.engine.locks import locked, remove_unlocked, wait_for_lock
from tests.threads import in_threads


def test_one_at_a_time_and_nothing_stays(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    inside, most, rounds = 0, 0, 0
    together = threading.Barrier(8)

    def work(_: int) -> None:
        nonlocal inside, most, rounds
        together.wait()
        for _ in range(50):
            with locked(str(path)):
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                rounds += 1
                inside -= 1

    in_threads(work, together=together)
    assert (most, rounds) == (1, 400)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with locked(str(path)):
        assert path.exists()
    assert not path.exists()


def test_an_error_inside_gives_it_up(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(f"{tmp_path}/lock"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_a_fork_does_not_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(str(path)):
        kept = os.open(path, os.O_RDWR)  # another description of the file
        copy = os.dup(next(fd for fd in _open_files() if _leads_to(fd, path) and fd != kept))
    with pytest.raises(FileNotFoundError):
        os.stat(path)
    fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free, though the copy is open
    os.close(copy)
    os.close(kept)


def _open_files() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _leads_to(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_has_none(tmp_path: Path, code: int) -> None:
    class Lockless(system.System):
        def flock(self, fd: int, operation: int) -> None:
            raise OSError(code, os.strerror(code))

    (tmp_path / "perhaps alive").touch()
    with system.replaced(Lockless()):
        with locked(f"{tmp_path}/lock"):
            pass
        assert not remove_unlocked(f"{tmp_path}/perhaps alive")
    assert os.listdir(tmp_path) == ["perhaps alive"]


def test_a_disk_that_fails_is_an_error(tmp_path: Path) -> None:
    class Failing(system.System):
        def flock(self, fd: int, operation: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = _open_files()
    with (
        system.replaced(Failing()),
        pytest.raises(OSError, match="Input/output"),
        locked(f"{tmp_path}/lock"),
    ):
        raise AssertionError("it is not locked")
    assert _open_files() == before


def test_who_waits_can_be_stopped(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ZeroDivisionError

    before = _open_files()
    with locked(path):
        with pytest.raises(ZeroDivisionError), locked(path, check):
            raise AssertionError("it is another's")
        assert os.path.exists(path)
    assert calls == 3
    assert _open_files() == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_a_lock_all_the_same(tmp_path: Path, code: int) -> None:
    class Full(system.System):
        def open(self, path: str, flags: int, mode: int = 0o666) -> int:  # type: ignore[override]
            if flags & os.O_CREAT:
                raise OSError(code, os.strerror(code), path)
            return os.open(path, flags, mode)

    with system.replaced(Full()), locked(f"{tmp_path}/lock"):
        other = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_not_ours_is_an_error(tmp_path: Path) -> None:
    class Denied(system.System):
        def open(self, path: str, flags: int, mode: int = 0o666) -> int:  # type: ignore[override]
            if flags & os.O_CREAT:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return os.open(path, flags, mode)

    with system.replaced(Denied()), pytest.raises(PermissionError), locked(f"{tmp_path}/lock"):
        raise AssertionError("it is not locked")


def test_waiting_changes_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    wait_for_lock(path)
    assert os.listdir(tmp_path) == []
    told: list[str] = []

    def wait() -> None:
        wait_for_lock(path)
        told.append("free")

    with locked(path):
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.1)
        told.append("given up")
    waiting.join()
    assert told == ["given up", "free"]


def test_only_what_nobody_holds_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not remove_unlocked(str(path))
    assert remove_unlocked(str(path), dry_run=True)
    assert path.exists()
    assert remove_unlocked(str(path))
    assert not path.exists()
    assert not remove_unlocked(str(path))
