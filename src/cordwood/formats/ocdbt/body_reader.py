"""The encoding of the body of a manifest or node: numbers, and columns of keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from cordwood.errors import FormatError, LimitError
from cordwood.message_text import counted

MAX_KEY_BYTES = 1 << 13  # of one key or path
_MAX_KEYS_BYTES = 1 << 29  # of all keys of a node
_VARINT_BYTES = 10  # the longest encoding of 64 bits
_MIN_LIMIT_BYTES = 1 << 22
_MAX_RATIO = 1000


def size_limit(stored_bytes: int, *, at_most: int) -> int:
    """Return the limit of the decoded size of `stored_bytes`."""
    return min(at_most, _MIN_LIMIT_BYTES + _MAX_RATIO * stored_bytes)


class BodyReader:
    """A cursor that reads the body of a manifest or node from front to back.

    Args:
        data: the bytes to read, decompressed.
        stored_bytes: their size on disk, which limits the size of the keys.
    """

    def __init__(self, data: bytes, stored_bytes: int) -> None:
        self.data = data
        self._at = 0
        self._limit_bytes = size_limit(stored_bytes, at_most=_MAX_KEYS_BYTES)

    def end(self) -> None:
        """Raise FormatError if more bytes follow."""
        extra = len(self.data) - self._at
        if extra:
            raise FormatError(
                f"expected the end at {self._at}, found {counted(extra, 'more byte')}"
            )

    def require_room(self, size_bytes: int) -> None:
        """Raise LimitError if keys of `size_bytes` are too large for the stored size."""
        if size_bytes > self._limit_bytes:
            raise LimitError(
                f"keys and paths of {size_bytes} bytes in one node; expected at most "
                f"{self._limit_bytes} for its size"
            )

    def skip(self, count: int) -> int:
        """Skip `count` bytes; return the offset of the first."""
        start = self._at
        if count > len(self.data) - start:
            raise FormatError(
                f"it ends too early: {count} bytes expected at {start} of {len(self.data)}"
            )
        self._at += count
        return start

    def take(self, count: int) -> bytes:
        start = self.skip(count)
        return self.data[start : start + count]

    def remaining(self) -> bytes:
        return self.data[self._at :]

    def varint(self) -> int:
        return self.varints(1)[0]

    def varints(self, count: int) -> list[int]:
        """Read `count` numbers of seven bits per byte, the lowest bits first."""
        if count > len(self.data) - self._at:
            raise FormatError(f"it ends too early: {count} numbers expected at {self._at}")
        data = np.frombuffer(self.data, np.uint8)[self._at : self._at + _VARINT_BYTES * count]
        ends = np.flatnonzero(data < 0x80)[:count]
        if len(ends) < count:
            raise FormatError(f"expected {count} numbers of up to 64 bits at {self._at}")
        if not count:
            return []
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = ends - starts + 1
        longest = int(lengths.max())
        if longest > _VARINT_BYTES or data[ends[lengths == _VARINT_BYTES]].max(initial=0) > 1:
            raise FormatError(f"a number of more than 64 bits at {self._at}")
        values: Any = np.zeros(count, np.uint64)
        for i in range(longest):
            longer = np.flatnonzero(lengths > i)
            part = data[starts[longer] + i] & 0x7F
            values[longer] |= part.astype(np.uint64) << np.uint64(7 * i)
        self._at += int(ends[-1]) + 1
        numbers: list[int] = values.tolist()
        return numbers

    def keys(self, shared: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Read strings, each of which shares a prefix with the string before it.

        Args:
            shared: for each string, the length of that prefix.
            lengths: the length of what follows the prefix, which is stored.
        """
        if not lengths:
            return []
        self.require_room(sum(shared) + sum(lengths))
        longest = max(map(int.__add__, shared, lengths))
        if longest > MAX_KEY_BYTES:
            raise LimitError(f"a key of {longest} bytes; expected at most {MAX_KEY_BYTES}")
        suffixes = self.take(sum(lengths))
        keys: list[bytes] = []
        last = b""
        for common, stop, length in zip(shared, accumulate(lengths), lengths, strict=True):
            if common > len(last):
                raise FormatError(f"{common} bytes of {last!r:.80} are referred to")
            last = last[:common] + suffixes[stop - length : stop]
            keys.append(last)
        return keys
