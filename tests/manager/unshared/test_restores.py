"""Restores of steps whose files lie in the roots of several processes."""

from __future__ import annotations

import errno
import gc
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cordwood import CheckpointManager, Mirror, load, verify
from cordwood.errors import (
    CorruptionError,
    IncompleteCheckpointError,
    ProcessError,
    StepError,
    StorageError,
    UnsupportedFormatError,
)
from cordwood.manager import manager as manager_module
from cordwood.manager.delete_steps import StepCleaner
from cordwood.manager.unshared import unshared_run
from cordwood.processes import rendezvous
from cordwood.storage.locks.root_probe import RootProbe
from cordwood.storage.peers.peer_connection import PeerConnection
from cordwood.storage.peers.peer_step import PeerStep
from cordwood.testing import assert_trees_equal
from tests.manager.unshared.fake_run import (
    TIMEOUT_SECONDS,
    Run,
    every_device_is_a_process,
    in_the_foreground,
    like,
    packs,
    replicate,
    tree_of,
)

__all__ = ["every_device_is_a_process", "in_the_foreground"]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_lost_root_is_read_from_the_replicas_by_any_number_of_processes(
    tmp_path: Path, count: int
) -> None:
    run = Run(tmp_path)
    run.save(4, [1])
    for process in (1, 2, 3):
        replicate(run, process, 1, 0)
    shutil.rmtree(run.root(3))
    assert run.restore(count) == 1


def test_the_newest_complete_step_is_restored_and_the_error_names_what_is_missing(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    run.save(3, [1, 2])
    replicate(run, 1, 1, 2)
    shutil.rmtree(run.root(1))
    with pytest.warns(RuntimeWarning, match=r"step 2 is passed over: incomplete: .* are nowhere"):
        assert run.restore(3) == 1
    shutil.rmtree(run.root(2))
    with pytest.warns(RuntimeWarning), pytest.raises(CorruptionError) as caught:
        run.restore(3)
    assert "2: incomplete: " in str(caught.value)
    assert "1: incomplete: " in str(caught.value)
    name = "-1-0.safetensors"
    assert name in str(caught.value)


@pytest.mark.parametrize("lost", [(1,), (0, 1), (0, 1, 2)])
def test_what_no_root_holds_comes_from_the_mirror(tmp_path: Path, lost: tuple[int, ...]) -> None:
    run = Run(tmp_path)
    mirror = Mirror(tmp_path / "mirror")
    run.save(3, [1, 2], mirror=mirror)
    assert CheckpointManager(tmp_path / "mirror").steps() == [1, 2]
    for process in lost:
        shutil.rmtree(run.root(process))
    assert run.restore(3, mirror=mirror) == 2


def test_roots_that_are_one_directory_are_refused_and_both_remedies_work(tmp_path: Path) -> None:
    run = Run(tmp_path)
    roots = [tmp_path / "one"] * 3
    outcomes = run.start(3, lambda manager, _: manager.restore(), roots=roots)
    for outcome in outcomes:
        assert isinstance(outcome.error, ProcessError)
        assert "pass shared=True (the default)" in str(outcome.error)
        assert "or a root of its own to each process" in str(outcome.error)
    assert not list((tmp_path / "one").iterdir())
    assert run.values(3, lambda manager, _: manager.restore(), roots=roots, shared=True)
    assert run.values(3, lambda manager, _: manager.restore())


def test_roots_that_differ_are_refused_and_the_proposed_remedy_works(tmp_path: Path) -> None:
    run = Run(tmp_path)

    def save(manager: CheckpointManager, _: int) -> None:
        manager.save(1, tree_of(1, 2))
        manager.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            rendezvous, "SILENCE_SECONDS", 1.0
        )  # so long a process waits after a conflict
        outcomes = run.start(2, save, shared=True, timeout_seconds=300)
    for outcome in outcomes:
        assert isinstance(outcome.error, ProcessError)
        assert "pass shared=False to the CheckpointManager" in str(outcome.error)
    run.values(2, save, shared=False)
    assert run.restore(2) == 1


