"""Replicas: files of other processes in the root of each, fetched after commits."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from pathlib import Path

import pytest

from cordwood import CheckpointManager, Mirror
from cordwood.errors import CordwoodError
from cordwood.manager.delete_steps import StepCleaner
from cordwood.manager.unshared import replica_copies
from cordwood.manager.unshared.replica_copies import ReplicaCopies
from cordwood.plan.recovery.complete_steps import CompleteStep
from cordwood.processes.host_address import host_name
from cordwood.results import StepPlaces
from tests.manager.unshared.fake_run import (
    TIMEOUT_SECONDS,
    Run,
    every_device_is_a_process,
    in_the_foreground,
    like,
    packs,
    tree_of,
)

__all__ = ["every_device_is_a_process", "in_the_foreground"]


def each_by_itself(process: int) -> int:
    return process


def writers(run: Run, process: int, step: int) -> set[int]:
    """Return the processes of which files of a step lie in a root."""
    return {int(pack.name.split("-")[2]) for pack in packs(run.root(process) / str(step))}


def save(run: Run, count: int, steps: list[int], **options: object) -> list[CheckpointManager]:
    """Restore and save some steps by all processes, waiting after each."""

    def work(manager: CheckpointManager, index: int) -> CheckpointManager:
        manager.restore(like=like(count))
        for step in steps:
            manager.save(step, tree_of(step, count))
            manager.wait()
            assert manager.problems or manager.replicated == step
        return manager

    return run.values(count, work, **{"failure_domain": each_by_itself, "replicas": 1, **options})


@pytest.mark.parametrize("replicas", [1, 2])
def test_each_file_is_in_the_roots_of_other_processes_after_a_commit(
    tmp_path: Path, replicas: int
) -> None:
    run = Run(tmp_path)
    managers = save(run, 3, [1, 2], replicas=replicas)
    assert [manager.problems for manager in managers] == [[], [], []]
    for step in (1, 2):
        for process in range(3):
            expected = {(process - shift) % 3 for shift in range(replicas + 1)}
            assert writers(run, process, step) == expected


def test_a_lost_root_is_restored_from_the_replicas_by_any_number_of_processes(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    save(run, 4, [1])
    shutil.rmtree(run.root(2))
    assert run.restore(4) == 1
    roots = [run.root(0), run.root(1), run.root(3)]
    assert run.restore(3, roots=roots) == 1


def test_the_places_of_each_step_say_what_is_lost_with_a_process(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(3, [1])
    save(run, 3, [2])
    shutil.rmtree(run.root(2) / "2")

    def work(manager: CheckpointManager, index: int) -> list[StepPlaces]:
        places = manager.places()
        assert places == manager.places()
        return places

    (first, second), *others = run.values(3, work, mirror=Mirror(tmp_path / "mirror"))
    assert others == [[first, second]] * 2
    assert (first.step, first.lost_with_processes) == (1, (0, 1, 2))
    assert first.lost_with_hosts == (host_name(),)
    assert (second.step, second.lost_with_processes) == (2, (0, 1))
    assert second.files_of[0] == second.files_of[1] < second.files
    assert not second.mirrored


def test_two_neighbours_lost_at_once_lose_the_step(tmp_path: Path) -> None:
    run = Run(tmp_path)
    save(run, 4, [1])
    for process in (1, 2):
        shutil.rmtree(run.root(process))
    with pytest.warns(RuntimeWarning), pytest.raises(CordwoodError, match="are nowhere"):
        run.restore(4)


def test_unchanged_files_are_linked_to_the_replica_of_an_older_step(tmp_path: Path) -> None:
    run = Run(tmp_path)
    save(run, 2, [1, 2])
    shared = [
        pack.name
        for pack in packs(run.root(0) / "2")
        if (run.root(0) / "1" / pack.name).exists() and "-1-" in pack.name
    ]
    assert shared
    for name in shared:
        assert os.path.samefile(run.root(0) / "1" / name, run.root(0) / "2" / name)


def test_replicas_are_deleted_with_their_step(tmp_path: Path) -> None:
    run = Run(tmp_path)
    save(run, 2, [1, 2, 3], keep=1)
    for process in range(2):  # at the commit of step 3 only step 2 was replicated
        assert sorted(each.name for each in run.root(process).iterdir()) == ["2", "3"]


def test_what_is_over_the_budget_is_a_problem_and_fails_no_save(tmp_path: Path) -> None:
    run = Run(tmp_path)
    managers = save(run, 2, [1], replica_bytes=1000)
    for process, manager in enumerate(managers):
        (problem,) = manager.problems
        assert "over replica_bytes=1000" in str(problem)
        assert problem.step == 1
        assert writers(run, process, 1) == {process}
    assert run.restore(2) == 1


def test_the_budget_counts_no_file_as_that_of_others_because_its_number_was_another(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    save(run, 3, [1], keep=1)
    part = sum(pack.stat().st_size for pack in packs(run.root(0) / "1") if "-2-" in pack.name)
    # Process 1 gets the root of process 0, with files of the numbers 0 and 2. A part of two
    # processes is half as large again, and the budget has room for an old one and such a one.
    roots, limit = [run.root(1), run.root(0)], int(2.7 * part)
    managers = save(run, 2, [2, 3], keep=1, roots=roots, replica_bytes=limit)
    assert [manager.problems for manager in managers] == [[], []]
    assert [manager.replicated for manager in managers] == [3, 3]


def test_too_few_domains_are_a_problem_and_other_processes_hold_the_replicas(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    managers = save(run, 2, [1], failure_domain=None, replicas=2)
    (problem,) = managers[0].problems
    assert "replicas=2, and there are 1 other process" in str(problem)
    assert "too few domains" in str(problem)
    assert not managers[1].problems
    assert writers(run, 0, 1) == {0, 1}


def test_a_failing_failure_domain_fails_no_save(tmp_path: Path) -> None:
    run = Run(tmp_path)

    def fails(process: int) -> int:
        raise KeyError(process)

    managers = save(run, 2, [1], failure_domain=fails)
    assert "KeyError" in str(managers[0].problems[0])
    assert run.restore(2) == 1


def test_the_log_says_what_is_replicated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cordwood")
    save(Run(tmp_path), 2, [1])
    texts = [record.getMessage() for record in caplog.records]
    assert sum("hold replicas of step 1: 1 file" in text for text in texts) == 2
    assert sum("this process holds its replicas of step 1" in text for text in texts) == 2


def test_a_wait_for_replicas_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_copies, "REPLICA_WAIT_SECONDS", 0.0)
    run = Run(tmp_path)

    def work(manager: CheckpointManager, index: int) -> list[str]:
        replicas = manager._unshared.replicas  # type: ignore[union-attr]
        assert replicas is not None
        replicas._task.wait = lambda seconds: False  # type: ignore[method-assign]
        manager.save(1, tree_of(1, 2))
        manager.wait()
        return [str(problem) for problem in manager.problems]

    texts = run.values(2, work, replicas=1, failure_domain=each_by_itself)
    assert all("not waited for any longer" in text for (text, *_) in texts)


def test_a_peer_that_cannot_be_reached_is_a_problem_and_fails_no_save(tmp_path: Path) -> None:
    run = Run(tmp_path)

    def work(manager: CheckpointManager, index: int) -> list[str]:
        manager.restore(like=like(2))
        if index == 1:
            manager._unshared._server.close()  # type: ignore[union-attr]
        manager.save(1, tree_of(1, 2))
        manager.wait()
        return [str(problem) for problem in manager.problems]

    texts, others = run.values(2, work, replicas=1, failure_domain=each_by_itself)
    assert any("process 1 on" in text for text in texts)
    assert any("step 1 could not be replicated" in text for text in texts)
    assert not others
    assert writers(run, 0, 1) == {0}
    assert writers(run, 1, 1) == {0, 1}
    assert run.restore(2) == 1


def test_a_killed_fetch_leaves_nothing_that_counts(tmp_path: Path) -> None:
    run = Run(tmp_path)
    save(run, 2, [1])
    (replica,) = [pack for pack in packs(run.root(0) / "1") if "-1-" in pack.name]
    replica.rename(replica.with_name(f".{replica.name}.0123456789abcdef.tmp"))
    shutil.rmtree(run.root(1))
    with pytest.warns(RuntimeWarning), pytest.raises(CordwoodError, match="are nowhere"):
        run.restore(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 1}, "pass shared=False too"),
        ({"replicas": -1, "shared": False}, "replicas: expected an int"),
        ({"replicas": 1, "replica_bytes": -1, "shared": False}, "replica_bytes: expected"),
        ({"replica_bytes": 5, "shared": False}, "have no effect without replicas="),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CheckpointManager(tmp_path, **options)  # type: ignore[arg-type]


def test_the_newest_replicated_step_stays_until_a_newer_one_is_replicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    save(run, 2, [1], keep=1)
    hold = ReplicaCopies._hold

    def fail_at_2(copies: ReplicaCopies, step: CompleteStep) -> tuple[int, int]:
        if step.step == 2:
            raise OSError(errno.EIO, "for this test")
        return hold(copies, step)

    monkeypatch.setattr(ReplicaCopies, "_hold", fail_at_2)
    managers = save(run, 2, [2], keep=1)  # in another life of the job
    assert [manager.steps() for manager in managers] == [[1, 2]] * 2
    lost = tmp_path / "lost"
    run.root(1).rename(lost)
    with pytest.warns(RuntimeWarning, match="step 2 is passed over"):
        assert run.restore(2) == 1
    shutil.rmtree(run.root(1), ignore_errors=True)
    lost.rename(run.root(1))
    save(run, 2, [3], keep=1)
    managers = save(run, 2, [4], keep=1)
    assert [manager.steps() for manager in managers] == [[3, 4]] * 2


def test_replicas_slower_than_saves_are_still_of_one_step_at_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    are_saved = threading.Event()
    hold = ReplicaCopies._hold

    def hold_late(copies: ReplicaCopies, step: CompleteStep) -> tuple[int, int]:
        if step.step == 1:
            assert are_saved.wait(TIMEOUT_SECONDS)
        elif step.step == 4 and copies._storage.index == 1:
            raise OSError(errno.EIO, "for this test")
        return hold(copies, step)

    monkeypatch.setattr(ReplicaCopies, "_hold", hold_late)

    def work(manager: CheckpointManager, index: int) -> tuple[int | None, list[int]]:
        for step in (1, 2, 3, 4):
            manager.save(step, tree_of(step, 2))
        manager._queue.wait()
        are_saved.set()
        manager.wait()
        return manager.replicated, manager.steps()

    options = {"failure_domain": each_by_itself, "replicas": 1, "keep": 1}
    assert run.values(2, work, **options) == [(4, [1, 4]), (1, [1, 4])]
    shutil.rmtree(run.root(0))
    with pytest.warns(RuntimeWarning, match="step 4 is passed over"):
        assert run.restore(2) == 1


def test_a_deletion_that_fails_does_not_end_replication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cleaner: StepCleaner, numbers: object) -> None:
        raise OSError(errno.EACCES, "for this test")

    monkeypatch.setattr(StepCleaner, "delete_agreed", fail)
    managers = save(Run(tmp_path), 2, [1, 2])
    assert [manager.replicated for manager in managers] == [2, 2]
    assert [manager.problems for manager in managers] == [[], []]


def test_a_step_that_is_deleted_and_saved_again_is_replicated_again(tmp_path: Path) -> None:
    run = Run(tmp_path)

    def work(manager: CheckpointManager, index: int) -> None:
        for is_last in (False, True):
            manager.save(1, tree_of(1, 2))
            manager.wait()
            assert manager.replicated == 1
            assert writers(run, index, 1) == {0, 1}
            if not is_last:
                manager.delete(1)

    run.values(2, work, failure_domain=each_by_itself, replicas=1)


def test_a_manager_that_is_opened_again_serves_again(tmp_path: Path) -> None:
    def work(manager: CheckpointManager, index: int) -> tuple[int | None, list[str]]:
        manager.save(1, tree_of(1, 2))
        manager.close()
        assert manager.steps() == [1]
        with manager:
            manager.save(2, tree_of(2, 2))
            manager.wait()
        return manager.replicated, list(map(str, manager.problems))

    options = {"replicas": 1, "failure_domain": each_by_itself}
    assert Run(tmp_path).values(2, work, **options) == [(2, [])] * 2


def test_a_damaged_replica_is_neither_restored_from_nor_linked(tmp_path: Path) -> None:
    run = Run(tmp_path)
    save(run, 2, [1])
    for pack in packs(run.root(0) / "1"):
        if "-1-" in pack.name:
            data = bytearray(pack.read_bytes())
            data[-1] ^= 1
            pack.write_bytes(data)

    def work(manager: CheckpointManager, index: int) -> None:
        restored = manager.restore(like=like(2))
        assert restored is not None
        assert restored.step == 1
        assert ["p0/1 failed" in str(each) for each in manager.problems] == [True] * (index == 0)
        manager.save(2, tree_of(2, 2))

    run.values(2, work, replicas=1, failure_domain=each_by_itself)
    shutil.rmtree(run.root(1))
    assert run.restore(2) == 2
