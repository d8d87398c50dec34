"""The order in which a process asks the holders of a file: the nearest first. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from cordwood.plan.recovery.holder_shares import shares_of_holders
from cordwood.plan.recovery.position_runs import PositionRuns


class FileHolders(NamedTuple):
    """The processes that hold each file of a step, and the part that each of them is to serve."""

    holders: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[float, ...], ...]


def holders_of_files(files: Mapping[int, PositionRuns], sizes: Sequence[int]) -> FileHolders:
    """Return the holders of each file of a step.

    Args:
        files: the positions of the files that each process holds.
        sizes: the size of each file.
    """
    holders: list[list[int]] = [[] for _ in sizes]
    for process, runs in sorted(files.items()):
        for start, stop in runs:
            for position in range(start, stop):
                holders[position].append(process)
    groups = tuple(map(tuple, holders))
    return FileHolders(groups, tuple(shares_of_holders(sizes, groups)))


def order_holders(
    files: FileHolders, requester: int, hosts: Sequence[Hashable]
) -> list[tuple[int, ...]]:
    """Return the holders of each file in the order in which one process asks them.

    First the process itself, then those of its host, then the others. The first of several is a
    different one for each process and file, and in all as often as its share says.

    Args:
        files: the holders of each file.
        requester: the process that reads.
        hosts: the host of each process.
    """
    result: list[tuple[int, ...]] = []
    for position, (group, shares) in enumerate(zip(files.holders, files.shares, strict=True)):
        if len(group) < 2:
            result.append(group)
            continue
        near = [each for each in group if hosts[each] == hosts[requester] and each != requester]
        first = ([requester] if requester in group else []) + _rotated(near, requester)
        point = _point(requester, position)
        start = min(bisect_right([*accumulate(shares)], point), len(group) - 1)
        others = [each for each in group[start:] + group[:start] if each not in first]
        result.append((*first, *others))
    return result


def _rotated(processes: Sequence[int], requester: int) -> list[int]:
    start = requester % len(processes) if processes else 0
    return [*processes[start:], *processes[:start]]


def _point(requester: int, position: int) -> float:
    """Return a number from 0 to 1, evenly distributed over any range of processes or of files."""
    return (requester * 0x9E3779B1 + position * 0x6A09E667) % (1 << 32) / (1 << 32)
