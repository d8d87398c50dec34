"""The choice of the parts of leaves that a comparison of samples reads."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from cordwood.plan.split_arrays import Part, first_block
from cordwood.sharding.boxes import element_count

_WHOLE_BYTES = 1 << 20  # leaves up to this size are whole in a sample of many
_BLOCK_BYTES = 512 << 10  # of a larger leaf


def sample_parts(parts: Sequence[Part], limit_bytes: int) -> tuple[list[Part], set[int]]:
    """Return parts of at most about `limit_bytes` in all, and the leaves that lost some.

    Small leaves are taken whole, and one block from the middle of each large one; if that is still
    too much, other leaves are left out, spread over the checkpoint.

    Args:
        parts: all parts; those of one leaf are adjacent.
        limit_bytes: the limit. If all parts are within it, all are returned.
    """
    if sum([part.size_bytes for part in parts]) <= limit_bytes:
        return list(parts), set()
    leaves = {number: list(group) for number, group in groupby(parts, key=lambda part: part.number)}
    samples = {number: _sample_of(group) for number, group in leaves.items()}
    sizes = {n: sum([part.size_bytes for part in sample]) for n, sample in samples.items()}
    chosen = fitting(sizes, str, limit_bytes)
    lost = {n for n, sample in samples.items() if n not in chosen or sample != leaves[n]}
    return [part for n, sample in samples.items() if n in chosen for part in sample], lost


def fitting(sizes: Mapping[int, int], name: Callable[[int], str], limit_bytes: int) -> set[int]:
    """Return the leaves that fit into a limit together, spread over all by hashes of their names.

    Args:
        sizes: the bytes to read of each leaf.
        name: returns the name of a leaf; leaves of equal names and sizes are chosen each time.
        limit_bytes: the limit.
    """
    chosen = set()
    for number in sorted(sizes, key=lambda n: zlib.crc32(name(n).encode())):
        if sizes[number] <= limit_bytes:
            limit_bytes -= sizes[number]
            chosen.add(number)
    return chosen


def _sample_of(parts: list[Part]) -> list[Part]:
    """Return the parts of one leaf that are in the sample."""
    if sum([part.size_bytes for part in parts]) <= _WHOLE_BYTES:
        return parts
    part = parts[len(parts) // 2]
    if not part.divisible or part.size_bytes <= _BLOCK_BYTES:
        return [part]
    item_bytes = part.size_bytes // element_count(part.box)
    box = first_block(part.box, item_bytes, _BLOCK_BYTES)
    return [part._replace(box=box, size_bytes=element_count(box) * item_bytes)]
