"""A directory of data files and an index: what saves leave, whatever becomes of them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cordwood.errors import CorruptionError, LimitError, StorageError, TruncatedError
from cordwood.index import Source
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import FilePlan, LeafBytes
from cordwood.storage import syscalls
from cordwood.storage.local_storage import LocalStorage
from cordwood.storage.storage_protocol import IndexChange, NamingRules, NewDataFile, Transaction
from tests.faults.systems import FailingSystem

HEADER = b"h" * 4096
RULES = NamingRules(
    "index",
    1 << 16,
    ("beside",),
    lambda name: name.startswith("data-"),
    lambda index: frozenset(name for names in json.loads(index or "{}").values() for name in names),
)


def sevens() -> Leaves:
    """Return the only leaf of the new files, for any number of them."""
    leaves = Leaves([np.full(1 << 10, 7, np.uint8)])
    leaves.expect([0] * 99)
    return leaves


def new_file(name: str, size: int = 100) -> NewDataFile:
    plan = FilePlan(4096 + size, (LeafBytes(0, 0, size),), 4096, lambda _: HEADER)
    return NewDataFile(name, plan)


def put(
    key: str, *names: str, size: int = 100, beside: bytes | None = None
) -> Callable[[bytes | None], IndexChange]:
    """Return an update of the index that stores the names of files under `key`."""

    def update(old: bytes | None) -> IndexChange:
        items = json.loads(old or b"{}")
        before = {name for names_of_key in items.values() for name in names_of_key}
        items[key] = names
        kept = {name for names_of_key in items.values() for name in names_of_key}
        return IndexChange(
            json.dumps(items).encode(),
            dict.fromkeys(names, 4096 + size),
            {"beside": beside},
            kept=frozenset(kept),
            dropped=frozenset(before - kept),
        )

    return update


def save(path: Path, key: str, *names: str, beside: bytes | None = None) -> None:
    with LocalStorage(path, RULES).transaction(others_commit=False) as saving:
        saving.write([new_file(name) for name in names], sevens())
        saving.commit(put(key, *names, beside=beside))


def found(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def test_open_files_outlive_their_names(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path / "new", RULES)
    assert store.read_index() is None
    assert store.names() == []
    save(tmp_path / "new", "x", "data-1", "data-2")
    sources = [Source("data-1", 4196), Source("data-2", 4196)]
    one, two = store.open(sources)
    (tmp_path / "new" / "data-1").unlink()  # as a later save would
    assert one.read(4090, 10) == b"h" * 6 + b"\7" * 4
    assert bytes(two.map()[-1:]) == b"\7"
    one.close()
    with pytest.raises(ValueError, match="data-1 is closed"):
        one.read(0, 1)
    with pytest.raises(CorruptionError, match="new/data-1 is missing"):
        store.open(sources)
    with pytest.raises(TruncatedError, match="expected 9 bytes at offset 4190, found 6"):
        two.read(4190, 9)


def test_many_files_are_opened_when_they_are_read(tmp_path: Path) -> None:
    names = [f"data-{i}" for i in range(70)]
    save(tmp_path, "x", *names)
    before = len(os.listdir("/proc/self/fd"))
    files = LocalStorage(tmp_path, RULES).open([Source(name, 4196) for name in names])
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert [file.read(4096, 1) for file in files] == [b"\7"] * 70


@pytest.mark.parametrize("count", [1, 65])
def test_files_that_are_not_what_the_index_says(tmp_path: Path, count: int) -> None:
    names = [f"data-{i}" for i in range(count)]
    save(tmp_path, "x", *names)
    store = LocalStorage(tmp_path, RULES)

    def read(size: int) -> bytes:
        files = store.open([Source("data-0", size), *[Source(n, 4196) for n in names[1:]]])
        return files[0].read(0, 1)

    assert read(4196) == b"h"
    with pytest.raises(TruncatedError, match="data-0: expected 4197 bytes, found 4196"):
        read(4197)
    with pytest.raises(CorruptionError, match="data-0: expected 4195 bytes, found 4196"):
        read(4195)
    (tmp_path / "data-0").rename(tmp_path / "elsewhere")
    (tmp_path / "data-0").symlink_to("elsewhere")
    with pytest.raises(CorruptionError, match="data-0 is, or lies behind, a symbolic link"):
        read(4196)
    (tmp_path / "data-0").unlink()
    os.mkfifo(tmp_path / "data-0")
    with pytest.raises(CorruptionError, match="data-0: expected a regular file"):
        read(4196)


def test_an_index_that_is_no_plain_file(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("{}")
    (tmp_path / "index").symlink_to("target")
    with pytest.raises(CorruptionError, match="index is, or lies behind, a symbolic link"):
        LocalStorage(tmp_path, RULES).read_index()
    with pytest.raises(CorruptionError, match="symbolic link"):
        save(tmp_path, "x", "data-1")
    assert found(tmp_path) == ["index", "target"]
    assert (tmp_path / "target").read_text() == "{}"
    (tmp_path / "index").unlink()
    (tmp_path / "index").write_bytes(b" " * ((1 << 16) + 1))
    with pytest.raises(LimitError, match="65537 bytes; expected at most 65536"):
        LocalStorage(tmp_path, RULES).read_index()


def save_and(
    path: Path, *names: str, then: Callable[[Transaction], None], others_commit: bool = False
) -> None:
    """Write files, and do something else with the save than to commit it."""
    with LocalStorage(path, RULES).transaction(others_commit=others_commit) as saving:
        saving.write([new_file(name) for name in names], sevens())
        then(saving)


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    save(tmp_path, "x", "data-1")

    def fail(saving: Transaction) -> None:
        assert found(tmp_path) == ["data-1", "data-2", "index"]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save_and(tmp_path, "data-2", then=fail)
    assert found(tmp_path) == ["data-1", "index"]

    def refuse(old: bytes | None) -> IndexChange:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save_and(tmp_path / "new" / "er", "data-2", then=lambda saving: saving.commit(refuse))
    assert found(tmp_path) == ["data-1", "index"]


def test_files_of_killed_saves_are_removed_and_those_of_running_ones_stay(tmp_path: Path) -> None:
    save(tmp_path, "x", "data-1")
    (tmp_path / "data-dead").write_bytes(b"")
    (tmp_path / f".index.cordwood-{'0' * 16}.tmp").write_bytes(b"")
    (tmp_path / f".beside.cordwood-{'0' * 16}.tmp").write_bytes(b"")
    store = LocalStorage(tmp_path, RULES)
    with store.transaction(others_commit=False) as living:
        living.write([new_file("data-2")], sevens())
        assert store.collect(dry_run=True).names == [
            f".beside.cordwood-{'0' * 16}.tmp",
            f".index.cordwood-{'0' * 16}.tmp",
            "data-dead",
        ]
        save(tmp_path, "y", "data-3")
        assert found(tmp_path) == ["data-1", "data-2", "data-3", "index"]
        living.commit(put("x", "data-2"))
    assert found(tmp_path) == ["data-2", "data-3", "index"]
    assert store.collect(dry_run=False).names == []


@pytest.mark.parametrize("damage", ["gone", "short", "link"])
def test_a_commit_needs_all_that_was_written(tmp_path: Path, damage: str) -> None:
    save(tmp_path, "x", "data-1")

    def then(saving: Transaction) -> None:
        (tmp_path / "data-3").unlink()
        if damage == "short":
            (tmp_path / "data-3").write_bytes(b"")
        if damage == "link":
            (tmp_path / "data-3").symlink_to("data-2")
        saving.commit(put("x", "data-2", "data-3"))

    with pytest.raises(StorageError, match="expected 4196 bytes in data-3, found") as raised:
        save_and(tmp_path, "data-2", "data-3", then=then)
    assert "what was there before is untouched" in str(raised.value)
    assert found(tmp_path) == ["data-1", "index"]


class _Interrupting(syscalls.SystemCalls):
    """Ctrl-C as soon as the Nth rename is done, before Python takes note of it."""

    def __init__(self, at: int) -> None:
        self.left = at

    def replace(self, source: str, target: str) -> None:
        super().replace(source, target)
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupt_right_after_the_commit_removes_nothing(tmp_path: Path, at: int) -> None:
    save(tmp_path, "x", "data-1", beside=b"old")
    with pytest.raises(KeyboardInterrupt), syscalls.override(_Interrupting(at)):
        save(tmp_path, "x", "data-2", beside=b"new")
    assert json.loads((tmp_path / "index").read_bytes()) == {"x": ["data-2"]}
    assert "data-2" in found(tmp_path)
    save(tmp_path, "x", "data-3", beside=b"newer")
    assert found(tmp_path) == ["beside", "data-3", "index"]


def test_a_rename_that_fails_leaves_the_old(tmp_path: Path) -> None:
    save(tmp_path, "x", "data-1")

    class Failing(syscalls.SystemCalls):
        def replace(self, source: str, target: str) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with (
        pytest.raises(StorageError, match="while renaming index into place; what was") as raised,
        syscalls.override(Failing()),
    ):
        save(tmp_path, "x", "data-2")
    assert raised.value.filename == str(tmp_path)
    assert found(tmp_path) == ["data-1", "index"]


def test_errors_say_which_file(tmp_path: Path) -> None:
    class Failing(syscalls.SystemCalls):
        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        pytest.raises(StorageError, match=r"No space left on device while writing \(data-1\)"),
        syscalls.override(Failing()),
    ):
        save(tmp_path / "new", "x", "data-1")
    assert not (tmp_path / "new").exists()


def test_a_file_system_without_locks(tmp_path: Path) -> None:
    class Lockless(syscalls.SystemCalls):
        def flock(self, fd: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    (tmp_path / "data-perhaps-alive").write_bytes(b"")
    with syscalls.override(Lockless()):
        save(tmp_path, "x", "data-1")
        save(tmp_path, "x", "data-2")
    assert found(tmp_path) == ["data-2", "data-perhaps-alive", "index"]


def test_a_directory_that_others_remove(tmp_path: Path) -> None:
    """A first save that fails removes the directory it made, even as another begins in it."""
    path = tmp_path / "new"
    removed: list[str] = []

    class Removing(syscalls.SystemCalls):
        def open(self, path: str, flags: int, mode: int = 0o666) -> int:  # type: ignore[override]
            if path.endswith("data-1") and len(removed) < 3:
                removed.append(path)
                os.rmdir(os.path.dirname(path))
            return super().open(path, flags, mode)

    with syscalls.override(Removing()):
        save(path, "x", "data-1")
    assert len(removed) == 3
    assert found(path) == ["data-1", "index"]


def test_a_file_that_is_removed_before_it_is_locked_is_created_again(tmp_path: Path) -> None:
    taken: list[Path] = []

    class Racing(syscalls.SystemCalls):
        def flock(self, fd: int, operation: int) -> None:
            target = tmp_path / "data-1"
            if operation & fcntl.LOCK_EX and not taken and target.exists():
                taken.append(target)
                target.unlink()
            super().flock(fd, operation)

    with syscalls.override(Racing()):
        save(tmp_path, "x", "data-1")
    assert taken
    assert found(tmp_path) == ["data-1", "index"]


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    save(tmp_path, "x", "data-1", "data-2")
    with pytest.raises(StorageError), syscalls.override(FailingSystem(9, errno.EIO)):
        save(tmp_path, "x", "data-3", "data-4")
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_lock_follows_the_path(tmp_path: Path) -> None:
    """A save waits for the lock of a directory; that is replaced; it locks the new one."""
    path = tmp_path / "d"
    save(path, "x", "data-1")
    lock = path / ".index.cordwood-lock"
    fd = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    inode = os.fstat(fd).st_ino
    waits = threading.Event()

    class Telling(syscalls.SystemCalls):
        def flock(self, fd: int, operation: int) -> None:
            if os.fstat(fd).st_ino == inode:
                waits.set()
            super().flock(fd, operation)

    with syscalls.override(Telling()):
        waiting = threading.Thread(target=save, args=(path, "y", "data-2"))
        waiting.start()
        assert waits.wait(60)
    save(tmp_path / "new", "z", "data-3")
    os.link(path / "data-2", tmp_path / "new" / "data-2")
    syscalls.current().exchange(str(path), str(tmp_path / "new"))
    os.close(fd)
    waiting.join()
    assert json.loads((path / "index").read_bytes()) == {"z": ["data-3"], "y": ["data-2"]}


def test_a_mark_goes_with_a_failed_save_and_with_what_it_made(tmp_path: Path) -> None:
    def fail() -> None:
        with LocalStorage(tmp_path / "a/b", RULES).transaction(others_commit=False) as saving:
            saving.create_probe()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert found(tmp_path) == []


def test_the_mark_of_a_killed_save_is_collected(tmp_path: Path) -> None:
    save(tmp_path, "x", "data-1")
    (tmp_path / ".index.cordwood-0123456789abcdef.tmp").touch()
    save(tmp_path, "x", "data-1x")
    assert found(tmp_path) == ["data-1x", "index"]


def test_a_mark_may_come_in_sight_late(tmp_path: Path) -> None:
    def come() -> None:
        (tmp_path / "a").mkdir()
        time.sleep(0.1)
        (tmp_path / "a" / "mark").touch()

    with LocalStorage(tmp_path / "a", RULES).transaction(others_commit=True) as other:
        threading.Timer(0.2, come).start()
        assert other.sees_probe("mark", timeout_seconds=60)


@pytest.fixture
def two_steps(tmp_path: Path) -> tuple[Path, Path]:
    """Return a directory that contains data-1, and the path of the next one."""
    save(tmp_path / "1", "x", "data-1")
    return tmp_path / "1", tmp_path / "2"


@pytest.mark.parametrize("first", [True, False], ids=["ours", "theirs"])
def test_a_link_that_another_save_has_committed_stays(
    two_steps: tuple[Path, Path], first: bool
) -> None:
    """Two save the same step and link the same file. One is done; then the other fails."""
    old, new = two_steps
    store = LocalStorage(new, RULES)

    def fail() -> None:
        with store.transaction(others_commit=False) as failing:
            if first:
                assert failing.link(str(old), "data-1")
            with store.transaction(others_commit=False) as other:
                assert other.link(str(old), "data-1")
                other.write([new_file("data-2")], sevens())
                if not first:
                    assert failing.link(str(old), "data-1")
                other.commit(put("x", "data-1", "data-2"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert found(new) == ["data-1", "data-2", "index"]


def test_a_directory_that_is_removed_before_its_first_link(two_steps: tuple[Path, Path]) -> None:
    """Another process that cleans up the root removes the directory while it is still empty."""

    class Removing(syscalls.SystemCalls):
        remaining = 3

        def link(self, source: str, target: str) -> None:
            if self.remaining:
                self.remaining -= 1
                os.rmdir(os.path.dirname(target))
            super().link(source, target)

    old, new = two_steps
    with (
        syscalls.override(Removing()),
        LocalStorage(new, RULES).transaction(others_commit=False) as save,
    ):
        assert save.link(str(old), "data-1")
        assert not save.link(str(old), "data-9")
        save.commit(put("x", "data-1"))
    assert found(new) == ["data-1", "index"]
    assert (new / "data-1").samefile(old / "data-1")


@pytest.mark.parametrize("linked", [True, False], ids=["links", "copies"])
def test_a_save_that_fails_takes_nothing_of_what_was_there(
    two_steps: tuple[Path, Path], linked: bool
) -> None:
    """A damaged step is saved again: until the commit its files are those of the old index."""
    old, new = two_steps
    with LocalStorage(new, RULES).transaction(others_commit=False) as saving:
        assert saving.link(str(old), "data-1")
        saving.write([new_file("data-2")], sevens())
        saving.commit(put("x", "data-1", "data-2"))
    if not linked:  # by `cp -r`
        raw = (new / "data-1").read_bytes()
        (new / "data-1").unlink()
        (new / "data-1").write_bytes(raw)

    def fail() -> None:
        with LocalStorage(new, RULES).transaction(others_commit=False) as failing:
            assert failing.link(str(old), "data-1") is linked
            failing.unlink_later("data-1")
            assert found(new) == ["data-1", "data-2", "index"]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert found(new) == ["data-1", "data-2", "index"]


class _NoLocks(syscalls.SystemCalls):
    def flock(self, fd: int, operation: int) -> None:
        del fd, operation
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.parametrize("calls", [syscalls.SystemCalls(), _NoLocks()], ids=["locks", "no locks"])
def test_a_link_that_is_not_needed_goes(
    two_steps: tuple[Path, Path], calls: syscalls.SystemCalls
) -> None:
    old, new = two_steps
    with syscalls.override(calls):
        with LocalStorage(new, RULES).transaction(others_commit=False) as saving:
            assert saving.link(str(old), "data-1")
            saving.unlink_later("data-1")
            saving.write([new_file("data-2")], sevens())
            saving.commit(put("x", "data-2"))
        assert found(new) == ["data-2", "index"]

        def fail() -> None:
            with LocalStorage(f"{new}0", RULES).transaction(others_commit=False) as failing:
                assert failing.link(str(old), "data-1")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
    assert found(old.parent) == ["1", "2"]
