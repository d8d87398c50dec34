"""Uploads that wait for their bytes: the store is not blamed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from cordwood.errors import StorageError
from cordwood.storage.object_stores import multipart_upload
from cordwood.storage.object_stores.multipart_upload import upload_in_parts
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.threads import wait_logger
from cordwood.threads.awake_clock import AwakeClock
from tests.storage.stores import new_url, open_url

PART = 6 << 20


class Clock:
    """The clock of uploads, which stands still but for `pass_seconds`."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def pass_seconds(self) -> None:
        """Pass as much time as an upload counts between two of its checks."""
        self._seconds += 2.0

    def now(self) -> float:
        return self._seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(multipart_upload, "AwakeClock", lambda: AwakeClock(clock.now))
    monkeypatch.setattr(wait_logger, "REPORT_SECONDS", 0.01)
    return clock


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Yield a store that has failed once it has stored nothing for 3 s."""
    monkeypatch.setenv("CORDWOOD_STALL_SECONDS", "3")
    with new_url("memory", monkeypatch) as url:
        yield open_url(url)


@pytest.mark.parametrize("slow", [0, 1, 3])
def test_bytes_that_come_late_are_uploaded(
    store: ObjectStore, clock: Clock, caplog: pytest.LogCaptureFixture, slow: int
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
            clock.pass_seconds()
            checks += 1
            if checks == 3:
                may_go_on.set()

    upload_in_parts(store, "a", fill, 4, part_bytes=PART, parts_in_flight=4, check=check)
    assert store.size_of("a") == 4 * PART
    assert checks == 3
    assert "waiting for the bytes to send to" in caplog.text
    assert "source or the device is slow" in caplog.text


def test_a_part_on_its_way_that_is_not_stored_is_the_stores_fault(
    store: ObjectStore, clock: Clock
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
            clock.pass_seconds()

    with pytest.raises(StorageError, match="acknowledged no byte for 3 s"):
        upload_in_parts(store, "a", fill, 4, part_bytes=PART, parts_in_flight=4, check=check)
