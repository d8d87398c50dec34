"""The size of a msgpack value, as far as the headers tell that have arrived."""

from __future__ import annotations

from cordwood.formats.flax_msgpack.tokens import read_header

MAX_HEADERS = 1 << 20


class ValueSize:
    """The size of the one value that a stream holds, read chunk by chunk.

    What strings, bytes and extensions hold is passed over. Every value that a container still
    lacks takes a byte at least.

    Args:
        max_headers: after so many, or at a byte that begins no value, reading ends and
            `is_known` is False.
    """

    def __init__(self, *, max_headers: int = MAX_HEADERS) -> None:
        self.is_known = True
        self._headers_left = max_headers
        self._missing = 1  # values that have not begun
        self._next = 0  # where the next one begins
        self._seen = 0  # bytes that have arrived
        self._rest = b""  # of them, those of a header that is not whole

    @property
    def is_whole(self) -> bool:
        """True once the headers of all values have arrived."""
        return self.is_known and self._missing == 0

    @property
    def least_bytes(self) -> int:
        """The least size of the value, in bytes; the exact size if `is_whole`."""
        return self._next + self._missing

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the stream."""
        self._seen += len(data)
        if self._next >= self._seen or not self._missing or not self.is_known:
            return
        buffer = self._rest + data if self._rest else data
        base = self._seen - len(buffer)
        position = self._next - base
        while self._missing and position < len(buffer):
            header = read_header(buffer, position)
            if header is None:
                break
            count, start = header
            if count < 0 or not self._headers_left:
                self.is_known = False
                return
            self._headers_left -= 1
            self._missing += count - 1
            position = start
        self._next = base + position
        self._rest = buffer[position:]
