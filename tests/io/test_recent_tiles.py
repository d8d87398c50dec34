"""Tiles that were made recently are kept, and made once for all threads that read parts of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from cordwood.io.recent_tiles import RecentTiles
from cordwood.threads.thread_pool import map_in_threads


def test_tiles_are_kept_up_to_a_number_of_bytes() -> None:
    made: list[int] = []

    def make(number: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        made.append(number)
        return np.full(10, number, np.uint8)

    recent = RecentTiles(make, kept_bytes=20, threads=2)
    for number in (0, 1, 0, 2, 0, 1):  # 1 is dropped when 2 is made
        assert recent.tile(number).tolist() == [number] * 10
    assert made == [0, 1, 2, 1]
    assert RecentTiles(make, kept_bytes=0, threads=2).tile(7).tolist() == [7] * 10


def test_threads_that_need_one_tile_wait_for_it() -> None:
    made: list[int] = []
    arrived = threading.Barrier(4)

    def make(number: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        made.append(number)
        return np.zeros(3, np.uint8)

    recent = RecentTiles(make, kept_bytes=3, threads=2)

    def read() -> int:
        arrived.wait()
        return recent.tile(5).nbytes

    assert map_in_threads(read, [()] * 4, threads=4) == [3] * 4
    assert made == [5]


def test_a_tile_that_failed_is_made_again() -> None:
    failures = iter([OSError("a disk"), None])

    def make(number: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        failure = next(failures)
        if failure is not None:
            raise failure
        return np.full(1, number, np.uint8)

    recent = RecentTiles(make, kept_bytes=1, threads=2)
    with pytest.raises(OSError, match="a disk"):
        recent.tile(1)
    assert recent.tile(1).tolist() == [1]
