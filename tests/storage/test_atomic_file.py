from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.errors import CordwoodError, NotACheckpointError, StorageError
from cordwood.storage import syscalls
from cordwood.storage.atomic_file import atomic_file
from cordwood.storage.paths import temporary_pattern
from cordwood.storage.write_stream import write_stream
from tests.faults.systems import CountingSystem, FailingSystem


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def stale_temporaries(path: Path) -> list[str]:
    """Temporaries beside `path` that saves of it made, alive or killed."""
    pattern = temporary_pattern(path.name)
    return [os.fspath(path.parent / name) for name in names(path.parent) if pattern.fullmatch(name)]


def test_the_calls_of_one_save_and_their_order(tmp_path: Path) -> None:
    counting = CountingSystem()
    with syscalls.override(counting):
        write_stream(tmp_path / "new" / "f", [b"data"])
    assert counting.made == [
        *["mkdir", "open", "fsync", "close"],  # the new directory, and its parent flushed
        *["open", "fsync", "close"],  # and what that lies in
        *["open", "flock"],
        "pwrite",
        *["fsync", "replace"],
        *["open", "fsync", "close"],  # the directory
        "close",
    ]


def test_makes_ancestors_and_flushes_the_parent_of_each(tmp_path: Path) -> None:
    flushed: list[str] = []

    class Watch(syscalls.SystemCalls):
        def fsync(self, fd: int) -> None:
            flushed.append(os.readlink(f"/proc/self/fd/{fd}"))
            super().fsync(fd)

    with syscalls.override(Watch()):
        write_stream(tmp_path / "a" / "b" / "f", [b"data"])
    assert flushed[:2] == [str(tmp_path), str(tmp_path / "a")]
    assert flushed[-1] == str(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "f").read_bytes() == b"data"


def test_a_failed_save_takes_its_new_directories_away(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a" / "b" / "f"):
        raise RuntimeError
    assert names(tmp_path) == []


def test_the_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_stream(tmp_path / "f", [b"data"])
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


def test_a_symlink_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/f")
    for content in (b"first, the link dangles", b"then it does not"):
        write_stream(tmp_path / "link", [content])
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "f").read_bytes() == content
    assert names(tmp_path) == ["link", "there"]
    assert names(tmp_path / "there") == ["f"]


def test_what_it_will_not_replace(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(IsADirectoryError, match="expected the path of a file to save"):
        write_stream(tmp_path / "folder", [b""])
    with pytest.raises(IsADirectoryError, match="expected the path of a file to save"):
        write_stream(f"{tmp_path}/new/", [b""])
    with pytest.raises(NotACheckpointError, match="will not replace a pipe"):
        write_stream(tmp_path / "pipe", [b""])
    with pytest.raises(NotACheckpointError, match="device"):
        write_stream("/dev/null", [b""])
    with pytest.raises(OSError, match="symbolic links") as loop:
        write_stream(tmp_path / "loop", [b""])
    assert loop.value.errno == errno.ELOOP
    with pytest.raises((NotADirectoryError, FileExistsError)):
        write_stream(tmp_path / "file" / "f", [b""])
    assert names(tmp_path) == ["file", "folder", "loop", "pipe"]


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127, "n" * 220, ".hidden", "a[b]*?.x", "\udcff"])
def test_files_of_any_name_are_written_and_temporaries_removed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_stream(path, [b"old"])
    leave_a_dead_temporary(path)
    assert len(stale_temporaries(path)) == 1
    write_stream(path, [b"new"])
    assert os.listdir(tmp_path) == [name]
    assert path.read_bytes() == b"new"


def leave_a_dead_temporary(path: Path) -> None:
    """Leave what a killed save leaves: in a child, which ends inside the block."""
    code = (
        "import os, sys\n"
        "from cordwood.storage.atomic_file import atomic_file\n"
        "with atomic_file(sys.argv[1]) as temporary:\n"
        "    temporary.write(memoryview(b'half'), 0)\n"
        "    os._exit(0)\n"
    )
    search = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, path], check=True, env=search)


def test_removes_what_a_killed_save_left_but_not_a_live_one_nor_anothers(tmp_path: Path) -> None:
    path = tmp_path / "f"
    leave_a_dead_temporary(path)
    leave_a_dead_temporary(tmp_path / "f.other")
    others = stale_temporaries(tmp_path / "f.other")
    (dead,) = stale_temporaries(path)
    with atomic_file(path) as live:
        assert not os.path.exists(dead)
        write_stream(path, [b"meanwhile"])
        assert os.path.exists(live.path)
        live.write(memoryview(b"last"), 0)
    assert path.read_bytes() == b"last"
    assert names(tmp_path) == sorted(["f", os.path.basename(others[0])])


