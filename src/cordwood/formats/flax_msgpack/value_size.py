"""The size of a msgpack value that is still arriving, from its headers."""

from __future__ import annotations

from cordwood.errors import FormatError
from cordwood.formats.flax_msgpack.wire import read_header

MAX_HEADERS = 1 << 20


class ValueSize:
    """The size of the only value in a stream, which is read chunk by chunk.

    The contents of strings, bytes and extensions are skipped. Every value that a container still
    needs takes at least one byte.

    After MAX_HEADERS, or at a byte that begins no value, reading stops and `is_known` is False.
    """

    def __init__(self) -> None:
        self.is_known = True
        self._headers_left = MAX_HEADERS
        self._missing = 1  # values whose headers have not arrived
        self._next = 0  # the offset of the next value
        self._seen = 0  # bytes that have arrived
        self._incomplete = b""  # the bytes of an incomplete header

    @property
    def is_whole(self) -> bool:
        """True once the headers of all values have arrived."""
        return self.is_known and self._missing == 0

    @property
    def least_bytes(self) -> int:
        """The minimum size of the value, in bytes; the exact size if `is_whole`."""
        return self._next + self._missing

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the stream."""
        self._seen += len(data)
        if self._next >= self._seen or not self._missing or not self.is_known:
            return
        buffer = self._incomplete + data if self._incomplete else data
        base = self._seen - len(buffer)
        position = self._next - base
        while self._missing and position < len(buffer):
            try:
                header = read_header(buffer, position)
            except FormatError:
                self.is_known = False
                return
            if header is None:
                break
            count, start = header
            if not self._headers_left:
                self.is_known = False
                return
            self._headers_left -= 1
            self._missing += count - 1
            position = start
        self._next = base + position
        self._incomplete = buffer[position:]
