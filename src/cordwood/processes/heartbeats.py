"""The heartbeats of processes, by which others notice that one has died."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Heartbeats:
    """The latest heartbeat of each process that has arrived, and when it was first seen."""

    def __init__(self) -> None:
        self._beats: dict[int, tuple[bytes, bytes | None, float]] = {}
        self._checked = time.monotonic()

    def silent(
        self, arrived: Mapping[int, bytes], beats: Mapping[str, bytes], silence_seconds: float
    ) -> list[int]:
        """Note new heartbeats, and return the processes without one for `silence_seconds`.

        Args:
            arrived: the processes that have arrived, with their tokens; b"" for any token.
            beats: by the number of the process, its token and what changes with each heartbeat.
            silence_seconds: a process without a new heartbeat for this long is silent.
        """
        time_now = time.monotonic()
        paused = time_now - self._checked > silence_seconds / 2  # this process was: wait again
        self._checked = time_now
        silent = []
        for process, token in arrived.items():
            beat = beats.get(str(process))
            if beat is not None and not beat.startswith(token):
                beat = None
            before = self._beats.get(process)
            if before is None or before[:2] != (token, beat) or paused:
                self._beats[process] = token, beat, time_now
            elif time_now - before[2] > silence_seconds:
                silent.append(process)
        return silent
