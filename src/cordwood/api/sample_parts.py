"""The parts of leaves that a comparison reads: all, or a sample of limited size."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from cordwood.index import Box
from cordwood.plan.sample_boxes import first_block
from cordwood.sharding.boxes import element_count

_WHOLE_BYTES = 1 << 20  # leaves up to this size are sampled whole
_BLOCK_BYTES = 512 << 10  # of a larger leaf


class Part(NamedTuple):
    """A box of a pair of leaves to read and compare."""

    i: int  # the position of the leaf in the index of a
    j: int  # the same in b
    box: Box
    size_bytes: int
    divisible: bool = True  # False for chunks that are decoded whole


def sample_parts(parts: Sequence[Part], limit_bytes: int) -> tuple[list[Part], set[int]]:
    """Return parts of at most about `limit_bytes` in all, and the leaves of a that lost some.

    Small leaves are taken whole, and one block from the middle of each large one; if that is still
    too much, other leaves are left out, spread over the checkpoint.

    Args:
        parts: all parts; those of one leaf are adjacent.
        limit_bytes: the limit. If all parts are within it, all are returned.
    """
    if sum([part.size_bytes for part in parts]) <= limit_bytes:
        return list(parts), set()
    leaves = {i: list(group) for i, group in groupby(parts, key=lambda part: part.i)}
    samples = {i: _sample_of(group) for i, group in leaves.items()}
    room = limit_bytes
    chosen = set()
    for i in sorted(samples, key=lambda i: zlib.crc32(str(i).encode())):
        size_bytes = sum([part.size_bytes for part in samples[i]])
        if size_bytes <= room:
            room -= size_bytes
            chosen.add(i)
    incomplete = {i for i in leaves if i not in chosen or samples[i] != leaves[i]}
    return [part for i in samples if i in chosen for part in samples[i]], incomplete


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
