"""A staging directory that several processes fill: put in place whole by process 0, or gone."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordwood.errors import ProcessError, StorageError
from cordwood.formats.zarr.fill_together import fill_together
from cordwood.formats.zarr.plan_item import ItemPlan
from cordwood.index import Box
from cordwood.plan.file_plan import ChunkFile, PlannedFile, SmallFile
from cordwood.processes import begin_shared_save
from cordwood.processes.key_value_store import SINGLE_PROCESS, Processes
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.staging.staging_directory import DirectoryChange, StagingDirectory
from cordwood.storage.write_chunk_files import WrittenFile
from cordwood.threads.stop_check import StoppedError
from cordwood.tree.flatten import describe_tree
from tests.deaths import SILENCE_SECONDS, die_at_any_call
from tests.io.file_plans import leaves_read_by
from tests.processes.fake_processes import Died, FakeProcesses, run_processes

COUNT = 3
ROWS = 300_000  # of each process: three blocks of digests

Fetch = Callable[[int], Any]


def files_of(process: int) -> list[PlannedFile]:
    box = Box((process * ROWS,), ((process + 1) * ROWS,))
    chunk = ChunkFile(f"a/w/{process}", 0, box, (ROWS,), 8)
    return [SmallFile(f"b{process}/.zarray", b"{}"), chunk, SmallFile(f"a/{process}", b"x" * 99)]


def whole(step: int) -> np.ndarray[Any, Any]:
    return np.arange(step, step + COUNT * ROWS)


def save(
    processes: Processes,
    path: Path,
    step: int,
    *,
    fetch: Fetch | None = None,
    stage: StagingDirectory | None = None,
    silence_seconds: float = 100,
) -> None:
    files = [(file, n) for n in range(processes.count) for file in files_of(n)]
    planned = [file for file, _ in files]
    writers = [n for _, n in files]
    empty = describe_tree({}, process=processes.index, process_count=processes.count)
    item = ItemPlan(empty, "", {}, None, True, "", [], [], [], planned, writers)
    rendezvous = Rendezvous(
        processes, "save x", timeout_seconds=100, silence_seconds=silence_seconds
    )
    if stage is None:
        stage = StagingDirectory(path, timeout_seconds=100)

    def commit(written: Sequence[WrittenFile]) -> None:
        assert [each.size_bytes for each in written] == [2, 8 * ROWS, 99] * processes.count
        stage.create_file("digests", [b"".join([each.digests for each in written])])
        stage.commit(lambda _: DirectoryChange())

    leaves = leaves_read_by(fetch or (lambda _: whole(step)), 1)
    fill_together(stage, item, range(len(files)), leaves, rendezvous, commit)


def tree(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def expected(step: int, count: int = COUNT) -> dict[str, bytes]:
    result = {}
    for process in range(count):
        result[f"a/w/{process}"] = whole(step)[process * ROWS : (process + 1) * ROWS].tobytes()
        result[f"b{process}/.zarray"] = b"{}"
        result[f"a/{process}"] = b"x" * 99
    return result


def test_a_lone_process_fills_a_directory(tmp_path: Path) -> None:
    save(SINGLE_PROCESS, tmp_path / "new" / "x", 1)
    result = tree(tmp_path / "new" / "x")
    result.pop("digests")
    assert result == expected(1, 1)
    assert os.listdir(tmp_path / "new") == ["x"]


def test_every_process_writes_its_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x"
    for step in range(2):
        outcomes = run_processes(COUNT, partial(save, path=path, step=step))
        assert [outcome.error for outcome in outcomes] == [None] * COUNT
        result = tree(path)
        assert len(result.pop("digests")) == COUNT * 16 * (1 + 3 + 1)
        assert result == expected(step)
        assert os.listdir(path.parent) == ["x"]


@pytest.mark.parametrize("process", range(COUNT))
def test_a_failing_process_leaves_the_old_directory(tmp_path: Path, process: int) -> None:
    path = tmp_path / "x"

    def fail(_: int) -> Any:
        raise OSError(errno.EIO, "the leaf")

    def work(processes: FakeProcesses) -> None:
        save(processes, path, 2, fetch=fail if processes.index == process else None)

    run_processes(COUNT, lambda processes: save(processes, path, 1))
    before = tree(path)
    outcomes = run_processes(COUNT, work)
    error = outcomes.pop(process).error
    assert isinstance(error, StorageError)
    assert "while writing; what was there before is untouched" in str(error)
    for outcome in outcomes:
        assert isinstance(outcome.error, ProcessError)
        assert str(outcome.error).startswith(f"process {process} failed to save x: StorageError: ")
    assert tree(path) == before
    assert os.listdir(tmp_path) == ["x"]


def test_a_process_dies_at_any_call(tmp_path: Path) -> None:
    def count_calls(processes: FakeProcesses) -> int:
        save(processes, tmp_path / "counted" / "x", 1)
        return processes.calls

    def die(number: int) -> BaseException | None:
        path = tmp_path / str(number) / "x"
        run_processes(COUNT, lambda processes: save(processes, path, 1))
        before = tree(path)
        outcomes = run_processes(
            COUNT,
            lambda processes: save(processes, path, 7, silence_seconds=SILENCE_SECONDS),
            dies_at={1: number},
        )
        error = outcomes.pop(1).error
        if outcomes[0].error is not None:
            for outcome in outcomes:
                assert "process 1 gave no sign of life" in str(outcome.error)
            assert tree(path) == before
        else:
            assert tree(path) != before
        assert os.listdir(path.parent) == ["x"]
        if error is None:
            assert all(outcome.error is None for outcome in outcomes)
        return error

    die_at_any_call(run_processes(COUNT, count_calls)[1].value, die, least=5)


def test_the_death_of_process_0_leaves_the_old_directory(tmp_path: Path) -> None:
    path = tmp_path / "x"
    run_processes(COUNT, lambda processes: save(processes, path, 1))
    before = tree(path)
    outcomes = run_processes(COUNT, lambda processes: save(processes, path, 2), dies_at={0: 8})
    assert isinstance(outcomes[0].error, Died)
    assert all(isinstance(outcome.error, ProcessError) for outcome in outcomes[1:])
    assert tree(path) == before
    assert os.listdir(tmp_path) == ["x"]


def test_directories_that_are_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin_shared_save, "PROBE_SECONDS", 0.1)
    for index in range(COUNT):
        (tmp_path / f"{index}").mkdir()

    def work(processes: FakeProcesses) -> None:
        save(processes, tmp_path / f"{processes.index % 2}" / "x", 1)

    outcomes = run_processes(COUNT, work)
    for outcome in outcomes:
        path = tmp_path / "1" / "x"
        start = f"{path} is not one directory for all processes: process 1 (on "
        assert str(outcome.error).startswith(start)
    assert [os.listdir(tmp_path / f"{index}") for index in range(COUNT)] == [[], [], []]


def test_who_still_writes_when_the_stage_goes_says_why(tmp_path: Path) -> None:
    """Process 2 fails, and process 0 removes the stage, while process 1 has not heard of it."""
    gone = threading.Event()

    def fetch_of(index: int) -> Fetch:
        def fetch(_: int) -> Any:
            if index == 2:
                raise ZeroDivisionError
            if index == 1:
                assert gone.wait(60)
            return whole(1)

        return fetch

    def work(processes: FakeProcesses) -> None:
        try:
            save(processes, tmp_path / "x", 1, fetch=fetch_of(processes.index))
        finally:
            if processes.index == 0:
                gone.set()

    outcomes = run_processes(COUNT, work)
    assert isinstance(outcomes[2].error, ZeroDivisionError)
    for outcome in outcomes[:2]:
        assert isinstance(outcome.error, ProcessError), outcome
        assert str(outcome.error) == "process 2 failed to save x: ZeroDivisionError: "
    assert os.listdir(tmp_path) == []


def test_who_still_writes_and_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C comes to all: process 1 makes a file when process 0 has removed the stage."""
    gone = threading.Event()
    stages: list[str] = []

    def interrupt(processes: FakeProcesses) -> Fetch:
        def fetch(_: int) -> Any:
            if processes.index == 0:
                raise StoppedError
            assert gone.wait(60)
            # As a file that was being made while process 0 looked what there is to remove.
            os.makedirs(stages[0])
            Path(stages[0], "late").touch()
            raise StoppedError

        return fetch

    def work(processes: FakeProcesses) -> None:
        if processes.index == 0:
            mark = StagingDirectory.create_probe

            def noted(stage: StagingDirectory) -> str:
                name = mark(stage)
                stages.append(stage.path)
                return name

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(StagingDirectory, "create_probe", noted)
                try:
                    save(processes, tmp_path / "x", 1, fetch=interrupt(processes))
                finally:
                    gone.set()
        save(processes, tmp_path / "x", 1, fetch=interrupt(processes))

    outcomes = run_processes(2, work)
    assert isinstance(outcomes[0].error, StoppedError)
    # Which of its own interrupt and the failure of process 0 it meets first, is a matter of time.
    assert isinstance(outcomes[1].error, StoppedError | ProcessError)
    assert os.listdir(tmp_path) == []


class SpoiledDirectory(StagingDirectory):
    """One in which a file of process 2 changes while process 0 looks for those of process 1."""

    def __init__(self, path: Path, name: str, data: bytes | None) -> None:
        super().__init__(path)
        self.name = name
        self.data = data

    def size_of(self, path: str) -> int | None:
        file = Path(self.path, self.name)
        file.unlink(missing_ok=True)
        if self.data is not None:
            file.write_bytes(self.data)
        return super().size_of(path)


@pytest.mark.parametrize(
    ("name", "data"),
    [("a/w/2", None), ("a/w/2", b"short"), ("report.2", None), ("report.2", b"other")],
)
def test_a_lost_file_of_another_process_fails_the_save(
    tmp_path: Path, name: str, data: bytes | None
) -> None:
    path = tmp_path / "x"

    def work(processes: FakeProcesses) -> None:
        save(processes, path, 1, stage=SpoiledDirectory(path, name, data))

    outcomes = run_processes(COUNT, work)
    assert isinstance(outcomes[0].error, StorageError)
    for outcome in outcomes:
        assert f"{name} is not there as process 2 wrote it: something else" in str(outcome.error)
    assert os.listdir(tmp_path) == []
