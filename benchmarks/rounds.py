"""Interleaved rounds: each contender once a round, in an order drawn anew; then medians."""

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
    """Seconds of each save, onto a path that never was.

    What the last one wrote is emptied by then, and the disk in sync. `suffix_of` gives the suffix
    of the path that a contender is to write.
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
    """Seconds until each asynchronous save returns, and until what it returned was waited for."""
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
    """Seconds until each value is there, jax arrays ready; it is dropped before the next.

    `before` is called with the contender's name before its clock starts; then so much free memory
    is touched, as `have_memory` does. `without_memory` are contenders that take next to none: for
    them nothing is touched, as the kernel is busy with what was freed for longer than they take.
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

    Whoever made the folder that it lies in removes it in the end. ext4 without a journal looks for
    minutes at each inode that was freed before it makes a file: after the thousands of files of one
    contender, another's took twice as long.
    """
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        os.truncate(file, 0)
    path.rename(path.with_name(f"removed-{secrets.token_hex(8)}"))


def _settle() -> None:
    """Drop garbage, and where it fills a third of the memory, what the process keeps of it.

    Some contenders leave several copies of a large tree in the allocator's hands. And jax frees
    the host memory of dropped arrays only when it makes the next one: here, where no clock runs.
    """
    gc.collect()
    jax.device_put(np.zeros(1)).block_until_ready()
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    if resident > os.sysconf("SC_PHYS_PAGES") // 3:
        give_back()


def _order(names: list[str], rounds: int) -> list[tuple[int, str]]:
    """(a number for the contender, its name), round after round.

    Each round has an order of its own, the same in every run: in one that only turns, a contender
    always comes after the same other, whose memory and files the system may still be busy with.
    """
    draw = random.Random(0)
    orders = [draw.sample(names, len(names)) for _ in range(rounds)]
    return [(names.index(name), name) for order in orders for name in order]
