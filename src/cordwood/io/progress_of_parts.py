"""The progress of a call in several parts, as one."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.io.progress import Progress, Report


class ProgressOfParts:
    """The progress of a call in several parts, each of which reports its own.

    Args:
        report: the callback of the whole call; it receives the progress of all parts as one.
        estimates: the estimated bytes of each part by its name, "" for one without a name. A part
            that has begun replaces its estimate.

    >>> parts = ProgressOfParts(print, {"": 8, "ema": 8})
    >>> parts.begin("")(Progress(2, 2))
    Progress(done_bytes=2, total_bytes=10, doing='')
    >>> parts.begin("ema")(Progress(1, 8, "w"))
    Progress(done_bytes=3, total_bytes=10, doing='ema: w')
    """

    def __init__(self, report: Report, estimates: Mapping[str, int]) -> None:
        self._report = report
        self._estimates = dict(estimates)  # of the parts that have not begun
        self._name = ""
        self._earlier = self._part = Progress(0, 0)

    def begin(self, name: str) -> Report:
        """Return the callback of a part, which is used until the next part begins."""
        (done, total, _), (more, more_total, _) = self._earlier, self._part
        self._earlier, self._part = Progress(done + more, total + more_total), Progress(0, 0)
        self._name = name
        del self._estimates[name]
        return self._report_part

    def _report_part(self, progress: Progress) -> None:
        self._part = progress
        total = self._earlier.total_bytes + progress.total_bytes + sum(self._estimates.values())
        doing = ": ".join(filter(None, [self._name, progress.doing]))
        self._report(Progress(self._earlier.done_bytes + progress.done_bytes, total, doing))
