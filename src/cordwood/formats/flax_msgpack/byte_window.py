"""The bytes of a file around the place that is being parsed, read as the parser moves on.

A file that another program cuts short while it is mapped ends the process (SIGBUS), so nothing is
mapped here.
"""

from __future__ import annotations

from collections.abc import Callable

_FIRST_BYTES = 1 << 10  # read after a jump, as over the elements of an array
_MAX_BYTES = 256 << 10  # read at once, where nothing is skipped


class ByteWindow:
    """Bytes [base, limit) of a file, in memory. Positions count from the start of the file.

    Args:
        read: returns that many bytes of the file from an offset on.
        start: where the bytes to parse begin.
        stop: where they end.
        name: the name of the file, for errors.

    Attributes:
        data: bytes [base, limit) of the file.
        base: where `data` begins.
        limit: where `data` ends.
    """

    __slots__ = ("_read", "_step", "base", "data", "limit", "name", "start", "stop")

    def __init__(
        self, read: Callable[[int, int], bytes], *, start: int = 0, stop: int, name: str
    ) -> None:
        self._read = read
        self._step = _FIRST_BYTES
        self.name = name
        self.start = self.base = self.limit = start
        self.stop = stop
        self.data = b""

    def load(self, position: int, least_bytes: int) -> None:
        """Move to a position: read `least_bytes` there, or more; fewer at the end."""
        is_next = self.base <= position <= self.limit
        self._step = min(4 * self._step, _MAX_BYTES) if is_next else _FIRST_BYTES
        size = min(max(self._step, least_bytes), self.stop - position)
        self.data = self._read(position, size)
        self.base, self.limit = position, position + size

    def locate(self, position: int, least_bytes: int) -> int:
        """Return the index in `data` of a position; load `least_bytes` there, or all there are."""
        if position < self.base or position + least_bytes > self.limit < self.stop:
            self.load(position, least_bytes)
        return position - self.base

    def bytes(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of the file."""
        if self.base <= start and stop <= self.limit:
            return self.data[start - self.base : stop - self.base]
        return self._read(start, stop - start)
