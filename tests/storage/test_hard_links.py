"""A second name for a file, and who may take it away."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from cordwood.io.uninterruptible import never_stop
from cordwood.storage import hard_links, syscalls
from cordwood.storage.file_locks import remove_unlocked, unlock
from cordwood.storage.hard_links import link_under_shared_lock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "old"
    path.write_bytes(b"content")
    return path


def link(opened: list[int], source: Path, target: Path) -> bool:
    return link_under_shared_lock(opened, str(source), str(target), never_stop)


def test_nobody_removes_it_by_any_name(file: Path, tmp_path: Path) -> None:
    opened: list[int] = []
    new = tmp_path / "new"
    assert link(opened, file, new)
    assert new.samefile(file)
    assert not remove_unlocked(str(new))
    assert not remove_unlocked(str(file))
    unlock(opened)
    assert remove_unlocked(str(new))
    assert file.read_bytes() == b"content"


def test_two_may_link_it(file: Path, tmp_path: Path) -> None:
    one: list[int] = []
    other: list[int] = []
    third: list[int] = []
    assert link(one, file, tmp_path / "new")
    assert link(other, file, tmp_path / "new")  # the same name of it
    assert link(third, file, tmp_path / "newer")
    unlock(one)
    assert not remove_unlocked(str(tmp_path / "new"))
    unlock(other)
    unlock(third)


def test_another_file_of_that_name_is_no_link(file: Path, tmp_path: Path) -> None:
    opened: list[int] = []
    (tmp_path / "new").write_bytes(b"content")
    assert not link(opened, file, tmp_path / "new")
    unlock(opened)


def test_symlinks_are_not_followed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(file)
    opened: list[int] = []
    with pytest.raises(OSError, match="symbolic link"):
        link(opened, tmp_path / "way", tmp_path / "new")
    assert opened == []
    assert not (tmp_path / "new").exists()


def test_what_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        link([], tmp_path / "old", tmp_path / "new")


def test_who_writes_it_is_not_waited_for_long(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hard_links, "_WAIT_SECONDS", 0.05)
    opened: list[int] = []
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not link(opened, file, tmp_path / "new")
    unlock(opened)
    assert not (tmp_path / "new").exists()


def test_without_locks_it_is_linked_all_the_same(file: Path, tmp_path: Path) -> None:
    class NoLocks(syscalls.SystemCalls):
        def flock(self, fd: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    opened: list[int] = []
    with syscalls.override(NoLocks()):
        assert link(opened, file, tmp_path / "new")
    unlock(opened)
