"""A counter of the bytes that several loads of one call read."""

from __future__ import annotations

from cordwood.io.progress import Progress, Report


class ByteCounter:
    """The sum of the bytes that several loads read, reported as the progress of one call."""

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self._earlier_bytes = 0
        self._latest = Progress(0, 0)

    @property
    def size_bytes(self) -> int:
        """The bytes that were read so far."""
        return self._earlier_bytes + self._latest.done_bytes

    def begin_load(self) -> None:
        """Count the next load on top of the loads before it."""
        self._earlier_bytes = self.size_bytes
        self._latest = Progress(0, 0)

    def note(self, progress: Progress) -> None:
        """Receive the progress of the current load."""
        self._latest = progress
        if self._report is not None:
            done, total, doing = progress
            self._report(Progress(self._earlier_bytes + done, self._earlier_bytes + total, doing))