def test_the_steps_are_unknown_until_the_processes_have_met(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for outcome in run.start(2, lambda manager, _: manager.latest()):
        assert isinstance(outcome.error, StepError)
        assert "call restore or save first" in str(outcome.error)


def test_one_process_works_as_in_a_shared_root(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, shared=False, keep=2) as manager:
        assert manager.steps() == []
        for step in range(4):
            manager.save(step, {"w": step})
    with CheckpointManager(tmp_path, shared=False) as manager:
        assert manager.steps() == [2, 3]
        assert manager.restore(required=True).tree == {"w": 3}
    assert CheckpointManager(tmp_path).steps() == [2, 3]


def test_one_root_alone_says_what_is_missing_and_copied_packs_make_it_whole(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(3, [1])
    step = run.root(0) / "1"
    with pytest.raises(IncompleteCheckpointError, match=r"shared=False by 3 processes") as caught:
        load(step)
    assert "those of processes 1, 2 are missing" in str(caught.value)
    with pytest.raises(CorruptionError, match="copy the data files of the other roots"):
        verify(step)
    assert CheckpointManager(run.root(0)).steps() == []  # shared=True by mistake
    for process in (1, 2):
        replicate(run, process, 1, 0)
    assert_trees_equal(load(step, like=like(3)), tree_of(1, 3))
    assert verify(step).unverified_bytes == 0
    assert CheckpointManager(run.root(0)).steps() == [1]


def test_a_peer_with_flipped_bits_is_replaced_and_named(tmp_path: Path) -> None:
    def work(manager: CheckpointManager, _: int) -> str:
        restored = manager.restore(like=like(3))
        assert restored is not None
        assert_trees_equal(restored.tree, tree_of(1, 3))
        return " ".join(map(str, manager.problems))

    named = []
    for holder in (1, 2):  # process 0 asks one of them first
        run = Run(tmp_path / str(holder))
        run.save(3, [1])
        replicate(run, 2, 1, 1)
        for pack in (run.root(holder) / "1").glob("data-*-2-*"):
            data = bytearray(pack.read_bytes())
            data[-1] ^= 1
            pack.write_bytes(data)
        texts = run.values(3, work)
        assert f"p{holder}/1 failed" in texts[holder]  # its own file, which is damaged
        named.append(f"process {holder} on" in texts[0])
    assert sorted(named) == [False, True]


def test_damage_in_each_place_means_an_older_step(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(2, [1, 2], rewrite_every=1)
    for pack in packs(run.root(1) / "2"):
        data = bytearray(pack.read_bytes())
        data[-1] ^= 1
        pack.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="step 2 is passed over"):
        assert run.restore(2) == 1


def test_metrics_and_deletions_reach_every_root(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(2, [1, 2, 3])

    def work(manager: CheckpointManager, _: int) -> list[int]:
        manager.restore(like=like(2))
        manager.add_metrics(2, {"accuracy": 0.5})
        assert manager.best("accuracy", mode="max") == 2
        manager.delete(1)
        assert manager.delete_after(2) == [3]
        return manager.steps()

    assert run.values(2, work) == [[2], [2]]
    assert [[path.name for path in run.root(n).iterdir()] for n in (0, 1)] == [["2"], ["2"]]


def test_what_cannot_be_a_root_of_one_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match="pass the URL as the mirror"):
        CheckpointManager("memory://run", shared=False)
    with pytest.raises(ValueError, match="leave out orbax="):
        CheckpointManager(tmp_path, shared=False, orbax=True)
    with CheckpointManager(tmp_path, shared=False) as manager:
        manager.save(1, {"w": 1})
        with pytest.raises(StepError, match=r"call manager\.delete\(1\) first"):
            manager.save(1, {"w": 2}, overwrite=True)
        manager.delete(1)
        manager.save(1, {"w": 2})


def test_an_index_without_files_in_the_roots_is_restored_from_the_mirror(tmp_path: Path) -> None:
    run = Run(tmp_path)
    mirror = Mirror(tmp_path / "mirror")
    run.save(2, [1], mirror=mirror)
    for pack in packs(run.root(0) / "1"):
        pack.unlink()
    shutil.rmtree(run.root(1))
    assert run.restore(2, mirror=mirror) == 1


@pytest.mark.parametrize("has_mirror", [True, False])
def test_a_process_that_reaches_no_index_names_the_peer_or_reads_the_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_mirror: bool
) -> None:
    run = Run(tmp_path)
    options = {"mirror": Mirror(tmp_path / "mirror")} if has_mirror else {}
    run.save(2, [1], **options)
    replicate(run, 1, 1, 0)
    shutil.rmtree(run.root(1))

    def refuse(connection: PeerConnection, step: PeerStep) -> None:
        raise StorageError(errno.ECONNREFUSED, "no connection: for this test", str(step))

    monkeypatch.setattr(PeerConnection, "__init__", refuse)
    if has_mirror:
        with pytest.warns(RuntimeWarning, match="step 1 is passed over: .*process 0 on"):
            assert run.restore(2, **options) == 1  # of the mirror
        return
    outcomes = run.start(2, lambda manager, _: manager.restore(like=like(2)))
    for outcome in outcomes:
        assert "process 0 on" in str(outcome.error)
        assert "file system that all processes share" not in str(outcome.error)


def test_a_step_stays_where_only_another_root_has_its_index_and_gets_metrics(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    run.save(2, [1])
    replicate(run, 0, 1, 1)
    shutil.rmtree(run.root(0))

    def work(manager: CheckpointManager, _: int) -> tuple[list[int], int | None]:
        manager.restore(like=like(2))
        manager.add_metrics(1, {"accuracy": 0.5, "another metric, which takes room": 1})
        assert not manager.problems
        return manager.steps(), manager.best("accuracy", mode="max")

    assert run.values(2, work) == [([1], 1)] * 2


def test_a_returned_root_of_an_earlier_life_mixes_no_two_saves_of_one_number(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    run.save(3, [1, 2, 3])
    earlier = tmp_path / "earlier"
    shutil.copytree(run.root(2), earlier)
    for step in (2, 3):
        shutil.rmtree(run.root(2) / str(step))
    with pytest.warns(RuntimeWarning, match="is passed over"):
        assert run.save(3, [2, 3, 4]) == [[1, 2, 3, 4]] * 3
    for step in (2, 3, 4):
        replicate(run, 2, step, 0)
    shutil.rmtree(run.root(2))
    shutil.copytree(earlier, run.root(2))
    assert run.restore(3) == 4

    def work(manager: CheckpointManager, _: int) -> tuple[list[int], int | None]:
        manager.restore(like=like(3))
        manager.add_metrics(3, {"accuracy": 1.0})
        manager.save(5, tree_of(5, 3))
        manager.wait()
        return manager.steps(), manager.best("accuracy")

    assert run.values(3, work, keep=3) == [([3, 4, 5], 3)] * 3
    assert run.restore(3) == 5


@pytest.mark.parametrize("lost", [0, 1])
def test_the_deletion_of_a_step_that_a_root_lacks_is_no_problem(tmp_path: Path, lost: int) -> None:
    run = Run(tmp_path)
    run.save(2, [1, 2])
    for step in (1, 2):
        replicate(run, lost, step, 1 - lost)
    shutil.rmtree(run.root(lost))
    are_deleted = threading.Event()
    delete_agreed = StepCleaner.delete_agreed

    def delete_late(cleaner: StepCleaner, numbers: Sequence[int]) -> None:
        if cleaner._steps.root == str(run.root(lost)):
            assert are_deleted.wait(TIMEOUT_SECONDS)
        delete_agreed(cleaner, numbers)
        are_deleted.set()

    def work(manager: CheckpointManager, _: int) -> tuple[list[int], list[object]]:
        manager.restore(like=like(2))
        manager.save(3, tree_of(3, 2))
        manager.wait()
        return manager.steps(), list(manager.problems)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepCleaner, "delete_agreed", delete_late)
        assert run.values(2, work, keep=1) == [([3], [])] * 2


def test_a_second_manager_of_a_root_is_refused_until_the_first_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unshared_run, "ROOT_WAIT_SECONDS", 0.0)
    with CheckpointManager(tmp_path, shared=False) as first:
        first.save(1, {"w": 1})
        with CheckpointManager(tmp_path, shared=False) as second:
            with pytest.raises(ProcessError, match=r"another manager is open at .*close that one"):
                second.save(2, {"w": 2})
            first.close()
            second.save(2, {"w": 2})
    assert second.steps() == [1, 2]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_manager_that_nobody_has_closed_keeps_no_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unshared_run, "ROOT_WAIT_SECONDS", 0.0)
    CheckpointManager(tmp_path, shared=False).restore()
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_another_manager_that_is_ending_is_waited_for_and_its_last_step_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unshared_run, "ROOT_WAIT_SECONDS", 300.0)
    list_others = RootProbe.others
    with CheckpointManager(tmp_path, shared=False) as first:
        first.restore()

        def end() -> None:
            first.save(1, {"w": 1})
            first.close()

        ending = threading.Thread(target=end)

        def list_and_end(probe: RootProbe) -> dict[str, str]:
            others = list_others(probe)
            if others and ending.ident is None:  # the second manager begins to wait
                ending.start()
            return others

        monkeypatch.setattr(RootProbe, "others", list_and_end)
        with CheckpointManager(tmp_path, shared=False) as second:
            assert second.restore(required=True).step == 1
        ending.join()


