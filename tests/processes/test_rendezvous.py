"""Processes that meet: answers, failures, deaths, latecomers, played by fake processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from cordwood.errors import ProcessError
from cordwood.processes.key_value_store import SINGLE_PROCESS, Processes, current_processes
from cordwood.processes.process_error_texts import process_names
from cordwood.processes.rendezvous import Rendezvous
from cordwood.threads.stop_check import stop_check
from tests.deaths import SILENCE_SECONDS, die_at_any_call
from tests.processes.fake_processes import Died, FakeProcesses, Outcome, Store, run_processes

COUNT = 4


def new_rendezvous(
    processes: Processes, purpose: str = "save x", timeout: float = 100, silence: float = 100
) -> Rendezvous:
    return Rendezvous(processes, purpose, timeout_seconds=timeout, silence_seconds=silence)


def barrier(rendezvous: Rendezvous) -> None:
    rendezvous.exchange(None, lambda _: None)


def join(values: list[str]) -> str:
    return ",".join(values)


def texts(outcomes: list[Outcome]) -> list[str]:
    for outcome in outcomes:
        assert isinstance(outcome.error, ProcessError), outcome
    return [str(outcome.error) for outcome in outcomes]


def test_alone_there_is_nobody_to_wait_for() -> None:
    assert current_processes() is SINGLE_PROCESS
    with new_rendezvous(SINGLE_PROCESS) as alone:
        assert alone.exchange("v", join) == "v"
        barrier(alone)
    assert SINGLE_PROCESS.list("cordwood/") == {}


@pytest.mark.parametrize("delays", [{}, {0: 0.02}, {3: 0.02}], ids=["even", "slow-0", "slow-3"])
def test_process_0_answers_everybody(delays: dict[int, float]) -> None:
    def work(processes: Processes) -> list[str]:
        assert current_processes() is processes
        answers = []
        for purpose in ("save x", "save y"):
            with new_rendezvous(processes, purpose) as rendezvous:
                barrier(rendezvous)
                answers += [rendezvous.exchange(f"{processes.index}.{i}", join) for i in range(3)]
        return answers

    store = Store()
    outcomes = run_processes(COUNT, work, delay_seconds=delays, store=store)
    expected = [f"0.{i},1.{i},2.{i},3.{i}" for i in range(3)] * 2
    assert [outcome.value for outcome in outcomes] == [expected] * COUNT
    rooms = {key.split("/")[1] for key in store.values}
    assert rooms <= {"0", "1", "heartbeats", "incarnations"}


def test_rooms_are_cleared_once_everybody_has_left() -> None:
    def work(processes: Processes) -> None:
        for _ in range(20):
            with new_rendezvous(processes) as rendezvous:
                barrier(rendezvous)

    store = Store()
    run_processes(COUNT, work, store=store)
    rooms = {key.split("/")[1] for key in store.values}
    assert len(rooms - {"heartbeats", "incarnations"}) < 5


def fail_in(process: int, error: Callable[[], BaseException]) -> Callable[[Processes], None]:
    def work(processes: Processes) -> None:
        with new_rendezvous(processes) as rendezvous:
            barrier(rendezvous)
            if processes.index == process:
                raise error()
            rendezvous.exchange("", join)

    return work


@pytest.mark.parametrize("process", [0, 2])
@pytest.mark.parametrize("error", [lambda: OSError(28, "No space left"), KeyboardInterrupt])
def test_all_processes_learn_of_a_failure_at_once(
    process: int, error: Callable[[], BaseException]
) -> None:
    begun = time.monotonic()
    outcomes = run_processes(COUNT, fail_in(process, error))
    assert time.monotonic() - begun < 50  # of the 100 that a round would wait
    mine = outcomes.pop(process)
    assert type(mine.error) is type(error())
    for text in texts(outcomes):
        assert f"process {process} failed to save x: {type(error()).__name__}" in text


@pytest.mark.parametrize("process", [0, 2])
def test_a_process_that_will_not_come_says_so(process: int) -> None:
    def work(processes: Processes) -> None:
        rendezvous = new_rendezvous(processes)
        if processes.index == process:
            rendezvous.leave(ValueError("a leaf that cannot be stored"))
            return
        with rendezvous:
            raise AssertionError("not all are here")

    begun = time.monotonic()
    outcomes = run_processes(COUNT, work)
    assert time.monotonic() - begun < 50
    assert outcomes.pop(process).error is None
    for text in texts(outcomes):
        assert (
            text == f"process {process} failed to save x: ValueError: a leaf that cannot be stored"
        )


def test_process_0_refuses_what_the_others_sent() -> None:
    def refuse(values: list[str]) -> str:
        raise ValueError(f"leaf w of process {values.index('odd')} differs")

    def work(processes: Processes) -> None:
        with new_rendezvous(processes) as rendezvous:
            rendezvous.exchange("odd" if processes.index == 3 else "", refuse)

    outcomes = run_processes(COUNT, work)
    assert isinstance(outcomes[0].error, ValueError)
    for text in texts(outcomes[1:]):
        assert text == "process 0 failed to save x: ValueError: leaf w of process 3 differs"


def test_failures_are_noticed_in_the_middle_of_long_work() -> None:
    def work(processes: Processes) -> None:
        with new_rendezvous(processes, silence=10) as rendezvous:
            barrier(rendezvous)
            if processes.index == 1:
                raise OSError(5, "Input/output error")
            while True:
                rendezvous.poll()
                time.sleep(0.01)

    outcomes = run_processes(COUNT, work)
    assert isinstance(outcomes.pop(1).error, OSError)
    assert all("process 1 failed to save x: OSError" in text for text in texts(outcomes))


def two_rounds(processes: FakeProcesses) -> int:
    with new_rendezvous(processes, silence=SILENCE_SECONDS) as rendezvous:
        barrier(rendezvous)
        barrier(rendezvous)
    return processes.calls


class Noted(dict[str, bytes]):
    """Values of a store; remembers all keys that there have been."""

    def __init__(self) -> None:
        self.ever: set[str] = set()

    def __setitem__(self, key: str, value: bytes) -> None:
        self.ever.add(key)
        super().__setitem__(key, value)


def test_a_process_that_dies_is_named_whenever_it_does() -> None:
    def die(number: int) -> BaseException | None:
        store = Store()
        noted = store.values = Noted()
        outcomes = run_processes(COUNT, two_rounds, dies_at={2: number}, store=store)
        error = outcomes.pop(2).error
        if error is None or any(outcome.error is None for outcome in outcomes):
            assert any(key.endswith("/values/2/2") for key in noted.ever)  # it had done its part
            assert error is not None or all(outcome.error is None for outcome in outcomes)
        else:
            for text in texts(outcomes):
                assert text.startswith("process 2 gave no sign of life for 4 s while all met to ")
        return error

    die_at_any_call(run_processes(COUNT, two_rounds)[2].value, die, least=3)


def test_the_others_notice_the_death_of_process_0() -> None:
    for number in range(3, 12, 2):
        outcomes = run_processes(COUNT, two_rounds, dies_at={0: number})
        assert isinstance(outcomes.pop(0).error, Died)
        for text in texts(outcomes):
            assert "cannot reach the store in process 0" in text


def test_a_process_that_never_comes_is_named() -> None:
    def work(processes: Processes) -> None:
        if processes.index not in (1, 3):
            with new_rendezvous(processes, timeout=3):
                raise AssertionError("not all are here")

    outcomes = run_processes(COUNT, work)
    for text in texts([outcomes[0], outcomes[2]]):
        assert text.startswith("processes 1 and 3 did not come within 3 s to save x;")


def test_process_0_never_comes() -> None:
    def work(processes: Processes) -> None:
        if processes.index:
            with new_rendezvous(processes, timeout=0.1, silence=0.2):
                raise AssertionError("not all are here")

    for text in texts(run_processes(COUNT, work)[1:]):
        assert text.startswith("process 0 did not come within 0.1 s to save x")


def test_a_stall_of_process_0_is_nobody_elses_death() -> None:
    def work(processes: Processes) -> None:
        with new_rendezvous(processes, silence=0.4) as rendezvous:
            barrier(rendezvous)
            if processes.index == 1:
                time.sleep(1)  # alive all the while: its beats go on
            barrier(rendezvous)

    delays = {0: 0.25}  # each of process 0's calls takes longer than the silence it allows
    assert all(o.error is None for o in run_processes(2, work, delay_seconds=delays))


def test_a_process_that_works_on_is_waited_for() -> None:
    def work(processes: Processes) -> None:
        with new_rendezvous(processes, timeout=2, silence=3) as rendezvous:
            barrier(rendezvous)
            until = time.monotonic() + 8  # longer than the others wait for process 0's answer
            while processes.index == 1 and time.monotonic() < until:
                rendezvous.poll()
                time.sleep(0.05)
            barrier(rendezvous)

    assert all(o.error is None for o in run_processes(3, work))


def test_a_process_that_gets_no_further_is_not() -> None:
    given_up = threading.Event()

    def work(processes: Processes) -> None:
        try:
            with new_rendezvous(processes, timeout=2, silence=10) as rendezvous:
                barrier(rendezvous)
                if processes.index == 1:
                    assert given_up.wait(60)  # it beats each second all the while
                barrier(rendezvous)
        finally:
            if processes.index == 0:
                given_up.set()

    for text in texts(run_processes(3, work)):
        assert text.startswith("process 1 did not come within 2 s to save x (step 2)")


@pytest.mark.parametrize("process", [0, 1])
def test_whoever_waits_can_be_stopped(process: int) -> None:
    others = threading.Event()

    def work(processes: Processes) -> None:
        stopped = False

        def stop() -> None:
            if stopped:
                raise ZeroDivisionError("enough")

        with stop_check(stop), new_rendezvous(processes) as rendezvous:
            barrier(rendezvous)
            if processes.index != process:
                assert others.wait(60)
                rendezvous.exchange(None, lambda _: None)
            else:
                stopped = True
                try:
                    rendezvous.exchange(None, lambda _: None)
                finally:
                    others.set()

    outcomes = run_processes(2, work)
    assert isinstance(outcomes[process].error, ZeroDivisionError)
    (text,) = texts([outcomes[1 - process]])
    assert text == f"process {process} failed to save x: ZeroDivisionError: enough"


@pytest.mark.parametrize("process", [0, 2])
def test_a_failure_is_known_at_once_to_whoever_asks(process: int) -> None:
    """No heartbeat has shown it yet."""
    failed = threading.Event()

    def work(processes: Processes) -> None:
        try:
            with new_rendezvous(processes) as rendezvous:
                barrier(rendezvous)
                if processes.index == process:
                    raise ZeroDivisionError
                if processes.index == 1:
                    assert failed.wait(60)
                    rendezvous.poll()
                    rendezvous.poll_now()
                else:
                    barrier(rendezvous)
        finally:
            if processes.index == 0:
                failed.set()

    outcomes = run_processes(COUNT, work)
    (text,) = texts([outcomes[1]])
    assert text == f"process {process} failed to save x: ZeroDivisionError: "


def test_a_process_that_was_restarted_alone_is_out_of_step() -> None:
    store = Store()

    def work(processes: Processes) -> None:
        with new_rendezvous(processes) as rendezvous:
            barrier(rendezvous)

    run_processes(2, work, store=store)

    def again(processes: Processes) -> None:
        if processes.index:
            work(processes)

    (text,) = texts(run_processes(2, again, store=store)[1:])
    assert "process 1 came to save x and is out of step with process 0" in text


def test_processes_are_listed_in_words() -> None:
    assert process_names([2]) == "process 2"
    assert process_names([1, 5, 7]) == "processes 1, 5 and 7"
    assert process_names(range(40)).endswith("14, 15 and 24 more")
