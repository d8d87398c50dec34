"""Journals: tasks that are done, of one call or of several, and two calls at once."""

from __future__ import annotations

import os
import pickle
import re
import socket
from pathlib import Path

import pytest

from cordwood.bulk.task_records import TaskRecords
from cordwood.bulk.work_journal import open_journal
from cordwood.errors import StorageError
from cordwood.plan.parts_of_work import WorkPart
from cordwood.storage.locations import LocalPath
from tests.children import run_python

WORK = "verify /run/1"


@pytest.fixture
def folder(tmp_path: Path) -> LocalPath:
    return LocalPath(str(tmp_path / "journal"))


def record(folder: LocalPath, part: WorkPart | None, *keys: str) -> None:
    with open_journal(folder, work=WORK, part=part) as journal:
        for key in keys:
            journal.record(key, [key])


def results_in(folder: LocalPath, part: WorkPart | None = None) -> dict[str, object]:
    with open_journal(folder, work=WORK, part=part) as journal:
        return dict(journal.results)


def test_calls_see_what_others_have_done(folder: LocalPath) -> None:
    record(folder, None, "a")
    record(folder, WorkPart(0, 2), "b")
    record(folder, WorkPart(1, 2), "c", "d")
    assert results_in(folder) == {key: [key] for key in "abcd"}


def test_a_line_that_was_not_written_to_its_end_is_dropped(folder: LocalPath) -> None:
    record(folder, None, "a", "b")
    path = Path(folder, "tasks.jsonl")
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        before = results_in(folder)
        assert before in ({}, {"a": ["a"]}, {"a": ["a"], "b": ["b"]})
        record(folder, None, "c")
        assert results_in(folder) == {**before, "c": ["c"]}


def test_what_a_worker_records_is_seen_at_once_and_by_later_calls(folder: LocalPath) -> None:
    with open_journal(folder, work=WORK, part=None) as journal:
        assert pickle.loads(pickle.dumps(journal.records)).add("a", ["a"])
        assert "a" not in journal.results
        journal.reload()
        assert journal.results == {"a": ["a"]}
    assert results_in(folder, WorkPart(0, 2)) == {"a": ["a"]}


def test_a_worker_that_does_not_see_the_journal_records_nothing(folder: LocalPath) -> None:
    assert not TaskRecords(folder, "0" * 16).add("a", ["a"])
    assert not Path(folder).exists()


def test_deletion_leaves_nothing(folder: LocalPath) -> None:
    record(folder, WorkPart(0, 2), "b")
    with open_journal(folder, work=WORK, part=None) as journal:
        journal.records.add("c", [])
        journal.delete()
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("one", "other", "may_run"),
    [
        (None, None, False),
        (None, WorkPart(0, 2), False),
        (WorkPart(0, 2), None, False),
        (WorkPart(0, 2), WorkPart(0, 2), False),
        (WorkPart(0, 2), WorkPart(1, 2), True),
        (WorkPart(0, 2), WorkPart(1, 3), False),
    ],
)
def test_two_calls_at_once(
    folder: LocalPath, one: WorkPart | None, other: WorkPart | None, *, may_run: bool
) -> None:
    with open_journal(folder, work=WORK, part=one):
        if may_run:
            record(folder, other, "a")
            return
        who = (
            rf"process {os.getpid()} on {re.escape(socket.gethostname())}, since 2.* UTC, works on"
        )
        with pytest.raises(StorageError, match=who):
            record(folder, other, "a")
    record(folder, other, "a")  # the remedy: it has ended


def test_a_killed_call_locks_nothing(folder: LocalPath) -> None:
    run_python(
        """
        import os, signal, sys
        from cordwood.storage.locations import LocalPath
        from cordwood.bulk.work_journal import open_journal
        pid = os.fork()
        if not pid:
            with open_journal(LocalPath(sys.argv[1]), work=sys.argv[2], part=None) as journal:
                journal.record("a", 1)
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        """,
        folder.text,
        WORK,
    )
    assert results_in(folder) == {"a": 1}


def test_other_directories_and_other_journals_are_refused(folder: LocalPath) -> None:
    record(folder, None, "a")
    with (
        pytest.raises(ValueError, match=f"journal of another call, '{WORK}'; expected that of 'x'"),
        open_journal(folder, work="x", part=WorkPart(0, 2)),
    ):
        pass
    path = Path(folder, "notes.txt")
    path.write_text("hello")
    with pytest.raises(ValueError, match=r"holds 'notes.txt', and was left as it is: name another"):
        results_in(folder)
    path.unlink()
    Path(folder, "tasks-3-of-4.jsonl").write_text("hello\n")
    with pytest.raises(ValueError, match=r"tasks-3-of-4.jsonl is no file of a journal"):
        results_in(folder)
    assert Path(folder, "tasks-3-of-4.jsonl").read_text() == "hello\n"


def test_a_line_that_was_cut_off_by_a_full_disk_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LocalPath(str(tmp_path / "journal"))
    real = os.write
    with open_journal(folder, work="w", part=None) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
            assert not journal.records.add("a", ["x"])
            with pytest.raises(OSError, match="No space left"):
                journal.record("b", ["y"])
        assert journal.records.add("c", ["z"])
        journal.record("d", ["z"])
        journal.reload()
        assert journal.results == {"c": ["z"]}
    with open_journal(folder, work="w", part=None) as journal:
        assert journal.results == {"c": ["z"], "d": ["z"]}
