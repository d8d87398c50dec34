"""Uploads that wait for their bytes: the store is not blamed."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

import pytest

from cordwood.errors import StorageError
from cordwood.storage.object_stores import request_retries
from cordwood.threads import wait_logger
from tests.storage.stores import new_url, open_url

PART = 6 << 20


class Clock:
    """The module `time`, hours later whenever `pass_hours` is called."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self.sleep = time.sleep

    def pass_hours(self) -> None:
        self._seconds += 10_000.0

    def monotonic(self) -> float:
        return time.monotonic() + self._seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(request_retries, "time", clock)
    monkeypatch.setattr(wait_logger, "REPORT_SECONDS", 0.01)
    return clock


@pytest.mark.parametrize("slow", [0, 1, 3])
def test_bytes_that_come_after_hours_are_uploaded(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, caplog: pytest.LogCaptureFixture, slow: int
) -> None:
    """The part of that number is filled late; all before it have been stored meanwhile."""
    is_asked, may_go_on = threading.Event(), threading.Event()
    parts: list[weakref.ref[memoryview]] = []
    checks = 0

    def fill(number: int, _: Callable[[], bool]) -> memoryview:
        if number == slow:
            is_asked.set()
            assert may_go_on.wait(60)
        part = memoryview(bytes([number]) * PART)
        parts.append(weakref.ref(part))
        return part

    def check() -> None:
        nonlocal checks
        is_waiting = is_asked.is_set() and all(part() is None for part in parts)
        if is_waiting and not may_go_on.is_set():
            clock.pass_hours()
            checks += 1
            if checks == 3:
                may_go_on.set()

    with new_url("memory", monkeypatch) as url:
        store = open_url(url)
        store.upload("a", fill, 4, part_bytes=PART, parts_in_flight=4, check=check)
        assert store.size_of("a") == 4 * PART
    assert checks == 3
    assert "waiting for the bytes to send to" in caplog.text
    assert "source or the device is slow" in caplog.text


def test_a_part_on_its_way_that_is_not_stored_for_hours_is_the_stores_fault(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Also while the next part is being filled."""
    held: list[memoryview] = []
    is_given_up = threading.Event()

    def fill(number: int, is_ended: Callable[[], bool]) -> memoryview:
        if number == 1:
            while not is_ended():
                is_given_up.wait(0.01)
        part = memoryview(bytes(PART))
        held.append(part)  # as obstore holds it until it is stored
        return part

    def check() -> None:
        if held:
            clock.pass_hours()

    with new_url("memory", monkeypatch) as url:
        store = open_url(url)
        with pytest.raises(StorageError, match="acknowledged no byte"):
            store.upload("a", fill, 4, part_bytes=PART, parts_in_flight=4, check=check)
