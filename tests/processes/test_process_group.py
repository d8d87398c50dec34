"""A manager in every process of a job: threads stand for the processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager, EverySeconds, EverySteps, KeepLast, PendingSave, StepReader
from cordwood.errors import MismatchError, ProcessError, StepError
from cordwood.policies import WhenIdle
from cordwood.processes.process_group import ProcessGroup
from tests.manager.counters import Counter, SharedCounter
from tests.processes.fake_processes import FakeProcesses, Outcome, Store, run_processes


@pytest.fixture(autouse=True)
def in_the_foreground(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run background saves in the foreground: the fake processes are one real process."""

    def save(path: str, work: Callable[[PendingSave], None], *, total_bytes: int) -> PendingSave:
        pending = PendingSave(path, path, total_bytes)
        error = None
        try:
            work(pending)
        except Exception as e:  # noqa: BLE001  (as it is kept in the background)
            error = e
        pending._end(error)
        return pending

    monkeypatch.setattr("cordwood.saving.snapshot_save.save_in_background", save)


def tree_of(step: int) -> dict[str, Any]:
    return {"w": np.full(100, step, np.float32), "step": step}


def save_two_steps(root: Path) -> None:
    with CheckpointManager(root) as manager:
        manager.save(1, tree_of(1))
        manager.save(2, tree_of(2))


def values(outcomes: list[Outcome]) -> list[Any]:
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [outcome.value for outcome in outcomes]


@pytest.mark.parametrize(
    "policy", [EverySteps(10), EverySteps(10) | EverySeconds(1000), EverySteps(10) & WhenIdle()]
)
def test_all_processes_of_a_run_decide_alike(tmp_path: Path, policy: Any) -> None:
    def work(processes: FakeProcesses) -> Any:
        with CheckpointManager(tmp_path, save=policy, keep=KeepLast(2)) as manager:
            assert manager.restore(like=tree_of(0)) is None
            asked = [
                manager.save(step, tree_of(step), metrics={"loss": step}) is not None
                for step in range(0, 50, 5)
            ]
            manager.wait()
            restored = manager.restore(like=tree_of(0))
            assert restored is not None
            assert restored.metrics == {"loss": float(restored.step)}
            assert restored.tree["step"] == restored.step
            return asked, restored.step

    actual = values(run_processes(3, work))
    assert actual[0] == actual[1] == actual[2]
    kept = CheckpointManager(tmp_path).steps()
    assert actual[0][1] == kept[-1]
    assert actual[0][0] == [True, False] * 5
    assert kept == [30, 40]
    assert sorted(os.listdir(tmp_path)) == [str(step) for step in kept]


def test_the_clock_of_process_0_counts(tmp_path: Path) -> None:
    """The policies differ between processes, as policies with different clocks do."""

    def work(processes: FakeProcesses) -> list[bool]:
        seconds = 1e-9 if processes.index == 0 else 1e9
        manager = CheckpointManager(tmp_path, save=EverySeconds(seconds), keep=1)
        with manager:
            return [manager.save(step, tree_of(step)) is not None for step in range(3)]

    assert values(run_processes(3, work)) == [[True] * 3] * 3
    assert CheckpointManager(tmp_path).steps() == [2]


def test_many_decisions_leave_few_keys(tmp_path: Path) -> None:
    store = Store()

    def work(processes: FakeProcesses) -> list[bool]:
        manager = CheckpointManager(tmp_path, save=EverySteps(1000) & EverySeconds(1e9))
        asked = [manager.should_save(step) for step in range(1, 1000)]
        CheckpointManager(tmp_path).restore()  # so that they end together
        return asked

    assert values(run_processes(3, work, store=store)) == [[False] * 999] * 3
    assert sum("/decisions/" in key for key in store.values) < 999


def test_a_process_that_lags_hears_every_decision(tmp_path: Path) -> None:
    """Only received decisions are deleted: 'decisions/6' does not match 'decisions/64'."""
    ahead = threading.Event()

    def work(processes: FakeProcesses) -> int:
        policy = EverySteps(1000) & EverySeconds(1e9)
        manager = CheckpointManager(tmp_path, save=policy, timeout_seconds=30)
        for step in range(1, 200):
            if processes.index == 1 and step == 66:  # it has said that it heard number 64
                assert ahead.wait(60)
            manager.should_save(step)
        if processes.index == 0:
            ahead.set()
        return step

    assert values(run_processes(2, work)) == [199, 199]


def decide(processes: FakeProcesses, root: Path, steps: Sequence[int]) -> list[int | str]:
    """Ask whether to save some steps; those that were asked about, or the errors."""
    manager = CheckpointManager(root, save=EverySeconds(1e9), timeout_seconds=10)
    results: list[int | str] = []
    for step in steps:
        try:
            manager.should_save(step)
            results.append(step)
        except ProcessError as e:
            results.append(str(e))
    return results


