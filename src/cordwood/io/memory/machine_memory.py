"""The memory of the machine, or of the container of the process: all of it, and what is free.

Sources: proc(5) for MemAvailable; cgroups(7), and the kernel's pages on cgroup-v1 and cgroup-v2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

_MOUNT = "/sys/fs/cgroup"


class _Names(NamedTuple):
    """The files of a control group, by the version of the interface."""

    root: str
    limit: str
    used: str
    reclaimable: str  # the line of memory.stat that counts file pages which can be dropped


_VERSION_2 = _Names(_MOUNT, "memory.max", "memory.current", "inactive_file")
_VERSION_1 = _Names(
    f"{_MOUNT}/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)


def machine_memory_bytes() -> int:
    """Return the memory of the machine, or of the control groups of the process if that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [limit for _, _, limit in _limited_groups()]
    return min(limits)


def available_memory_bytes() -> int:
    """Return how much memory (bytes) can be taken without swapping, page cache included.

    It is what the kernel estimates for the machine (MemAvailable), or what a control group of the
    process has left below its limit, if that is less. File pages that have not been used again
    count as available.
    """
    available = [machine_memory_bytes()]
    with suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                available.append(int(line.split()[1]) << 10)
                break
    for names, folder, limit in _limited_groups():
        with suppress(OSError, ValueError), open(f"{folder}/{names.used}") as file:
            available.append(max(0, limit - int(file.read()) + _reclaimable_bytes(names, folder)))
    return min(available)


def _limited_groups() -> Iterator[tuple[_Names, str, int]]:
    """Yield the folder and the limit (bytes) of each control group that has one."""
    groups: list[str] = []
    with suppress(OSError), open("/proc/self/cgroup") as file:
        groups = file.read().splitlines()
    for line in groups:  # "0::/job/step" in version 2, "4:memory:/job/step" in version 1
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        names = _VERSION_1 if controllers else _VERSION_2
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):  # a group has the limits of those around it, too
            folder = "/".join([names.root, *parts[:depth]])
            with suppress(OSError, ValueError), open(f"{folder}/{names.limit}") as file:
                yield names, folder, int(file.read())  # or "max"


def _reclaimable_bytes(names: _Names, folder: str) -> int:
    with suppress(OSError), open(f"{folder}/memory.stat") as file:
        for line in file:
            name, _, value = line.partition(" ")
            if name == names.reclaimable:
                return int(value)
    return 0
