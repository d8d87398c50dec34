"""Interleaved rounds: each contender once a round, in an order that turns; then medians."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks.contenders import suffix_of

__all__ = ["median_seconds", "time_saves", "time_values"]

Times = dict[str, list[float]]


def median_seconds(times: Times) -> dict[str, float]:
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def time_saves(contenders: Mapping[str, Callable[[Path], Any]], folder: Path, rounds: int) -> Times:
    """Seconds of each save, onto a path that never was, after unlink and sync."""
    times: Times = {name: [] for name in contenders}
    for number, name in _order(list(contenders), rounds):
        path = folder / f"save-{number}-{len(times[name])}{suffix_of(name)}"
        gc.collect()
        os.sync()
        start = time.perf_counter()
        contenders[name](path)
        times[name].append(time.perf_counter() - start)
        path.unlink()
    return times


def time_values(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> Times:
    """Seconds until each value is there, jax arrays ready; it is dropped before the next."""
    times: Times = {name: [] for name in contenders}
    for _, name in _order(list(contenders), rounds):
        gc.collect()
        start = time.perf_counter()
        value = contenders[name]()
        jax.block_until_ready(value)
        times[name].append(time.perf_counter() - start)
        del value
    return times


def _order(names: list[str], rounds: int) -> list[tuple[int, str]]:
    """(a number for the contender, its name), round after round, each beginning one further."""
    turned = [[*names[i % len(names) :], *names[: i % len(names)]] for i in range(rounds)]
    return [(names.index(name), name) for row in turned for name in row]
