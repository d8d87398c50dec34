"""The processes that hold the replicas of the files of each process. Pure.

All files of a process have their replicas at the same processes: the fewer sets of processes hold
all copies of some file, the fewer pairs of failures lose one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from cordwood.plan.recovery.position_runs import PositionRuns


class ReplicaPlacement(NamedTuple):
    """The processes that hold replicas.

    Attributes:
        holders: for each process, those that hold replicas of its files.
        shared_domains: the processes of which a replica is in their own failure domain, or two are
            in one, as there are too few domains.
        replicas: the number of replicas of each file: less than was asked for if there are fewer
            other processes.
    """

    holders: tuple[tuple[int, ...], ...]
    shared_domains: tuple[int, ...]
    replicas: int


def place_replicas(domains: Sequence[Hashable], replicas: int) -> ReplicaPlacement:
    """Return the processes that hold the replicas of the files of each process.

    Every process computes the same placement. Each copy of a file is in another failure domain if
    there are enough, and otherwise at least at another process. If no domain is too large, every
    process holds the replicas of exactly `replicas` others, and the processes form rings along
    which the load can move when some are lost.

    Args:
        domains: the failure domain of each process.
        replicas: how many replicas of each file to place.
    """
    count = len(domains)
    replicas = min(replicas, count - 1)
    first = {domain: i for i, domain in reversed([*enumerate(domains)])}
    order = sorted(range(count), key=lambda process: (first[domains[process]], process))
    largest = max(Counter(domains).values(), default=0)
    if (replicas + 1) * largest <= count:
        # Domains are blocks of `order`, none longer than the shift: it always leads to another.
        holders: list[tuple[int, ...]] = [()] * count
        for place, process in enumerate(order):
            shifts = range(largest, (replicas + 1) * largest, largest)
            holders[process] = tuple([order[(place + shift) % count] for shift in shifts])
        return ReplicaPlacement(tuple(holders), (), replicas)
    return _place_one_by_one(domains, order, replicas)


def _place_one_by_one(
    domains: Sequence[Hashable], order: Sequence[int], replicas: int
) -> ReplicaPlacement:
    """Choose for each process those of other domains that hold the fewest replicas so far."""
    count = len(order)
    loads = [0] * count
    holders: list[tuple[int, ...]] = [()] * count
    shared: list[int] = []
    for place, process in enumerate(order):
        used = {domains[process]}
        chosen: list[int] = []
        ring = [order[(place + shift) % count] for shift in range(1, count)]
        for _ in range(replicas):
            free = [each for each in ring if each not in chosen]
            distant = [each for each in free if domains[each] not in used]
            best = min(distant or free, key=lambda each: loads[each])
            chosen.append(best)
            used.add(domains[best])
            loads[best] += 1
            if not distant and process not in shared:
                shared.append(process)
        holders[process] = tuple(chosen)
    return ReplicaPlacement(tuple(holders), tuple(sorted(shared)), replicas)


def replicas_to_fetch(
    files: Mapping[int, PositionRuns], placement: ReplicaPlacement, process: int
) -> dict[int, int]:
    """Return the files of which a process is to hold replicas, each with the process to ask.

    Args:
        files: the positions of the files that each process has written, or links.
        placement: the processes that hold replicas.
        process: the one that is to hold them.
    """
    present = {each for start, stop in files.get(process, ()) for each in range(start, stop)}
    return {
        position: writer
        for writer, holders in enumerate(placement.holders)
        if process in holders
        for start, stop in files.get(writer, ())
        for position in range(start, stop)
        if position not in present
    }
