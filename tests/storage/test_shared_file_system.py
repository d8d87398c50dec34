"""A mark that another process has made: looked for, bounded, and reported in the log."""

from __future__ import annotations

import logging

import pytest

from cordwood.storage.storage_protocol import wait_until_visible
from cordwood.threads import wait_logger


def test_a_mark_that_comes_late_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wait_logger, "REPORT_SECONDS", 1e-9)
    looks = iter([False, False, True])
    with caplog.at_level(logging.WARNING, "cordwood"):
        assert wait_until_visible(lambda: next(looks), "run/.mark", timeout_seconds=60)
    assert len(caplog.records) == 2
    assert all("waiting for run/.mark, which process 0" in each.message for each in caplog.records)


def test_a_mark_that_does_not_come_is_given_up() -> None:
    assert not wait_until_visible(lambda: False, "run/.mark", timeout_seconds=0)