def test_starts_again_where_a_cleaner_took_the_temporary_before_it_was_locked(
    tmp_path: Path,
) -> None:
    class Cleaner(syscalls.SystemCalls):
        taken = 0

        def flock(self, fd: int, operation: int) -> None:
            if self.taken < 2:
                self.taken += 1
                os.unlink(os.readlink(f"/proc/self/fd/{fd}"))
            super().flock(fd, operation)

    cleaner = Cleaner()
    with syscalls.override(cleaner):
        write_stream(tmp_path / "f", [b"data"])
    assert cleaner.taken == 2
    assert (tmp_path / "f").read_bytes() == b"data"
    assert names(tmp_path) == ["f"]


def test_works_where_there_are_no_locks(tmp_path: Path) -> None:
    class NoLocks(syscalls.SystemCalls):
        def flock(self, fd: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, "no locks")

    path = tmp_path / "f"
    leave_a_dead_temporary(path)
    with syscalls.override(NoLocks()):
        write_stream(path, [b"data"])
    assert path.read_bytes() == b"data"
    assert len(stale_temporaries(path)) == 1  # it may be a live one's: it stays


class NoFlush(syscalls.SystemCalls):
    """A file system that cannot flush directories."""

    def __init__(self, code: int) -> None:
        self.code = code

    def fsync(self, fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(self.code, os.strerror(self.code))
        super().fsync(fd)


def test_works_where_directories_cannot_be_flushed(tmp_path: Path) -> None:
    with syscalls.override(NoFlush(errno.EINVAL)):
        write_stream(tmp_path / "new/f", [b"data"])
        cordwood.save(tmp_path / "packs", {"a": 1})
        cordwood.save(tmp_path / "zarr", {"a": 1}, format="zarr")
    assert (tmp_path / "new/f").read_bytes() == b"data"
    assert cordwood.load(tmp_path / "packs") == cordwood.load(tmp_path / "zarr") == {"a": 1}


def test_a_directory_whose_flush_fails_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other").touch()  # an empty directory is itself flushed first
    with (
        syscalls.override(NoFlush(errno.EIO)),
        pytest.raises(StorageError, match="flushing its dir"),
    ):
        write_stream(tmp_path / "f", [b"data"])


def numbered_calls(folder: Path) -> Iterator[tuple[int, str]]:
    counting = CountingSystem()
    with syscalls.override(counting):
        write_stream(folder / "f", [b"new"])
    return enumerate(counting.made, start=1)


DOING = {
    "pwrite": "while writing; what was there before is untouched",
    "flock": "while creating a temporary file beside it; what was there before is untouched",
    "replace": "while renaming it into place; what was there before is untouched",
}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_errors_say_what_was_being_done_and_what_became_of_the_file(
    tmp_path: Path, code: int
) -> None:
    path = tmp_path / "f"
    flushes = 0
    opens = 0
    path.touch()  # the entry of an empty directory is flushed first
    for number, call in numbered_calls(tmp_path):
        path.write_bytes(b"old")
        failing = FailingSystem(number, code)
        if call == "close":
            continue  # it has nothing to tell that fsync did not
        with syscalls.override(failing), pytest.raises(StorageError) as caught:
            write_stream(path, [b"new"])
        error = caught.value
        assert isinstance(error, OSError)
        assert isinstance(error, CordwoodError)
        assert error.errno == code
        assert error.filename == str(path)
        assert os.strerror(code) in str(error)
        flushes += call == "fsync"
        opens += call == "open"
        if flushes == 2 or opens == 2:
            assert "while flushing its directory to the disk; the new file is in place" in str(
                error
            )
            assert path.read_bytes() == b"new"
        else:
            if call in DOING:
                assert DOING[call] in str(error)
            assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["f"]
    assert flushes == 2


def test_a_failed_fsync_is_never_retried(tmp_path: Path) -> None:
    class Flaky(CountingSystem):
        def _make(self, number: int, name: str, call: Any, args: tuple[Any, ...]) -> Any:
            if name == "fsync" and self.made.count("fsync") == 1:
                raise OSError(errno.EIO, "lost the pages")
            return call(*args)

    flaky = Flaky()
    (tmp_path / "other").touch()
    with (
        syscalls.override(flaky),
        pytest.raises(StorageError, match="while flushing it to the disk"),
    ):
        write_stream(tmp_path / "f", [b"new"])
    assert flaky.made.count("fsync") == 1
    assert names(tmp_path) == ["other"]


def test_errors_that_python_has_a_class_for_keep_it(tmp_path: Path) -> None:
    message = "while creating a temporary file"
    (tmp_path / "other").touch()
    refusing = syscalls.override(FailingSystem(1, errno.EACCES))
    with refusing, pytest.raises(PermissionError, match=message) as caught:
        write_stream(tmp_path / "f", [b""])
    assert caught.value.filename == str(tmp_path / "f")


def test_relative_paths_are_fixed_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with atomic_file("f") as temporary:
        os.chdir("elsewhere")
        temporary.write(memoryview(b"data"), 0)
    assert (tmp_path / "f").read_bytes() == b"data"


def test_the_lock_is_held_while_writing_and_free_after(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with atomic_file(path) as temporary:
        other = os.open(temporary.path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    assert re.fullmatch(r"\.f\.cordwood-[0-9a-f]{16}\.tmp", os.path.basename(temporary.path))