def test_the_root_of_a_killed_job_is_free_though_a_child_of_it_lives(tmp_path: Path) -> None:
    """A worker that was forked, as one that loads data, keeps no lock of its parent."""
    program = """
        import os, signal, sys, time
        from cordwood import CheckpointManager

        with CheckpointManager(sys.argv[1], shared=False) as manager:
            manager.save(1, {"w": 1})
            manager.wait()
            if os.fork() == 0:
                sys.stdin.read()  # until the test ends
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as job:
        assert job.wait(300) == -signal.SIGKILL
        with CheckpointManager(tmp_path, shared=False) as manager:
            assert manager.restore(required=True).step == 1


def test_a_closed_manager_of_several_processes_refuses_to_restore_until_it_is_open_again(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    run.save(2, [1])

    def work(manager: CheckpointManager, _: int) -> str:
        manager.close()
        with pytest.raises(StepError, match="open it again on every process: with manager") as e:
            manager.restore(like=like(2))
        assert manager._unshared is not None
        assert manager._unshared._server is None
        with manager:
            restored = manager.restore(like=like(2))
        assert restored is not None
        return str(e.value)

    run.values(2, work)


def test_a_closed_manager_of_one_process_restores(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, shared=False) as manager:
        manager.save(1, {"w": 1})
    assert manager.restore(required=True).step == 1
    with CheckpointManager(tmp_path, shared=False) as another:
        assert another.restore(required=True).step == 1


def test_after_an_error_the_end_of_the_block_waits_for_others_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "ERROR_WAIT_SECONDS", 0.1)
    run = Run(tmp_path)
    is_over = threading.Event()

    def work(manager: CheckpointManager, index: int) -> None:
        manager.save(1, tree_of(1, 2))
        manager.wait()
        if index == 0:  # it does not end its block before
            assert is_over.wait(TIMEOUT_SECONDS)
        else:
            raise KeyError("of the loop")

    stop_serving = CheckpointManager._stop_serving

    def stopped(manager: CheckpointManager, *arguments: Any) -> None:
        stop_serving(manager, *arguments)
        if arguments:
            is_over.set()

    monkeypatch.setattr(CheckpointManager, "_stop_serving", stopped)
    mirror = Mirror(tmp_path / "mirror", wait_seconds=1e6)
    first, second = run.start(2, work, mirror=mirror)
    assert first.error is None
    assert isinstance(second.error, KeyError)
