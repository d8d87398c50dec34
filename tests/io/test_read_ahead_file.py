"""ReadAheadFile: the first bytes of a file come from one request."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cordwood.errors import TruncatedError
from cordwood.io.memory_file import MemoryFile
from cordwood.io.read_ahead_file import ReadAheadFile

DATA = bytes(range(100))


class CountingFile(MemoryFile):
    """A file that lists the ranges that were read of it."""

    def __init__(self) -> None:
        super().__init__(DATA, "data")
        self.ranges: list[tuple[int, int]] = []

    def read(self, offset: int, length: int) -> bytes:
        self.ranges.append((offset, length))
        return super().read(offset, length)

    def read_into(self, offset: int, views: Sequence[memoryview]) -> None:
        self.ranges.append((offset, sum(map(len, views))))
        super().read_into(offset, views)


@pytest.mark.parametrize("head_bytes", [1, 40, 100, 1000])
def test_any_range_is_read_across_the_end_of_the_first_bytes(head_bytes: int) -> None:
    file = ReadAheadFile(CountingFile(), head_bytes)
    for start in range(0, 101, 7):
        for stop in range(start, 101, 5):
            assert file.read(start, stop - start) == DATA[start:stop]
            cuts = [bytearray((stop - start) // 2), bytearray(), bytearray(-(-(stop - start) // 2))]
            file.read_into(start, [memoryview(cut) for cut in cuts])
            assert b"".join(cuts) == DATA[start:stop]


def test_the_first_bytes_are_requested_once() -> None:
    counting = CountingFile()
    file = ReadAheadFile(counting, 40)
    assert counting.ranges == []
    file.prepare()
    assert (file.read(0, 8), file.read(30, 10)) == (DATA[:8], DATA[30:40])
    assert counting.ranges == [(0, 40)]
    assert file.read(35, 10) == DATA[35:45]
    assert counting.ranges == [(0, 40), (40, 5)]


def test_a_range_behind_the_end_is_an_error() -> None:
    with pytest.raises(TruncatedError):
        ReadAheadFile(CountingFile(), 40).read(90, 11)
