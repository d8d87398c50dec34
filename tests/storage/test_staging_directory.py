"""Directories are replaced at once: by exchange, without it, in a crowd, and after crashes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from cordwood.errors import NotACheckpointError, StorageError
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.file_plan import PlannedFile, SmallFile
from cordwood.storage import syscalls
from cordwood.storage.directories import count_files, remove_tree
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.paths import locate_directory, stale_stages
from cordwood.storage.staging.collect_stages import collect_stages
from cordwood.storage.staging.staging_directory import DirectoryChange, StagingDirectory
from cordwood.storage.storage_protocol import Transaction
from cordwood.storage.write_chunk_files import WrittenFile
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.threads.stop_check import check_stop
from tests.alarms import interruptions
from tests.children import run_python
from tests.descriptors import open_descriptors
from tests.faults.systems import CountingSystem
from tests.threads import in_threads


def nothing(_path: str, _names: set[str]) -> set[str]:
    return set()


def save(
    path: Path,
    files: dict[str, bytes],
    *,
    replaced: Callable[[str, set[str]], set[str]] | None = None,
) -> None:
    """Replace a directory by one of these files, and of what `replaced` leaves of the old."""
    stage = StagingDirectory(path)
    keep = replaced or (lambda _, names: names)

    def run() -> None:
        with stage.abandon_on_error():
            stage.begin()
            for name, data in files.items():
                check_stop()
                if "/" in name:
                    stage.make_directories([os.path.dirname(name)])
                stage.create_file(name, [data])
            stage.commit(lambda _: DirectoryChange(keep))

    run_in_worker(run)


def tree(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


class NoExchange(CountingSystem):
    """A file system that cannot exchange."""

    def exchange(self, one: str, other: str) -> None:
        raise OSError(errno.EINVAL, "no exchange here")


class NoLinks(CountingSystem):
    def link(self, source: str, target: str) -> None:
        raise OSError(errno.EPERM, "no links here", source)


BOTH = pytest.mark.parametrize(
    "calls", [syscalls.SystemCalls, NoExchange], ids=["exchange", "rename"]
)


@BOTH
def test_a_directory_is_made_and_replaced(
    tmp_path: Path, calls: type[syscalls.SystemCalls]
) -> None:
    path = tmp_path / "a" / "ckpt"
    with syscalls.override(calls()):
        save(path, {"x/y": b"1", "z": b"2"})
        assert tree(path) == {"x/y": b"1", "z": b"2"}
        save(path, {"x/w": b"3"})
        assert tree(path) == {"x/w": b"3"}
    assert os.listdir(path.parent) == ["ckpt"]


@BOTH
def test_what_is_not_replaced_is_linked(tmp_path: Path, calls: type[syscalls.SystemCalls]) -> None:
    path = tmp_path / "ckpt"
    save(path, {"mine/0": b"old", "mine/notes": b"kept", "other/deep/0": b"other", "top": b"top"})
    (path / "empty").mkdir(mode=0o750)
    (path / "link").symlink_to("other/deep")
    os.mkfifo(path / "pipe")
    inode = (path / "other/deep/0").stat().st_ino
    (path / "other").chmod(0o711)
    path.chmod(0o705)

    def replaced(folder: str, names: set[str]) -> set[str]:
        return {"0"} if folder == "mine" else set()

    with syscalls.override(calls()):
        save(path, {"mine/1": b"new"}, replaced=replaced)
    assert (path / "other/deep/0").stat().st_ino == inode
    assert (path / "other/deep/0").stat().st_nlink == 1
    assert os.readlink(path / "link") == "other/deep"
    assert stat.S_ISFIFO((path / "pipe").lstat().st_mode)
    assert stat.S_IMODE((path / "empty").stat().st_mode) == 0o750
    assert stat.S_IMODE((path / "other").stat().st_mode) == 0o711
    assert stat.S_IMODE(path.stat().st_mode) == 0o705
    (path / "pipe").unlink()
    (path / "link").unlink()
    assert tree(path) == {
        "mine/1": b"new",
        "mine/notes": b"kept",
        "other/deep/0": b"other",
        "top": b"top",
    }


def test_directories_that_are_left_empty_do_not_stay(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    save(path, {"a/b/0": b"old", "c": b"kept"})
    save(path, {"d": b"new"}, replaced=lambda folder, _: {"0"} if folder == "a/b" else set())
    assert sorted(p.name for p in path.iterdir()) == ["c", "d"]


def test_files_are_copied_where_there_are_no_links(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    save(path, {"other/0": bytes(range(256)) * 50_000, "top": b""})
    before = tree(path)
    with syscalls.override(NoLinks()):
        save(path, {"new": b"1"}, replaced=nothing)
        assert tree(path) == {**before, "new": b"1"}
        (path / "link").symlink_to("top")
        with pytest.raises(NotACheckpointError, match="holds 'link', which is neither file nor"):
            save(path, {"new": b"2"}, replaced=nothing)
    assert (path / "new").read_bytes() == b"1"
    assert os.listdir(tmp_path) == ["ckpt"]


def test_a_file_in_the_way_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    save(path, {"w/0": b"theirs"})
    with pytest.raises(NotACheckpointError, match="holds 'w/0', which is no part of the") as caught:
        save(path, {"w/0": b"ours"}, replaced=nothing)
    assert caught.value.filename == str(path)
    assert tree(path) == {"w/0": b"theirs"}
    assert os.listdir(tmp_path) == ["ckpt"]


@BOTH
def test_what_came_at_the_last_moment_is_kept(
    tmp_path: Path, calls: type[syscalls.SystemCalls]
) -> None:
    path = tmp_path / "ckpt"
    save(path, {"a": b"old", "sub/b": b"old"})

    class Late(calls):  # type: ignore[misc, valid-type]
        def exchange(self, one: str, other: str) -> None:
            (path / "late").write_bytes(b"late")
            (path / "sub" / "late").write_bytes(b"late")
            super().exchange(one, other)

    with syscalls.override(Late()):
        save(path, {"a": b"new"}, replaced=lambda folder, names: {"a"} if not folder else set())
    assert tree(path) == {"a": b"new", "sub/b": b"old", "late": b"late", "sub/late": b"late"}


def test_symlinks_to_the_directory_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "real"
    save(path, {"a": b"1"})
    (tmp_path / "link").symlink_to("real")
    save(tmp_path / "link", {"a": b"2"})
    assert (tmp_path / "link").is_symlink()
    assert tree(path) == {"a": b"2"}


def test_what_cannot_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="expected the path of a directory to save"):
        StagingDirectory(tmp_path / "file")
    with pytest.raises(NotACheckpointError, match="mount point, which cannot be replaced; save to"):
        StagingDirectory("/")
    with pytest.raises(OSError, match="while creating its directory; what was there before is"):
        save(tmp_path / "file" / "ckpt", {})
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("locks", [True, False])
def test_a_directory_that_is_read_is_not_removed_under_the_reader(
    tmp_path: Path, locks: bool
) -> None:
    class NoLocks(syscalls.SystemCalls):
        def flock(self, fd: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, "no locks here")

    path = tmp_path / "ckpt"
    save(path, {"a": b"old"})
    with syscalls.override(syscalls.SystemCalls() if locks else NoLocks()):
        with LocalDirectory(path) as directory:
            directory.hold()
            save(path, {"a": b"new"})
            assert not directory.is_still_at(path)
            assert len(stale_stages(path)) == locks
            if locks:
                assert directory.read("a", limit_bytes=9) == b"old"
        save(path, {"a": b"newer"})
        assert tree(path) == {"a": b"newer"}
        assert os.listdir(tmp_path) == ["ckpt"]


def test_a_directory_of_the_longest_name_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    save(path, {"a": b"1"})
    save(path, {"a": b"2"})
    assert tree(path) == {"a": b"2"}
    assert len(os.listdir(tmp_path)) == 1


class Crash(BaseException):
    pass


class Crashing(CountingSystem):
    """Nothing happens any more from a call on, as if the process were gone."""

    def __init__(self, name: str, number: int = 1, *, exchanges: bool = True) -> None:
        super().__init__()
        self._name, self._number, self._exchanges = name, number, exchanges
        self._gone = False

    def _make(self, number: int, name: str, make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if name == "exchange" and not self._exchanges:
            raise OSError(errno.EINVAL, "no exchange here")
        self._gone = self._gone or (name == self._name and self.made.count(name) == self._number)
        if self._gone and name != "close":  # a lock does not outlive its process
            raise Crash
        return make(*args)


def test_staging_directories_of_killed_saves_are_removed_and_those_of_running_ones_stay(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ckpt"
    save(path, {"a": b"old"})
    with syscalls.override(Crashing("exchange")), pytest.raises(Crash):
        save(path, {"a": b"dead"})
    (dead,) = stale_stages(path)
    assert tree(path) == {"a": b"old"}
    living = StagingDirectory(path)
    living.begin()
    assert not os.path.exists(dead)
    assert stale_stages(path) == [living.path]
    save(path, {"a": b"new"})
    assert stale_stages(path) == [living.path]
    living.abandon()
    assert os.listdir(tmp_path) == ["ckpt"]
    assert tree(path) == {"a": b"new"}


def test_a_stage_that_was_exchanged_meanwhile_is_not_removed(tmp_path: Path) -> None:
    """The cleaner opened what is the checkpoint by now, and gets its lock."""
    path = tmp_path / "ckpt"
    save(path, {"a": b"old"})
    stage = StagingDirectory(path)
    stage.begin()
    stage.create_file("a", [b"new"])

    class Slow(syscalls.SystemCalls):
        done = False

        def flock(self, fd: int, operation: int) -> None:
            if operation & fcntl.LOCK_NB and not self.done:
                self.done = True
                with syscalls.override(syscalls.SystemCalls()):
                    stage.commit(lambda _: DirectoryChange())
            super().flock(fd, operation)

    slow = Slow()
    with syscalls.override(slow):
        save(path, {"b": b"next"}, replaced=nothing)
    assert slow.done
    assert tree(path) == {"a": b"new", "b": b"next"}


@pytest.mark.parametrize("crash", [("replace", 1), ("replace", 2), ("fsync", 3)], ids=str)
def test_without_exchange_a_crash_leaves_the_old_one_to_be_found(
    tmp_path: Path, crash: tuple[str, int]
) -> None:
    path = tmp_path / "ckpt"
    save(path, {"a": b"old", "b": b"other"})
    assert locate_directory(path) == str(path)

    def replaced(folder: str, names: set[str]) -> set[str]:
        return {"a"}

    crashing = Crashing(*crash, exchanges=False)
    with syscalls.override(crashing), pytest.raises(Crash):
        save(path, {"a": b"new"}, replaced=replaced)
    assert tree(Path(locate_directory(path)))["b"] == b"other"
    with syscalls.override(NoExchange()):
        save(path, {"a": b"newer"}, replaced=replaced)
    assert tree(path) == {"a": b"newer", "b": b"other"}
    assert os.listdir(tmp_path) == ["ckpt"]


def test_a_failed_rename_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    save(path, {"a": b"old"})

    class Failing(NoExchange):
        def replace(self, source: str, target: str) -> None:
            if self.made.count("replace") == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().replace(source, target)

    with (
        syscalls.override(Failing()),
        pytest.raises(StorageError, match="while putting it in place; what was there before is"),
    ):
        save(path, {"a": b"new"})
    assert tree(path) == {"a": b"old"}
    assert os.listdir(tmp_path) == ["ckpt"]


def test_a_failure_after_the_exchange_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    save(path, {"a": b"old"})

    class Failing(CountingSystem):
        def fsync(self, fd: int) -> None:
            if "exchange" in self.made:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().fsync(fd)

    message = "while flushing its parent directory to the disk; the new directory is in place and"
    with syscalls.override(Failing()), pytest.raises(StorageError, match=message) as caught:
        save(path, {"a": b"new"})
    assert caught.value.errno == errno.EIO
    assert tree(path) == {"a": b"new"}
    save(path, {"a": b"newer"})
    assert os.listdir(tmp_path) == ["ckpt"]


def test_an_exception_while_preparing_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ckpt"
    stage = StagingDirectory(path)

    def prepare(_there: str | None) -> DirectoryChange:
        raise ZeroDivisionError

    def run() -> None:
        with stage.abandon_on_error():
            stage.begin()
            assert len(os.listdir(path.parent)) == 1
            stage.commit(prepare)

    with pytest.raises(ZeroDivisionError):
        run()
    assert os.listdir(tmp_path) == []


@BOTH
def test_savers_in_a_crowd_lose_nothing(tmp_path: Path, calls: type[syscalls.SystemCalls]) -> None:
    """Each brings in its own file and keeps all others."""
    path = tmp_path / "ckpt"

    def work(number: int) -> None:
        name = f"s{number}"
        for i in range(6):
            save(
                path,
                {f"{name}/{i}": name.encode(), name + ".last": str(i).encode()},
                replaced=lambda _, names: {name + ".last"} & names,
            )

    with syscalls.override(calls()):
        in_threads(work)
    result = tree(path)
    assert result == {
        **{f"s{n}/{i}": f"s{n}".encode() for n in range(8) for i in range(6)},
        **{f"s{n}.last": b"5" for n in range(8)},
    }
    assert os.listdir(tmp_path) == ["ckpt"]


def test_interrupts_at_any_moment_leave_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    save(path, {"a/b": b"whole", "c": b"kept"})
    open_before = open_descriptors()
    cuts = 0
    for cut in interruptions(
        lambda: save(path, {"a/b": b"whole"}, replaced=nothing_of_a), times=150
    ):
        cuts += cut
        assert tree(path) == {"a/b": b"whole", "c": b"kept"}
        assert os.listdir(tmp_path) == ["ckpt"]
    assert cuts > 15
    assert len(os.listdir("/proc/self/fd")) == open_before


def nothing_of_a(folder: str, names: set[str]) -> set[str]:
    return names if folder == "a" else set()


def test_removing_follows_no_symlinks(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "file").touch()
    (tmp_path / "gone" / "sub").mkdir(parents=True)
    (tmp_path / "gone" / "link").symlink_to("../keep")
    (tmp_path / "gone" / "sub" / "file").symlink_to("../../keep/file")
    remove_tree(str(tmp_path / "gone"))
    assert os.listdir(tmp_path) == ["keep"]
    assert os.listdir(tmp_path / "keep") == ["file"]


class LinkedElsewhere(CountingSystem):
    """Replaces each stage by a link to a directory as soon as it is made."""

    def __init__(self, elsewhere: Path) -> None:
        super().__init__()
        self.elsewhere = elsewhere

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        super().mkdir(path, mode)
        if path.endswith(".stage"):
            os.rename(path, f"{path}-aside")
            os.symlink(self.elsewhere, path)


def test_a_link_in_place_of_a_new_stage_is_not_followed(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "run", tmp_path / "private"
    save(path, {"a": b"1"})
    path.chmod(0o777)
    elsewhere.mkdir(0o700)
    with syscalls.override(LinkedElsewhere(elsewhere)), pytest.raises(OSError, match="run"):
        save(path, {"a": b"2"})
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
    assert list(elsewhere.iterdir()) == []
    assert (path / "a").read_bytes() == b"1"


def test_counting_stops_early(tmp_path: Path) -> None:
    names: Iterable[int] = range(30)
    for i in names:
        (tmp_path / str(i % 3)).mkdir(exist_ok=True)
        (tmp_path / str(i % 3) / str(i)).touch()
    assert count_files(str(tmp_path), at_most=100) == 30
    assert count_files(str(tmp_path), at_most=5) == 6


def test_a_forked_child_keeps_no_lock(tmp_path: Path) -> None:
    """Its copies of the descriptors outlive the save, its locks do not."""
    code = f"""
        import os, sys, time
        import numpy as np
        import cordwood
        from cordwood.storage import syscalls

        class Forking(syscalls.SystemCalls):
            children = []
            def fsync(self, fd):
                pid = os.fork()
                if not pid:
                    time.sleep(600)
                self.children.append(pid)
                super().fsync(fd)

        path = {str(tmp_path / "c")!r}
        with syscalls.override(Forking()):
            cordwood.save(path, {{"a": np.ones(3)}}, format="zarr")
        try:
            cordwood.save(path, {{"a": np.ones(4)}}, format="zarr")
            print(cordwood.load(path)["a"].shape, sorted(os.listdir({str(tmp_path)!r})))
        finally:
            for child in Forking.children:
                os.kill(child, 9)
    """
    assert run_python(code) == "(4,) ['c']\n"


def test_a_failed_removal_is_not_reported_as_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's leftovers lie in a directory that everybody may write to."""
    stage = tmp_path / ".100.cordwood-0123456789abcdef.stage"
    stage.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("cordwood.storage.staging.collect_stages.remove_tree", lambda path: None)
        assert collect_stages(tmp_path / "100", dry_run=False) == []
    assert collect_stages(tmp_path / "100", dry_run=True) == [str(stage)]
    assert collect_stages(tmp_path / "100", dry_run=False) == [str(stage)]
    assert not stage.exists()