def test_who_left_a_step_out_hears_of_the_next(tmp_path: Path) -> None:
    steps = {0: [1, 2, 3, 4, 5], 1: [1, 4, 5], 2: [1, 2, 3, 4, 5]}
    outcomes = run_processes(
        3, lambda processes: decide(processes, tmp_path, steps[processes.index])
    )
    assert values(outcomes) == list(steps.values())


def test_who_is_asked_of_a_step_that_process_0_left_out(tmp_path: Path) -> None:
    steps = {0: [1, 4, 5], 1: [1, 2, 2, 4, 5]}
    outcomes = run_processes(
        2, lambda processes: decide(processes, tmp_path, steps[processes.index])
    )
    first, other = values(outcomes)
    assert first == [1, 4, 5]
    for text in other[1:3]:
        assert "process 1 came to save step 2 of " in text
        assert "process 0 to save step 4: every process must" in text
    assert [other[0], *other[3:]] == [1, 4, 5]


def test_decisions_after_a_run_has_returned_to_an_earlier_step(tmp_path: Path) -> None:
    said = threading.Event()

    def work(processes: FakeProcesses) -> list[int | str]:
        group = ProcessGroup("run", timeout_seconds=10)
        if processes.index == 0:
            for step in (8, 9, 5, 6):
                group.decide(step, lambda _: "", preempted=False)
            said.set()
            return []
        assert said.wait(60)
        return [group.decide(step, lambda _: None, preempted=False)[1] or "" for step in (8, 5, 6)]

    assert values(run_processes(2, work))[1] == ["", "", ""]


def test_process_0_does_not_come(tmp_path: Path) -> None:
    def work(processes: FakeProcesses) -> None:
        group = ProcessGroup("run", timeout_seconds=0.1)
        if processes.index:
            group.decide(7, lambda _: None, preempted=False)

    message = r"process 0 did not come within 0.1 s to say whether step 7 of run is to be saved"
    with pytest.raises(ProcessError, match=message):
        values(run_processes(2, work))


@pytest.mark.filterwarnings("ignore:.* step 2 is passed over:RuntimeWarning")
def test_damage_that_any_process_finds_is_passed_over_by_all(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            manager.save(step, tree_of(step))
    (file,) = (tmp_path / "2").glob("data-*")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)

    def work(processes: FakeProcesses) -> Any:
        manager = CheckpointManager(tmp_path)
        restored = manager.restore(like=tree_of(0))
        assert restored is not None
        return restored.step, manager.steps()

    assert values(run_processes(3, work)) == [(1, [1])] * 3


