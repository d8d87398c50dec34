"""The part of each file that each of its holders serves, so that none serves too much. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_ROUNDS = 200
_TOLERANCE = 1e-3  # of the mean load: less than one round may change


def shares_of_holders(
    sizes: Sequence[int], holders: Sequence[tuple[int, ...]]
) -> list[tuple[float, ...]]:
    """Return the parts of each file that its holders serve, so that the loads are about even.

    Files with the same holders count as one. Each in turn is divided so that its holders get
    equal loads, as far as it can; after some rounds the largest load is close to the least one
    that is possible.

    Args:
        sizes: the bytes of each file that are asked for.
        holders: the holders of each file.

    Returns:
        For each file a part for each of its holders, of sum 1.

    >>> shares_of_holders([10, 10], [(0,), (0, 1)])
    [(1.0,), (0.0, 1.0)]
    """
    sums: dict[tuple[int, ...], int] = {}
    for size, group in zip(sizes, holders, strict=True):
        sums[group] = sums.get(group, 0) + size
    parts = {group: [total / len(group)] * len(group) for group, total in sums.items() if group}
    loads: dict[int, float] = {}
    for group, bytes_of_each in parts.items():
        for holder, part in zip(group, bytes_of_each, strict=True):
            loads[holder] = loads.get(holder, 0.0) + part
    choices = [group for group in parts if len(group) > 1]
    tolerance = _TOLERANCE * sum(sums.values()) / max(1, len(loads))
    for _ in range(_ROUNDS):
        change = 0.0
        for group in choices:
            others = [loads[each] - part for each, part in zip(group, parts[group], strict=True)]
            level = _level(others, sums[group])
            for i, holder in enumerate(group):
                part = max(0.0, level - others[i])
                change = max(change, abs(part - parts[group][i]))
                parts[group][i], loads[holder] = part, others[i] + part
        if change <= tolerance:
            break
    shares = {
        group: tuple([part / sums[group] for part in parts[group]])
        if sums[group]
        else (1 / len(group),) * len(group)
        for group in parts
    }
    return [shares.get(group, ()) for group in holders]


def _level(loads: Sequence[float], amount: float) -> float:
    """Return the level to which an amount fills the lowest of some loads."""
    ascending = sorted(loads)
    total = amount
    for count, load in enumerate(ascending, start=1):
        total += load
        if count == len(ascending) or total / count <= ascending[count]:
            return total / count
    return 0.0
