"""Processes that come for different things meet again at the next one that they share."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import pytest

import cordwood
from cordwood.errors import ProcessError
from cordwood.processes.encode_messages import encode_failure
from cordwood.processes.key_value_store import Processes
from cordwood.processes.purposes import compare_purposes, key_of
from cordwood.processes.rendezvous import Rendezvous
from cordwood.threads import wait_logger
from tests.processes.fake_processes import FakeProcesses, Outcome, Store, run_processes

TIMEOUT_SECONDS = 4.0


def meet(
    processes: Processes, purpose: str, *, fail: bool = False, background: bool = False
) -> str:
    met = Rendezvous(
        processes,
        purpose,
        timeout_seconds=TIMEOUT_SECONDS,
        silence_seconds=100,
        background=background,
    )
    if fail:
        met.leave(ZeroDivisionError("odd"))
        raise ZeroDivisionError("odd")
    with met:
        return met.exchange(str(processes.index), "".join)


def met_for(calls: Mapping[int, Sequence[str]], *, store: Store | None = None) -> list[list[str]]:
    """For each process, the purposes for which it met all others; "x!": it fails there."""

    def work(processes: FakeProcesses) -> list[str]:
        results = []
        for purpose in calls[processes.index]:
            try:
                meet(processes, purpose.rstrip("!"), fail=purpose.endswith("!"))
                results.append(purpose)
            except (ProcessError, ZeroDivisionError):
                pass
        return results

    begun = time.monotonic()
    outcomes: list[Outcome] = run_processes(len(calls), work, store=store)
    assert time.monotonic() - begun < 8 * TIMEOUT_SECONDS
    return [outcome.value for outcome in outcomes]


STEPS = [f"save s{number}" for number in range(8)]
WORDS = ["save a", "save b", "save c", "save d", "save e", "save f", "save g", "save h"]


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("count", [2, 3])
def test_one_that_left_some_out_is_waited_for(count: int, process: int) -> None:
    for skipped in (1, 2):
        calls = dict.fromkeys(range(count), STEPS)
        calls[process] = STEPS[:2] + STEPS[2 + skipped :]
        assert met_for(calls) == [calls[process]] * count


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("count", [2, 3])
def test_one_that_made_too_many_catches_up(count: int, process: int) -> None:
    calls = dict.fromkeys(range(count), STEPS)
    calls[process] = [*STEPS[:2], "save s1.5", *STEPS[2:]]
    for result in met_for(calls):
        assert set(result) >= set(STEPS[:2] + STEPS[4:])


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("more", [True, False], ids=["too-many", "left-out"])
def test_names_without_an_order_meet_again_too(process: int, more: bool) -> None:
    calls = dict.fromkeys(range(3), WORDS)
    calls[process] = [*WORDS[:1], "save x", *WORDS[1:]] if more else [*WORDS[:1], *WORDS[2:]]
    for result in met_for(calls):
        assert set(result) >= set(WORDS[5:])


@pytest.mark.parametrize("process", [0, 1])
def test_one_that_fails_is_not_waited_for(process: int) -> None:
    calls = dict.fromkeys(range(3), STEPS)
    calls[process] = [*STEPS[:2], STEPS[2] + "!", *STEPS[3:]]
    begun = time.monotonic()
    assert met_for(calls) == [STEPS[:2] + STEPS[3:]] * 3
    assert time.monotonic() - begun < TIMEOUT_SECONDS


def test_all_fail_at_the_same_path_and_the_next_time_works() -> None:
    calls = ["save x", "save x!", "save x!", "save x", "save x"]
    assert met_for({0: calls, 1: calls, 2: calls}) == [["save x"] * 3] * 3


@pytest.mark.parametrize(("process", "failures"), [(0, 1), (1, 1), (1, 2)])
def test_one_fails_at_a_path_that_is_saved_again_and_again(process: int, failures: int) -> None:
    calls = {0: ["save x"] * 5, 1: ["save x"] * 5}
    calls[process] = ["save x", *["save x!"] * failures, *["save x"] * (4 - failures)]
    met = 5 - failures
    for result in met_for(calls):
        assert len(result) in (
            met,
            met - 1,
        )  # one more, where the other came too late to hear of it


def test_a_path_that_one_process_left_out_once() -> None:
    calls = {0: ["save x"] * 6, 1: ["save x"] * 5}
    first, other = met_for(calls)
    assert len(first) == len(other) == 5


def test_the_background_tells_who_is_past() -> None:
    """One waits in the foreground; the others wait for it in a save that it never began."""

    def work(processes: FakeProcesses) -> str:
        if processes.index == 1:
            with pytest.raises(ProcessError, match="process 0 waits for it to save run/4: every"):
                meet(processes, "look for step 3 of run")
        return meet(processes, "save run/4", background=True)

    begun = time.monotonic()
    outcomes = run_processes(3, work)
    assert time.monotonic() - begun < TIMEOUT_SECONDS
    assert [outcome.value for outcome in outcomes] == ["012"] * 3


def test_a_process_that_is_behind_raises_at_once() -> None:
    def work(processes: FakeProcesses) -> None:
        meet(processes, "save s4" if processes.index == 2 else "save s3")

    outcomes = run_processes(3, work)
    message = "process 2 came to save s4, process 0 to save s3: every process must make the same"
    for outcome in outcomes:  # the one that is ahead, once process 0 has not come either
        assert isinstance(outcome.error, ProcessError)
        assert message in str(outcome.error)


def test_a_wait_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_logger, "REPORT_SECONDS", 0.5)

    def work(processes: FakeProcesses) -> None:
        if processes.index != 1:
            with pytest.raises(ProcessError):
                meet(processes, "save ckpt/100")

    with caplog.at_level(logging.WARNING, logger="cordwood"):
        run_processes(3, work)
    assert "waiting for process 1 to save ckpt/100, " in caplog.text
    assert (
        "waiting for other processes to save ckpt/100 (the log of process 0 names them), "
        in caplog.text
    )


class GivesUpAtTheSameMoment(FakeProcesses):
    """Process 1; process 0 gives up just before process 1 looks whether it is there."""

    def list(self, prefix: str) -> Mapping[str, bytes]:
        if prefix.startswith("cordwood/arrivals/"):
            text = encode_failure(1, "process 2 did not come")
            self._store.values[key_of("save x", "answer")] = b"L" + text
        return super().list(prefix)


def test_the_reason_of_process_0_is_heard_in_the_last_moment() -> None:
    processes = GivesUpAtTheSameMoment(Store(), 1, 3)
    met = Rendezvous(processes, "save x", timeout_seconds=0.1, silence_seconds=100)
    with pytest.raises(ProcessError, match=r"^process 2 did not come$"), met:
        pass


def test_many_failures_leave_few_keys() -> None:
    store = Store()
    purposes = [f"save s{number}" for number in range(200)]
    calls = {0: [purpose + "!" for purpose in purposes], 1: [p + "!" for p in purposes]}
    assert met_for(calls, store=store) == [[], []]
    assert len(store.values) < 200


def test_which_purpose_comes_first() -> None:
    assert compare_purposes("save run/3", "save run/4") == -1
    assert compare_purposes("save run/10", "save run/9") == 1
    assert compare_purposes("save run/3", "save run/3") == 0
    assert compare_purposes("save run-2/3", "save run-1/4") == 1
    assert compare_purposes("save run/3", "save other/4") is None
    assert compare_purposes("save run/3", "save run/3/4") is None
    assert compare_purposes("save a", "save b") is None
    assert compare_purposes("save run/3", "restore a step of run") == 1
    assert compare_purposes("look for step 3 of run", "save the items of step 4 of run") == -1
    assert compare_purposes("restore a step of run", "look for step 3 of run") is None


def test_an_extra_save_of_one_process_costs_that_one_alone(tmp_path: object) -> None:
    """F40: through `cordwood.save`, whose paths tell who is ahead."""

    def work(processes: FakeProcesses) -> list[str]:
        saved = []
        steps = ["s0", "s1", "s2", "s3"]
        for name in ["extra", *steps] if processes.index == 0 else steps:
            try:
                cordwood.save(f"{tmp_path}/{name}", {"w": 1}, timeout_seconds=TIMEOUT_SECONDS)
                saved.append(name)
            except ProcessError:
                pass
        return saved

    assert [outcome.value for outcome in run_processes(2, work)] == [["s0", "s1", "s2", "s3"]] * 2