def test_a_step_that_is_not_newer_ends_the_save_of_all(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(7, tree_of(7))

    def work(processes: FakeProcesses) -> None:
        manager = CheckpointManager(tmp_path)
        manager.save(5, tree_of(5))
        manager.wait()

    outcomes = run_processes(2, work)
    assert isinstance(outcomes[0].error, StepError)
    assert isinstance(outcomes[1].error, ProcessError)
    assert "step 5 is not newer than step 7" in str(outcomes[1].error)
    assert CheckpointManager(tmp_path).steps() == [7]


def test_a_step_that_is_not_there_is_an_error_on_all(tmp_path: Path) -> None:
    outcomes = run_processes(2, lambda processes: CheckpointManager(tmp_path).restore(3))
    assert isinstance(outcomes[0].error, FileNotFoundError)
    assert isinstance(outcomes[1].error, ProcessError)
    assert "there is no step 3; there are: none" in str(outcomes[1].error)


def test_each_process_has_its_own(tmp_path: Path) -> None:
    def save(processes: FakeProcesses) -> None:
        data = Counter(processes.index, processes.count)
        next(data)
        with CheckpointManager(tmp_path) as manager:
            manager.save(1, tree_of(1), items={"data": data, "same": Counter(7)})

    def restore(processes: FakeProcesses) -> int:
        data = Counter()
        CheckpointManager(tmp_path).restore(items={"data": data})
        return next(data)

    assert all(outcome.error is None for outcome in run_processes(3, save))
    assert [outcome.value for outcome in run_processes(3, restore)] == [3, 4, 5]
    message = "'data' was saved by 3 processes, each with a state of its own, and 2 restore it"
    for outcome in run_processes(2, restore):
        assert isinstance(outcome.error, MismatchError)
        assert message in str(outcome.error)
    same = Counter()
    CheckpointManager(tmp_path).restore(items={"same": same})
    assert next(same) == 7


def test_an_iterator_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    def save(processes: FakeProcesses) -> None:
        data = SharedCounter(processes.index, processes.count)
        next(data)
        with CheckpointManager(tmp_path) as manager:
            manager.save(1, tree_of(1), items={"data": data})

    def restore(processes: FakeProcesses) -> list[int]:
        data = SharedCounter()
        CheckpointManager(tmp_path).restore(items={"data": data})
        return [next(data), next(data)]

    values(run_processes(2, save))
    assert values(run_processes(3, restore)) == [[2, 5], [3, 6], [4, 7]]
    alone = SharedCounter()
    StepReader(tmp_path).restore(items={"data": alone})
    assert [next(alone), next(alone)] == [2, 3]


def test_processes_with_other_items(tmp_path: Path) -> None:
    def save(processes: FakeProcesses) -> None:
        name = "data" if processes.index == 0 else "date"
        CheckpointManager(tmp_path).save(1, tree_of(1), items={name: Counter()})

    outcomes = run_processes(2, save)
    assert isinstance(outcomes[0].error, ValueError)
    for outcome in outcomes:
        assert "items: process 0 saves ['data'], process 1 ['date']" in str(outcome.error)


class Shuffle:
    """Something whose state holds an array, another one on each process."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


def test_processes_save_trees_and_states_with_arrays(tmp_path: Path) -> None:
    ema = {"w": np.arange(5.0)}

    def save(processes: FakeProcesses) -> None:
        shuffle = Shuffle({"order": np.arange(3) + processes.index, "at": processes.index})
        with CheckpointManager(tmp_path) as manager:
            manager.save(1, tree_of(1), items={"data": shuffle, "ema": ema})

    def restore(processes: FakeProcesses) -> Any:
        shuffle = Shuffle()
        items = {"data": shuffle, "ema": ema}
        restored = StepReader(tmp_path).restore(items=items, required=True)
        return shuffle.state, restored.items["ema"]["w"]

    assert [outcome.error for outcome in run_processes(2, save)] == [None, None]
    for process, outcome in enumerate(run_processes(2, restore)):
        state, w = outcome.value
        assert state["at"] == process
        assert list(state["order"]) == [process, process + 1, process + 2]
        assert (w == ema["w"]).all()
    for outcome in run_processes(3, restore):
        assert "'data' was saved by 2 processes, each with a state" in str(outcome.error)
    assert [state["at"] for state in cordwood.load(tmp_path / "1", prefix="data")] == [0, 1]


def test_trees_beside_the_tree_must_be_equal_on_all_processes(tmp_path: Path) -> None:
    def save(processes: FakeProcesses) -> None:
        ema = {"w": np.full(5, processes.index)}
        with CheckpointManager(tmp_path) as manager:
            manager.save(1, tree_of(1), items={"ema": ema})

    for outcome in run_processes(2, save):
        assert "process 1 would save something else than process 0" in str(outcome.error)
        assert "ema/w: another value" in str(outcome.error)
    assert StepReader(tmp_path).steps() == []


def test_processes_restore_the_same_step(tmp_path: Path) -> None:
    save_two_steps(tmp_path)

    def work(processes: FakeProcesses) -> Any:
        reader = StepReader(tmp_path)
        return reader.restore(1) if processes.index == 0 else reader.restore(2)

    outcomes = run_processes(2, work)
    for outcome in outcomes:
        assert isinstance(outcome.error, ProcessError)
        assert "process 1 came to restore step 2 of " in str(outcome.error)
        assert "process 0 step 1: every process must restore the same" in str(outcome.error)
        assert "let it choose, and send its choice to the others" in str(outcome.error)

    def newest(processes: FakeProcesses) -> Any:
        reader = StepReader(tmp_path)
        return reader.restore() if processes.index == 0 else reader.restore(2)

    outcomes = run_processes(2, newest)
    assert "process 1 came to restore step 2 of " in str(outcomes[1].error)


def test_processes_wait_for_steps_together(tmp_path: Path) -> None:
    save_two_steps(tmp_path)

    def work(processes: FakeProcesses) -> Any:
        reader = StepReader(tmp_path)
        if processes.index == 1:  # this one sees nothing: process 0 looks for all
            reader._steps.all = list  # type: ignore[method-assign]
        return [
            reader.wait_for_new_step(0),
            reader.wait_for_new_step(0.05, poll_seconds=0.01),
            list(reader.new_steps(0)),
        ]

    assert values(run_processes(2, work)) == [[2, None, []]] * 2


def test_processes_go_back_together(tmp_path: Path) -> None:
    def work(_: FakeProcesses) -> Any:
        with CheckpointManager(tmp_path) as manager:
            for step in (1, 2, 3):
                manager.save(step, tree_of(step))
            return manager.delete_after(1)

    assert values(run_processes(2, work)) == [[2, 3]] * 2
