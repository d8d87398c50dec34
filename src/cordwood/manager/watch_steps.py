"""Waits for steps that other processes save."""

from __future__ import annotations

import time
from collections.abc import Hashable
from operator import itemgetter
from typing import TypeAlias

from cordwood.manager.step_listing import StepListing
from cordwood.processes.process_group import ProcessGroup

_OVER = b"over"
_Seen: TypeAlias = set[tuple[int, Hashable]]  # steps and their stamps: one saved anew is another


class StepWatcher:
    """What a reader has seen of the steps of a root. Process 0 looks, for all."""

    def __init__(self, listing: StepListing, group: ProcessGroup) -> None:
        self._listing = listing
        self._group = group
        self._seen: _Seen | None = None  # of those that are there; None: it has not looked yet
        self._restored: tuple[int, Hashable] | None = None  # since it looked last

    def restored(self, number: int) -> None:
        """Count a step as seen, and those before it that are there."""
        step = self._listing.at(number)
        self._restored = None if step is None else (number, step.stamp)

    def wait(
        self, *, newest: bool, timeout_seconds: float | None, poll_seconds: float
    ) -> int | None:
        """A step that has not been seen, once there is one; None: there was none in that time.

        Args:
            newest: of several the newest, and none of the others later. Else the oldest; but the
                newest at the first look, if nothing has been restored.
            timeout_seconds: how long to wait; None: for ever.
            poll_seconds: how often to look.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds

        def left() -> float:
            return poll_seconds if deadline is None else deadline - time.monotonic()

        def look(_: list[bytes]) -> bytes:
            found = self._look(newest=newest)
            if found is not None:
                return str(found).encode()
            return _OVER if left() <= 0 else b""

        while True:
            answer = self._group.agree("look for a new step of", b"", look)
            if answer:
                return None if answer == _OVER else int(answer)
            time.sleep(max(0.0, min(poll_seconds, left())))

    def _look(self, *, newest: bool) -> int | None:
        there: _Seen = {
            (step.step, step.stamp) for step in self._listing.steps() if step.whole and step.is_read
        }
        seen = self._seen
        if self._restored is not None:
            number = self._restored[0]
            # It may be gone, as the newest never is: then the run has gone on, or back before it.
            gone_on = seen is None and any(each[0] > number for each in there)
            if self._restored in there or gone_on:
                seen = (seen or set()) | {each for each in there if each[0] <= number}
        self._restored = None
        newest = newest or seen is None
        self._seen = there & (seen or set())
        new = sorted(there - self._seen, key=itemgetter(0))
        if not new:
            return None
        self._seen |= set(new) if newest else {new[0]}
        return new[-1 if newest else 0][0]
