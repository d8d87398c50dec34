"""A second name for a file, and who may take it away."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from cordwood.storage import syscalls
from cordwood.storage.locks import file_locks
from cordwood.storage.locks.file_locks import link_under_shared_lock, remove_unlocked, unlock
from tests.descriptors import open_descriptors


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "old"
    path.write_bytes(b"content")
    return path


def link(source: Path, target: Path) -> int | None:
    return link_under_shared_lock(str(source), str(target))


def linked(source: Path, target: Path) -> int:
    """Return the descriptor that holds the lock of the link."""
    fd = link(source, target)
    assert fd is not None
    return fd


def test_nobody_removes_it_by_any_name(file: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    fd = linked(file, new)
    assert new.samefile(file)
    assert not remove_unlocked(str(new))
    assert not remove_unlocked(str(file))
    unlock(fd)
    assert remove_unlocked(str(new))
    assert file.read_bytes() == b"content"


def test_a_linked_file_stays_until_every_link_is_unlocked(file: Path, tmp_path: Path) -> None:
    one = linked(file, tmp_path / "new")
    other = linked(file, tmp_path / "new")  # the same name of it
    third = linked(file, tmp_path / "newer")
    unlock(one)
    assert not remove_unlocked(str(tmp_path / "new"))
    unlock(other)
    unlock(third)


def test_another_file_of_that_name_is_no_link(file: Path, tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"content")
    before = open_descriptors()
    assert link(file, tmp_path / "new") is None
    assert open_descriptors() == before


def test_symlinks_are_not_followed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(file)
    before = open_descriptors()
    with pytest.raises(OSError, match="symbolic link"):
        link(tmp_path / "way", tmp_path / "new")
    assert open_descriptors() == before
    assert not (tmp_path / "new").exists()


def test_a_link_to_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        link(tmp_path / "old", tmp_path / "new")


def test_who_writes_it_is_not_waited_for_long(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_locks, "_WAIT_SECONDS", 0.05)
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        before = open_descriptors()
        assert link(file, tmp_path / "new") is None
        assert open_descriptors() == before
    assert not (tmp_path / "new").exists()


def test_without_locks_it_is_linked_all_the_same(file: Path, tmp_path: Path) -> None:
    class NoLocks(syscalls.SystemCalls):
        def flock(self, fd: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with syscalls.override(NoLocks()):
        fd = linked(file, tmp_path / "new")
    unlock(fd)
