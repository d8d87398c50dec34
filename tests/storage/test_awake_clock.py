"""A clock that leaves out the time in which the process stood still."""

from __future__ import annotations

from typing import Any

import pytest

from cordwood.errors import StorageError
from cordwood.storage.locations import parse_location
from cordwood.storage.object_stores.multipart_upload import MultipartUpload
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.threads.awake_clock import AwakeClock


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_a_process_that_runs_sees_all_time() -> None:
    clock = Clock()
    awake = AwakeClock(clock)
    begun = awake.now()
    for _ in range(240):
        clock.seconds += 0.5
        awake.tick()
    assert awake.now() - begun == 120


def test_time_in_which_it_stood_still_does_not_count() -> None:
    clock = Clock()
    awake = AwakeClock(clock)
    begun = awake.now()
    clock.seconds += 64
    assert awake.now() - begun <= 2  # before the loop has noticed it
    assert awake.tick() - begun <= 2
    clock.seconds += 1
    assert awake.now() - begun <= 3


def waiting_upload(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> MultipartUpload:
    """Return an upload of which one part is on its way."""
    url: Any = parse_location("memory://stalls/tree")
    upload = MultipartUpload(ObjectStore(url), "tree", 4, lambda: None)
    monkeypatch.setattr(upload, "_clock", AwakeClock(clock))
    upload._last_seconds = upload._clock.now()
    upload._sent_parts = 1
    upload.check()
    return upload


def test_an_upload_of_a_stopped_process_has_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    upload = waiting_upload(monkeypatch, clock)
    for _ in range(3):
        clock.seconds += 64  # SIGSTOP, then SIGCONT
        upload.check()


def test_an_upload_of_a_running_process_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    upload = waiting_upload(monkeypatch, clock)
    for _ in range(120):
        clock.seconds += 0.5
        upload.check()
    clock.seconds += 0.5
    with pytest.raises(StorageError, match="has acknowledged no byte for 60 s"):
        upload.check()
