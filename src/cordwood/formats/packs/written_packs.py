"""The files that a process has written or shared, as it reports them to process 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cordwood.index import HeaderDigest
from cordwood.plan.packs import Gap, PackPart


class WrittenPack(NamedTuple):
    """A file that was written or linked, as process 0 needs it for the index: JSON values."""

    name: str
    size_bytes: int
    header_bytes: int
    digest: str  # of the header, in hexadecimal digits
    # A part is its cell and the runs of its leaves, a gap its size; None: as `packs_of_all` has it.
    parts: Sequence[Sequence[int] | int] | None


def written_pack(
    name: str, size_bytes: int, header: HeaderDigest, parts: Sequence[PackPart | Gap] | None
) -> WrittenPack:
    """Return a file that was written or linked; for `parts` see `WrittenPack`."""
    rows = None if parts is None else list(map(part_row, parts))
    return WrittenPack(name, size_bytes, header.header_bytes, header.digest.hex(), rows)


def part_row(part: PackPart | Gap) -> list[int] | int:
    """Return the form of a part in `WrittenPack.parts`."""
    return part.size_bytes if isinstance(part, Gap) else [part.cell, *_leaf_runs(part.leaves)]


def _leaf_runs(column: Sequence[int]) -> list[int]:
    """Return the runs of consecutive leaves: [first, count, first, count, ...]."""
    spans: list[int] = []
    end = -1
    for leaf in column:
        if leaf == end:
            spans[-1] += 1
        else:
            spans += (leaf, 1)
        end = leaf + 1
    return spans
