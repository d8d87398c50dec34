"""Sets of positions in a list, as runs: few values for many positions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

PositionRuns: TypeAlias = tuple[tuple[int, int], ...]  # start and stop of each, ascending


def runs_of(positions: Iterable[int]) -> PositionRuns:
    """Return positions as runs.

    >>> runs_of([4, 0, 1, 2])
    ((0, 3), (4, 5))
    """
    return join_runs([(position, position + 1) for position in positions])


def join_runs(runs: Iterable[tuple[int, int]]) -> PositionRuns:
    """Return the positions of any runs, which may overlap.

    >>> join_runs([(2, 5), (0, 3), (7, 8)])
    ((0, 5), (7, 8))
    """
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(runs):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        elif start < stop:
            joined.append((start, stop))
    return tuple(joined)


def runs_without(runs: PositionRuns, count: int) -> PositionRuns:
    """Return the positions below `count` that are in no run.

    >>> runs_without(((1, 3), (4, 5)), 6)
    ((0, 1), (3, 4), (5, 6))
    """
    edges = [0, *[edge for run in runs for edge in run], count]
    return tuple(
        [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b],
    )


def runs_to_numbers(runs: PositionRuns) -> list[int]:
    """Return runs as numbers: the gap before each, and its length.

    >>> runs_to_numbers(((0, 3), (4, 5)))
    [0, 3, 1, 1]
    """
    numbers: list[int] = []
    end = 0
    for start, stop in runs:
        numbers += [start - end, stop - start]
        end = stop
    return numbers


def runs_from_numbers(numbers: Sequence[int]) -> PositionRuns:
    """Return the runs that `runs_to_numbers` was given."""
    runs: list[tuple[int, int]] = []
    end = 0
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        runs.append((end + gap, end + gap + length))
        end += gap + length
    return tuple(runs)
