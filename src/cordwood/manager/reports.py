"""What a save took: one line of the log, and what a metrics hook is given."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SaveReport"]


class SaveReport(NamedTuple):
    """A step that is committed. As a string, the line of the log."""

    step: int
    path: str
    why: str  # the policy's reason
    written_bytes: int  # of arrays, by this process
    linked_bytes: int  # that were there already
    blocking_seconds: float  # how long `save` kept its caller
    total_seconds: float  # from that call to the commit

    @property
    def bytes_per_second(self) -> float:
        """Bytes that were written, by the whole time."""
        return self.written_bytes / max(self.total_seconds, 1e-9)

    def __str__(self) -> str:
        return (
            f"saved step {self.step}: {self.written_bytes / 1e6:.1f} MB written, "
            f"{self.linked_bytes / 1e6:.1f} MB linked, {1000 * self.blocking_seconds:.1f} ms "
            f"blocking, {self.total_seconds:.3f} s in all, {self.bytes_per_second / 1e6:.0f} MB/s "
            f"({self.why}; {self.path})"
        )
