"""A save by several processes: process 0 commits what all have written, or nobody does."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cordwood.errors import ProcessError
from cordwood.processes.begin_shared_save import begin_shared_save
from cordwood.processes.key_value_store import SINGLE_PROCESS, Processes
from cordwood.processes.rendezvous import Rendezvous
from tests.deaths import SILENCE_SECONDS, die_at_any_call
from tests.processes.fake_processes import FakeProcesses, run_processes

COUNT = 3


class Disk:
    """A fake destination of a save; the test decides which processes share it."""

    def __init__(self) -> None:
        self.marks: set[str] = set()
        self.written: dict[int, str] = {}
        self.committed: list[tuple[str, list[str]]] = []

    def create_probe(self) -> str:
        self.marks.add("a mark")
        return "a mark"

    def sees_probe(self, mark: str, *, timeout_seconds: float) -> bool:
        return mark in self.marks


def save(
    processes: Processes,
    disk: Disk,
    *,
    prints: bytes = b"same",
    fails: Exception | None = None,
    commit_fails: Exception | None = None,
    silence_seconds: float = 100,
) -> None:
    def write(save_id: str, base: str) -> str:
        assert base == "sent-by-0"
        if fails is not None:
            raise fails
        disk.written[processes.index] = save_id
        return f"report {processes.index}"

    def commit(reports: list[str]) -> None:
        assert processes.index == 0
        if commit_fails is not None:
            raise commit_fails
        disk.committed.append((save_id, reports))

    with Rendezvous(
        processes, "save x", timeout_seconds=100, silence_seconds=silence_seconds
    ) as rendezvous:
        save_id, base = begin_shared_save(
            rendezvous,
            disk,
            path="x",
            save_id=f"{processes.index}" * 16,
            base=f"sent-by-{processes.index}",
            fingerprints=lambda: [prints * 16],
            specs=[],
        )
        rendezvous.exchange(write(save_id, base), commit)


def texts(outcomes: list[Any]) -> set[str]:
    assert all(isinstance(outcome.error, ProcessError) for outcome in outcomes), outcomes
    return {str(outcome.error) for outcome in outcomes}


def test_a_lone_process_commits_without_messages() -> None:
    disk = Disk()
    save(SINGLE_PROCESS, disk)
    ((save_id, reports),) = disk.committed
    assert reports == ["report 0"]
    assert save_id == "0" * 16
    assert not disk.marks


def test_all_write_and_process_0_commits() -> None:
    disk = Disk()
    outcomes = run_processes(COUNT, lambda processes: save(processes, disk))
    assert [outcome.error for outcome in outcomes] == [None] * COUNT
    ((save_id, reports),) = disk.committed
    assert reports == ["report 0", "report 1", "report 2"]
    assert disk.written == dict.fromkeys(range(COUNT), save_id)


@pytest.mark.parametrize("process", range(COUNT))
def test_a_process_fails_to_write(process: int) -> None:
    disk = Disk()
    full = OSError(28, "No space left")

    def work(processes: FakeProcesses) -> None:
        save(processes, disk, fails=full if processes.index == process else None)

    outcomes = run_processes(COUNT, work)
    assert outcomes.pop(process).error is full
    (text,) = texts(outcomes)
    assert text == f"process {process} failed to save x: OSError: [Errno 28] No space left"
    assert not disk.committed


def test_process_0_fails_to_commit() -> None:
    disk = Disk()
    full = OSError(28, "No space left")
    outcomes = run_processes(COUNT, lambda processes: save(processes, disk, commit_fails=full))
    assert outcomes[0].error is full
    assert texts(outcomes[1:]) == {"process 0 failed to save x: OSError: [Errno 28] No space left"}


def test_a_process_dies_at_any_call() -> None:
    def count_calls(processes: FakeProcesses, disk: Disk) -> int:
        save(processes, disk, silence_seconds=SILENCE_SECONDS)
        return processes.calls

    def die(number: int) -> BaseException | None:
        disk = Disk()
        outcomes = run_processes(
            COUNT, lambda processes: count_calls(processes, disk), dies_at={1: number}
        )
        error = outcomes.pop(1).error
        if error is None or disk.committed:  # it had no such call, or had reported
            assert [outcome.error for outcome in outcomes] == [None, None]
        else:
            assert "process 1 gave no sign of life" in texts(outcomes).pop()
        return error

    counted = Disk()
    calls = run_processes(COUNT, lambda processes: count_calls(processes, counted))[1].value
    die_at_any_call(calls, die, least=5)


def test_a_directory_that_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordwood.processes.begin_shared_save.PROBE_SECONDS", 0.1)
    disks = [Disk(), Disk(), Disk()]
    disks[2] = disks[0]
    outcomes = run_processes(COUNT, lambda processes: save(processes, disks[processes.index]))
    (text,) = texts(outcomes)
    assert text.startswith("x is not one directory for all processes: process 1 (on ")
    assert not any(disk.written or disk.committed for disk in disks)


def test_processes_with_other_trees_write_nothing() -> None:
    disk = Disk()

    def work(processes: FakeProcesses) -> None:
        save(processes, disk, prints=b"else" if processes.index == 2 else b"same")

    (text,) = texts(run_processes(COUNT, work))
    assert "process 2 would save something else than process 0" in text
    assert not disk.written


def test_nobody_writes_before_everybody_is_here() -> None:
    disk = Disk()
    ready = threading.Event()

    def work(processes: FakeProcesses) -> None:
        if processes.index == 1:
            ready.wait(0.3)
            assert not disk.written
        save(processes, disk)

    assert [o.error for o in run_processes(COUNT, work)] == [None] * COUNT
