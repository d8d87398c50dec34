"""The report of a committed step, which `on_save` receives and the log shows."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.message_text import size_text
from cordwood.public_names import document_fields


@document_fields
class SaveReport(NamedTuple):
    """A step that is committed. As a string, the line of the log.

    Attributes:
        step: its number.
        path: the directory or URL that it was saved to.
        why: the reason that the policy gave for the save.
        written_bytes: bytes of arrays that this process has written.
        linked_bytes: bytes of arrays that were there already, and were hard-linked.
        blocking_seconds: how long `save` kept its caller.
        total_seconds: from that call to the commit.
    """

    step: int
    path: str
    why: str
    written_bytes: int
    linked_bytes: int
    blocking_seconds: float
    total_seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Bytes that were written, divided by `total_seconds`."""
        return self.written_bytes / max(self.total_seconds, 1e-9)

    def __str__(self) -> str:
        rate = f"{size_text(self.bytes_per_second)}/s"
        return (
            f"saved step {self.step}: {size_text(self.written_bytes)} written, "
            f"{size_text(self.linked_bytes)} linked, {1000 * self.blocking_seconds:.1f} ms "
            f"blocking, {self.total_seconds:.3f} s in all, {rate} ({self.why}; {self.path})"
        )
