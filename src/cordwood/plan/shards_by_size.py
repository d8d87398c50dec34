"""The distribution of arrays over files of at most a given size. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def shards_by_size(sizes: Sequence[int], max_bytes: int | None) -> list[list[int]]:
    """Return the numbers of the arrays in each file, in their order; at least one file.

    Args:
        sizes: the sizes of the arrays, in bytes.
        max_bytes: the limit for one file; a larger array gets its own file. None: no limit.

    >>> shards_by_size([3, 3, 9, 1], 6)
    [[0, 1], [2], [3]]
    """
    shards: list[list[int]] = [[]]
    total = 0
    for number, size in enumerate(sizes):
        if max_bytes is not None and shards[-1] and total + size > max_bytes:
            shards.append([])
            total = 0
        shards[-1].append(number)
        total += size
    return shards
