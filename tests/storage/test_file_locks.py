"""Locks of places: one holder at a time, whatever becomes of the file that stands for them."""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import cordwood
from cordwood.errors import StorageError
from cordwood.storage import syscalls
from cordwood.storage.locks import lock_files
from cordwood.storage.locks.file_locks import remove_unlocked, wait_and_lock, wait_for_lock
from cordwood.storage.locks.lock_files import locked
from cordwood.threads import wait_logger
from cordwood.threads.stop_check import stop_check
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


def test_the_lock_of_a_killed_process_is_reused(tmp_path: Path) -> None:
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
    class Lockless(syscalls.SystemCalls):
        def flock(self, fd: int, operation: int) -> None:
            raise OSError(code, os.strerror(code))

    (tmp_path / "perhaps alive").touch()
    with syscalls.override(Lockless()):
        with locked(f"{tmp_path}/lock"):
            pass
        assert not remove_unlocked(f"{tmp_path}/perhaps alive")
    assert os.listdir(tmp_path) == ["perhaps alive"]


def test_a_disk_that_fails_is_an_error(tmp_path: Path) -> None:
    class Failing(syscalls.SystemCalls):
        def flock(self, fd: int, operation: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = _open_files()
    with (
        syscalls.override(Failing()),
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
        with pytest.raises(ZeroDivisionError), stop_check(check), locked(path):
            raise AssertionError("it is another's")
        assert os.path.exists(path)
    assert calls == 3
    assert _open_files() == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_a_lock_all_the_same(tmp_path: Path, code: int) -> None:
    class Full(syscalls.SystemCalls):
        def open(self, path: str, flags: int, mode: int = 0o666) -> int:  # type: ignore[override]
            if flags & os.O_CREAT:
                raise OSError(code, os.strerror(code), path)
            return os.open(path, flags, mode)

    with syscalls.override(Full()), locked(f"{tmp_path}/lock"):
        other = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
    assert os.listdir(tmp_path) == []


def test_a_directory_without_write_permission_is_an_error(tmp_path: Path) -> None:
    class Denied(syscalls.SystemCalls):
        def open(self, path: str, flags: int, mode: int = 0o666) -> int:  # type: ignore[override]
            if flags & os.O_CREAT:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return os.open(path, flags, mode)

    with syscalls.override(Denied()), pytest.raises(PermissionError), locked(f"{tmp_path}/lock"):
        raise AssertionError("it is not locked")


def test_waiting_changes_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    wait_for_lock(path)
    assert os.listdir(tmp_path) == []
    messages: list[str] = []

    def wait() -> None:
        wait_for_lock(path)
        messages.append("free")

    with locked(path):
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.1)
        messages.append("given up")
    waiter.join()
    assert messages == ["given up", "free"]


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


def stopped_by(calls: int) -> Callable[[], None]:
    """Return a check that raises ZeroDivisionError at its call of that number."""
    numbers = itertools.count(1)

    def check() -> None:
        if next(numbers) >= calls:
            raise ZeroDivisionError

    return check


@pytest.fixture
def held(tmp_path: Path) -> Iterator[str]:
    """Yield the path of a file that is locked by another descriptor."""
    path = f"{tmp_path}/lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield path
    os.close(fd)


def take(path: str, **options: Any) -> None:
    with locked(path, **options):
        raise AssertionError("it is another's")


def take_open(path: str, **options: Any) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        wait_and_lock(fd, path, **options)
    finally:
        os.close(fd)


@pytest.mark.parametrize("wait", [take, take_open, wait_for_lock])
def test_every_wait_is_reported_and_can_be_stopped(
    held: str,
    wait: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wait_logger, "REPORT_SECONDS", 0.001)
    with pytest.raises(ZeroDivisionError), stop_check(stopped_by(3)):
        wait(held)
    assert len(caplog.messages) >= 1
    assert f"waiting for the lock {held}, which another thread of this process holds" in caplog.text


@pytest.mark.parametrize("wait", [take, take_open])
def test_a_wait_ends_at_its_timeout(held: str, wait: Callable[..., None]) -> None:
    before = _open_files()
    with pytest.raises(StorageError, match=r"waited 0.05 s for this lock, which .* holds") as e:
        wait(held, timeout_seconds=0.05)
    assert e.value.errno == errno.ETIMEDOUT
    assert e.value.filename == held
    assert _open_files() == before


@pytest.mark.parametrize("layout", ["packs", "zarr"])
def test_a_save_waits_no_longer_than_its_timeout_and_names_who_holds_the_lock(
    tmp_path: Path, layout: Literal["packs", "zarr"]
) -> None:
    path = tmp_path / "step"
    cordwood.save(path, {"a": 1}, format=layout)
    lock = path / ".cordwood.json.cordwood-lock"
    if layout == "zarr":
        lock = tmp_path / ".step.cordwood-lock"
    code = """
        import fcntl, os, signal, sys
        fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        print("locked", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            os.waitpid(child.pid, os.WUNTRACED)
            message = rf"waited 0.1 s for this lock, which process {child.pid} \(.*stopped\) holds"
            with pytest.raises(StorageError, match=message) as e:
                cordwood.save(path, {"a": 2}, timeout_seconds=0.1)
            assert e.value.filename == str(lock)
            assert cordwood.load(path) == {"a": 1}
        finally:
            child.kill()
    cordwood.save(path, {"a": 3}, timeout_seconds=60)
    assert cordwood.load(path) == {"a": 3}
    assert sorted(os.listdir(tmp_path)) == ["step"]


class Renumbering(syscalls.SystemCalls):
    """A file system that gives a file another inode number at each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        numbers = itertools.count(1)

        def renumbered(look: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
            def status(*args: Any, **options: Any) -> os.stat_result:
                fields = list(look(*args, **options))
                fields[stat.ST_INO] = next(numbers)
                return os.stat_result(fields)

            return status

        for name in ("stat", "lstat", "fstat"):
            monkeypatch.setattr(os, name, renumbered(getattr(os, name)))


def test_inode_numbers_that_change_from_look_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Renumbering(patch)
        for layout in ("packs", "zarr"):
            for number in range(2):
                cordwood.save(tmp_path / layout, {"a": np.arange(number)}, format=layout)
    for layout in ("packs", "zarr"):
        assert cordwood.load(tmp_path / layout)["a"].shape == (1,)
    assert sorted(os.listdir(tmp_path)) == ["packs", "zarr"]


def test_a_lock_whose_file_is_never_found_again_is_given_up_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock_files, "_is_still_at", lambda fd, path: False)
    monkeypatch.setattr(lock_files, "_MAX_ROUNDS", 5)
    with locked(f"{tmp_path}/lock"):
        pass
    assert "locks do not work here" in caplog.text
    with pytest.raises(ZeroDivisionError), stop_check(stopped_by(1)):
        take(f"{tmp_path}/lock")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_saves_without_locks_warn_once_for_a_run(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Lockless(syscalls.SystemCalls):
        def flock(self, fd: int, operation: int) -> None:
            raise OSError(code, os.strerror(code))

    with syscalls.override(Lockless()):
        for path in ("run/1", "run/1", "run/2", "other/1"):
            for prefix in ("a", "b"):
                cordwood.save(tmp_path / path, {"a": 1}, prefix=prefix)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [text.split(":")[0] for text in warnings] == [f"{tmp_path}/run/1", f"{tmp_path}/other/1"]
    assert all("file locks do not work here" in text for text in warnings)
