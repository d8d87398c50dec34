"""The part of a list of tasks that one of several machines runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class WorkPart(NamedTuple):
    """One of `total` parts of the tasks of a call, counted from 0."""

    number: int
    total: int


def parse_part(value: Any) -> WorkPart | None:
    """Return the part that `part=` names; None: all.

    Raises ValueError for other values than two integers (i, n) with 0 <= i < n.
    """
    if value is None:
        return None
    if isinstance(value, tuple) and len(value) == 2 and all(type(each) is int for each in value):
        part = WorkPart(*value)
        if 0 <= part.number < part.total:
            return part
    raise ValueError(
        f"part={value!r:.80}: expected (i, n), the number of a part and of all parts: parts are "
        "counted from 0, so i is 0 to n - 1"
    )


def tasks_of_part(sizes: Sequence[int], part: WorkPart | None) -> range:
    """Return the positions of the tasks of a part, given the sizes of all in bytes.

    Parts are consecutive and of about equal sizes; each task is of one part. Tasks of no size count
    as one byte.

    >>> [[*tasks_of_part([5, 5, 5, 5, 5], WorkPart(i, 2))] for i in range(2)]
    [[0, 1], [2, 3, 4]]
    """
    if part is None:
        return range(len(sizes))
    all_bytes = sum([max(1, size) for size in sizes])
    first = stop = len(sizes)
    at = 0
    for position, size in enumerate(sizes):
        middle = 2 * at + max(1, size)
        at += max(1, size)
        owner = middle * part.total // (2 * all_bytes)
        if owner >= part.number:
            first = min(first, position)
        if owner > part.number:
            stop = position
            break
    return range(first, stop)
