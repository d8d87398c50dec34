"""Log messages of long waits."""

from __future__ import annotations

import logging

import pytest

from cordwood.threads.wait_logger import WaitLogger


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_long_wait_is_logged_after_10_s_and_then_ever_more_rarely(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="cordwood")
    clock = Clock()
    waiting = WaitLogger("the lock of x", hint="stop its holder", clock=clock)
    reports: list[int] = []
    for second in range(200):
        clock.seconds = 100.0 + second
        waiting.tick()
        if len(caplog.messages) > len(reports):
            reports.append(second)
    assert reports == [10, 20, 40, 80, 160]
    assert caplog.messages[0] == "waiting for the lock of x, 10 s so far; stop its holder"
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    waiting.end()
    waiting.end()
    assert caplog.messages[5:] == ["no longer waiting for the lock of x, after 199 s"]
    assert caplog.records[-1].levelno == logging.INFO


def test_a_short_wait_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cordwood")
    clock = Clock()
    waiting = WaitLogger("the lock of x", clock=clock)
    clock.seconds += 9.9
    waiting.tick()
    waiting.end()
    assert caplog.messages == []


def test_what_is_waited_for_is_asked_anew_for_each_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    holders = iter(["process 5", "process 6"])
    waiting = WaitLogger(lambda: next(holders), clock=clock)
    for seconds in (0, 1, 10, 11, 12, 100, 101):
        clock.seconds = 100.0 + seconds
        waiting.tick()
    assert caplog.messages == [
        "waiting for process 5, 10 s so far",
        "waiting for process 6, 100 s so far",
    ]