def test_what_a_killed_save_left_is_removed_durably_before_the_new_directory_is_there(
    tmp_path: Path,
) -> None:
    """After a power cut the same call may be refused, and would remove nothing any more."""
    stage = tmp_path / ".ckpt.cordwood-0123456789abcdef.stage"
    stage.mkdir()
    order: list[str] = []

    class Recording(syscalls.SystemCalls):
        def rmdir(self, path: str, folder: int | None = None) -> None:
            order.append("remove")
            super().rmdir(path, folder)

        def fsync(self, fd: int) -> None:
            if os.readlink(f"/proc/self/fd/{fd}") == str(tmp_path):
                order.append("flush")
            super().fsync(fd)

        def replace(self, source: str, target: str) -> None:
            order.append("put in place")
            super().replace(source, target)

    with syscalls.override(Recording()):
        save(tmp_path / "ckpt", {"a": b"new"})
    assert order[order.index("remove") :] == ["remove", "flush", "put in place", "flush"]
    assert os.listdir(tmp_path) == ["ckpt"]


def test_it_is_a_transaction(tmp_path: Path) -> None:
    """The types are checked statically."""
    stage: Transaction[PlannedFile, WrittenFile, str, DirectoryChange]
    stage = StagingDirectory(tmp_path / "ckpt")
    (written,) = stage.write([SmallFile("a/b", b"x")], Leaves([]))
    assert written.size_bytes == 1
    stage.abandon()
    assert os.listdir(tmp_path) == []
