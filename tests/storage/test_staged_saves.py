"""Saves of several processes into a new directory that gets its name at the commit."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cordwood.storage import syscalls
from cordwood.storage.local_storage import LocalStorage
from cordwood.storage.local_transaction import LocalTransaction
from cordwood.storage.removal.list_tree import list_tree
from cordwood.storage.staging.collect_stages import collect_stages_of_packs
from cordwood.storage.storage_protocol import MissingDataError
from tests.storage.test_local_storage import RULES, new_file, put, save, sevens


@contextmanager
def staged(path: Path, *, others_commit: bool) -> Iterator[LocalTransaction]:
    store = LocalStorage(path, RULES)
    with store.transaction(others_commit=others_commit, staged=True) as transaction:
        yield transaction


@contextmanager
def two_processes(path: Path) -> Iterator[tuple[LocalTransaction, LocalTransaction]]:
    """Begin a save of two processes, and write a file by each."""
    with ExitStack() as stack:
        other = stack.enter_context(staged(path, others_commit=True))
        first = stack.enter_context(staged(path, others_commit=False))
        assert other.sees_probe(first.create_probe(), timeout_seconds=1)
        first.write([new_file("data-0")], sevens())
        other.write([new_file("data-1")], sevens())
        assert not path.exists()
        yield first, other


def names_below(path: Path) -> list[str]:
    return sorted(os.path.relpath(each, path) for each in path.rglob("*"))


def test_the_directory_gets_its_name_with_the_files_of_all_processes(tmp_path: Path) -> None:
    with two_processes(tmp_path / "in" / "12") as (first, _):
        first.commit(put("x", "data-0", "data-1", beside=b"{}"))
    assert names_below(tmp_path / "in") == ["12", "12/beside", "12/data-0", "12/data-1", "12/index"]


def test_a_process_that_does_not_see_the_directory_says_so(tmp_path: Path) -> None:
    with (
        staged(tmp_path / "a" / "12", others_commit=False) as first,
        staged(tmp_path / "b" / "12", others_commit=True) as other,
    ):
        assert not other.sees_probe(first.create_probe(), timeout_seconds=0)
        first.commit(put("x"))
    assert names_below(tmp_path) == ["a", "a/12", "a/12/index"]


class ProcessFailure(Exception):
    pass


@pytest.mark.parametrize("is_first", [True, False], ids=["process 0", "process 1"])
def test_no_file_remains_whichever_process_fails_first(tmp_path: Path, is_first: bool) -> None:
    path = tmp_path / "run" / "12"
    with ExitStack() as stack:
        leaving = [staged(path, others_commit=False), staged(path, others_commit=True)]
        first = leaving[0].__enter__()
        other = leaving[1].__enter__()
        stack.callback(first.close)
        stack.callback(other.close)
        assert other.sees_probe(first.create_probe(), timeout_seconds=1)
        first.write([new_file("data-0")], sevens())
        other.write([new_file("data-1")], sevens())
        for each in leaving if is_first else reversed(leaving):
            assert not each.__exit__(ProcessFailure, ProcessFailure(), None)
    assert names_below(tmp_path) in ([], ["run"])


class FullDisk(syscalls.SystemCalls):
    """System calls of which the Nth fsync or rename fails."""

    def __init__(self, fails_at: int) -> None:
        self._calls = fails_at

    def _call(self) -> None:
        self._calls -= 1
        if self._calls == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fsync(self, fd: int) -> None:
        self._call()
        super().fsync(fd)

    def replace(self, source: str, target: str) -> None:
        self._call()
        super().replace(source, target)


def test_a_commit_that_fails_removes_the_files(tmp_path: Path) -> None:
    path = tmp_path / "run" / "12"
    failures = []
    for number in range(1, 20):
        text = ""
        try:
            with two_processes(path) as (first, _), syscalls.override(FullDisk(number)):
                first.commit(put("x", "data-0", "data-1", beside=b"{}"))
        except OSError as e:
            text = str(e)
        if not text:
            break
        failures.append(text)
        if "is in place and whole" in text:
            assert names_below(path) == ["beside", "data-0", "data-1", "index"]
            shutil.rmtree(tmp_path / "run")
        else:
            assert "what was there before is untouched" in text
            assert names_below(tmp_path) in ([], ["run"])
    assert len(failures) > 6
    assert ["is in place" in text for text in failures].count(True) == 1  # the last flush


def test_nothing_is_committed_without_the_files_of_each_process(tmp_path: Path) -> None:
    def save_without_it() -> None:
        with staged(tmp_path / "12", others_commit=False) as first:
            first.write([new_file("data-0")], sevens())
            first.commit(put("x", "data-0", "data-1"))

    with pytest.raises(MissingDataError, match="the process that wrote it died"):
        save_without_it()
    assert names_below(tmp_path) == []


def test_a_directory_with_a_locked_file_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "12"
    with two_processes(path) as (first, _):
        (stage,) = tmp_path.iterdir()
        first._stage.close()  # type: ignore[union-attr]  # as another machine sees its lock
        assert collect_stages_of_packs(str(tmp_path), RULES.is_data_file, dry_run=False) == []
        assert sorted(os.listdir(stage)) == ["data-0", "data-1"]
        first.commit(put("x", "data-0", "data-1"))
    assert names_below(tmp_path) == ["12", "12/data-0", "12/data-1", "12/index"]


def test_the_files_of_all_processes_move_into_a_directory_that_came_meanwhile(
    tmp_path: Path,
) -> None:
    path = tmp_path / "12"
    with two_processes(path) as (first, _):
        os.rename(_saved_elsewhere(tmp_path), path)
        first.commit(put("x", "data-0", "data-1"))
    assert names_below(path) == ["data-0", "data-1", "data-9", "index"]
    assert LocalStorage(path, RULES).read_index() == b'{"y": ["data-9"], "x": ["data-0", "data-1"]}'
    assert os.listdir(tmp_path) == ["12"]


def test_the_files_of_all_processes_take_the_place_of_what_was_listed(tmp_path: Path) -> None:
    path = tmp_path / "12"
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "old").write_text("of another tool")
    with ExitStack() as stack:
        other = stack.enter_context(LocalStorage(path, RULES).transaction(others_commit=True))
        first = stack.enter_context(
            LocalStorage(path, RULES).transaction(
                others_commit=False, replaces=list_tree(os.fspath(path))
            )
        )
        assert other.sees_probe(first.create_probe(), timeout_seconds=1)
        first.write([new_file("data-0")], sevens())
        other.write([new_file("data-1")], sevens())
        assert names_below(path) == ["inner", "inner/old"]
        first.commit(put("x", "data-0", "data-1"))
    assert names_below(tmp_path) == ["12", "12/data-0", "12/data-1", "12/index"]


def _saved_elsewhere(folder: Path) -> Path:
    save(folder / "other", "y", "data-9")
    return folder / "other"
