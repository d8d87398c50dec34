"""Interleaved rounds: each contender once per round, in a random order; then medians."""

from __future__ import annotations

import gc
import os
import random
import secrets
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.memory import give_back, have_memory

__all__ = ["median_seconds", "remove", "time_calls", "time_saves", "time_values"]

Times = dict[str, list[float]]


def median_seconds(times: Times) -> dict[str, float]:
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def time_saves(
    contenders: Mapping[str, Callable[[Path], Any]],
    folder: Path,
    rounds: int,
    *,
    suffix_of: Callable[[str], str],
) -> Times:
    """Return the seconds of each save, to a new path.

    Before each save the files of the previous one are emptied, and the disk is in sync. `suffix_of`
    gives the suffix of the path that a contender writes.
    """
    times: Times = {name: [] for name in contenders}
    for number, name in _order(list(contenders), rounds):
        path = folder / f"save-{number}-{len(times[name])}{suffix_of(name)}"
        _settle()
        os.sync()
        start = time.perf_counter()
        contenders[name](path)
        times[name].append(time.perf_counter() - start)
        remove(path)
    return times


def time_calls(
    contenders: Mapping[str, Callable[[Path], Callable[[], Any]]], folder: Path, rounds: int
) -> tuple[Times, Times]:
    """Return the seconds until each asynchronous save returns, and until it is done."""
    calls: Times = {name: [] for name in contenders}
    wholes: Times = {name: [] for name in contenders}
    for number, name in _order(list(contenders), rounds):
        path = folder / f"async-{number}-{len(calls[name])}"
        _settle()
        os.sync()
        start = time.perf_counter()
        wait = contenders[name](path)
        calls[name].append(time.perf_counter() - start)
        wait()
        wholes[name].append(time.perf_counter() - start)
        remove(path)
    return calls, wholes


def time_values(
    contenders: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    before: Callable[[str], Any] | None = None,
    memory_bytes: int = 0,
    without_memory: Collection[str] = (),
) -> Times:
    """Return the seconds until each value is ready. It is dropped before the next one.

    `before` is called with the contender's name before its clock starts. Then `memory_bytes` of
    free memory are touched, by `have_memory`. `without_memory` are contenders that need almost no
    memory: for them nothing is touched, because the kernel is busy with the freed memory for longer
    than they run.
    """
    times: Times = {name: [] for name in contenders}
    for _, name in _order(list(contenders), rounds):
        _settle()
        if before is not None:
            before(name)
        if memory_bytes and name not in without_memory:
            have_memory(memory_bytes)
        start = time.perf_counter()
        value = contenders[name]()
        jax.block_until_ready(value)
        times[name].append(time.perf_counter() - start)
        del value
    return times


def remove(path: Path) -> None:
    """Empty a file, or all files of a directory, and move it out of the way.

    The owner of the parent folder removes it in the end. Before ext4 without a journal creates a
    file, it examines for minutes each inode that was freed: after the thousands of files of one
    contender, the next contender took twice as long.
    """
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        os.truncate(file, 0)
    path.rename(path.with_name(f"removed-{secrets.token_hex(8)}"))


def _settle() -> None:
    """Collect garbage. If the process uses a third of the memory, return free memory too.

    Some contenders leave several copies of a large tree in the allocator. And jax frees the host
    memory of dropped arrays only when it makes the next array: here, where no clock runs.
    """
    gc.collect()
    jax.device_put(np.zeros(1)).block_until_ready()
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    if resident > os.sysconf("SC_PHYS_PAGES") // 3:
        give_back()


def _order(names: list[str], rounds: int) -> list[tuple[int, str]]:
    """Return (number of the contender, its name), round after round.

    Each round has a different order, the same in every run. In an order that only rotates, a
    contender would always follow the same other one, whose memory and files may still keep the
    system busy.
    """
    draw = random.Random(0)
    orders = [draw.sample(names, len(names)) for _ in range(rounds)]
    return [(names.index(name), name) for order in orders for name in order]
