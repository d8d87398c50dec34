"""Huge or small pages: chosen by the time that the first touches take."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cordwood.io import execute_load as execution
from cordwood.io import read_units
from cordwood.io.execute_load import execute_load
from cordwood.io.memory.buffers import PageSize
from cordwood.io.open_files import LocalFile
from cordwood.plan.load_plan import LoadPlan, Move

MIB = 1 << 20
UNIT = 4 * MIB
WARM_HUGE, WARM_SMALL, COLD = 600_000, 1_600_000, 10_000_000  # nanoseconds for a unit
UNITS = 356  # 1.49 GB


def spend(units: int, cost: Callable[[int, bool], int]) -> tuple[int, int]:
    """Return how many nanoseconds a load takes, and how many of its units go to small pages."""
    choice = PageSize()
    total = small_units = 0
    for unit in range(units):
        small = choice.is_small
        nanoseconds = cost(unit, small)
        choice.record_read(UNIT, nanoseconds, small=small)
        total += nanoseconds
        small_units += small
    return total, small_units


def test_a_warm_machine_never_leaves_huge_pages() -> None:
    assert spend(UNITS, lambda _, small: WARM_SMALL if small else WARM_HUGE) == (
        UNITS * WARM_HUGE,
        0,
    )


def test_cold_huge_pages_cost_little_more_than_small_ones_from_the_start() -> None:
    total, small_units = spend(UNITS, lambda _, small: WARM_SMALL if small else COLD)
    assert small_units >= UNITS - 10
    assert total < 1.2 * UNITS * WARM_SMALL


def test_one_slow_read_costs_a_warm_machine_a_short_trial() -> None:
    total, small_units = spend(
        UNITS, lambda unit, small: COLD if unit == 40 else WARM_SMALL if small else WARM_HUGE
    )
    assert small_units == 8
    assert total == UNITS * WARM_HUGE + (COLD - WARM_HUGE) + 8 * (WARM_SMALL - WARM_HUGE)


def test_where_all_memory_is_cold_small_pages_are_not_kept() -> None:
    _, small_units = spend(UNITS, lambda *_: COLD)
    assert small_units == UNITS // 2  # neither is better: each is tried in turn


def test_huge_pages_come_back_once_they_are_warm() -> None:
    _, small_units = spend(
        UNITS, lambda unit, small: WARM_SMALL if small else COLD if unit < 30 else WARM_HUGE
    )
    assert small_units <= 60


def test_a_short_read_says_nothing() -> None:
    choice = PageSize()
    choice.record_read(MIB - 1, COLD, small=False)
    assert not choice.is_small


def test_once_a_read_is_slow_the_next_ones_go_to_small_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.random.default_rng(0).integers(0, 256, 24 * MIB, dtype=np.uint8)
    (tmp_path / "data").write_bytes(data.tobytes())
    advised: list[tuple[int, int, int]] = []

    def note_advice(pages: mmap.mmap, start: int, stop: int) -> None:
        advised.append((len(pages), start, stop))

    clock = iter([0, COLD, *([0] * 100)])  # the first read is slow, all others take no time
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(clock))
    monkeypatch.setattr(read_units, "advise_small", note_advice)
    monkeypatch.setattr(execution, "reading_threads", lambda *, latency_bound: 1)
    first, second = 10 * MIB, 14 * MIB
    moves = (Move(0, 0, first, 0, 0), Move(0, first, second, 1, 0))
    with LocalFile(tmp_path / "data") as file:
        buffers = execute_load(
            LoadPlan((first, second), moves, ()), [file], digests=[None], verify=False
        )
    assert np.array_equal(np.concatenate(buffers), data)
    assert advised == [
        (first, 4 * MIB, 8 * MIB),
        (first, 8 * MIB, 10 * MIB),
        (second, 0, 2 * MIB),
        (second, 2 * MIB, 6 * MIB),
        (second, 6 * MIB, 10 * MIB),
        (second, 10 * MIB, 14 * MIB),
    ]
