"""Waits for steps that other processes save."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_for_step"]


def wait_for_step(
    latest: Callable[[], int | None],
    *,
    after: int | None,
    timeout_seconds: float | None,
    poll_seconds: float,
) -> int | None:
    """The newest step once there is one after `after`; None if there is none in that time."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    while True:
        newest = latest()
        if newest is not None and (after is None or newest > after):
            return newest
        left = poll_seconds if deadline is None else min(poll_seconds, deadline - time.monotonic())
        if left <= 0:
            return None
        time.sleep(left)
