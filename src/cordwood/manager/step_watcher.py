"""The wait for new steps of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from operator import itemgetter
from typing import TypeAlias

from cordwood.manager.steps import Steps
from cordwood.processes.process_group import ProcessGroup
from cordwood.storage.object_stores.request_deadline import request_deadline

_Seen: TypeAlias = set[tuple[int, Hashable]]  # steps and their stamps, which saving again changes

_PATIENCE_SECONDS = 5.0  # with a failing store, at each look; so that time-outs may be short


class StepWatcher:
    """The steps of a root that a reader has seen. Process 0 looks for all processes."""

    def __init__(self, steps: Steps, group: ProcessGroup) -> None:
        self._steps = steps
        self._group = group
        self._seen: _Seen | None = None  # only existing steps; None: it has not looked yet
        self._restored: tuple[int, Hashable] | None = None  # since the last look

    def restored(self, number: int) -> None:
        """Count a step as seen, and all earlier steps that exist."""
        step = self._steps.at(number)
        self._restored = None if step is None else (number, step.identity)

    def wait(
        self, *, newest: bool, timeout_seconds: float | None, poll_seconds: float
    ) -> int | None:
        """Wait for a step that has not been seen, and return it; None if none came in time.

        Args:
            newest: True to return the newest of several, and count the others as seen. False to
                return the oldest; but the first look returns the newest if nothing was restored.
            timeout_seconds: how long to wait; None: for ever.
            poll_seconds: how often to look.

        Raises what a listing raises; an object store that fails is given up at that time.
        """
        deadline = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds

        def look() -> tuple[int | None, bool]:
            with request_deadline(max(deadline, time.monotonic() + _PATIENCE_SECONDS)):
                number = self._look(newest=newest)
            return number, number is None and time.monotonic() >= deadline

        while True:
            number, has_timed_out = self._group.agree("look for a new step of", look)
            if number is not None or has_timed_out:
                return number
            time.sleep(max(0.0, min(poll_seconds, deadline - time.monotonic())))

    def _look(self, *, newest: bool) -> int | None:
        existing: _Seen = {
            (step.step, step.identity) for step in self._steps.all() if step.whole and step.is_read
        }
        seen = self._seen
        if self._restored is not None:
            number = self._restored[0]
            # The restored step may be deleted, which never happens to the newest step: then the run
            # has saved later steps, or has gone back to an earlier one.
            has_later = seen is None and any(each[0] > number for each in existing)
            if self._restored in existing or has_later:
                seen = (seen or set()) | {each for each in existing if each[0] <= number}
        self._restored = None
        newest = newest or seen is None
        self._seen = existing & (seen or set())
        new = sorted(existing - self._seen, key=itemgetter(0))
        if not new:
            return None
        self._seen |= set(new) if newest else {new[0]}
        return new[-1 if newest else 0][0]
