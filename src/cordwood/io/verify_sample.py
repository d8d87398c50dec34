"""The choice of the blocks that a verification reads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from cordwood.index import Digests


class VerifiedSources(Protocol):
    """The sources that earlier calls have verified without errors."""

    def has(self, name: str, size_bytes: int, digests: Digests) -> bool: ...

    def add(self, name: str, size_bytes: int, digests: Digests) -> None: ...


class VerifySample:
    """The choice of the blocks that a verification reads, and its counts.

    Args:
        share: the fraction of the blocks of each file to read, chosen at random; 1 is all.
        seed: the seed of the random choice.
        record: the sources to skip, and to add those to that are whole; None: there is none.
    """

    def __init__(self, share: float, seed: int | None, record: VerifiedSources | None) -> None:
        self._share = share
        self._random = random.Random(seed)  # noqa: S311
        self._record = record
        self.checked_bytes = 0
        self.previously_verified_bytes = 0  # of sources that an earlier call has verified

    def choose(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the ranges of a source that are to be read."""
        if self._share >= 1:
            return list(ranges)
        count = min(len(ranges), max(1, round(len(ranges) * self._share)))
        return [ranges[i] for i in sorted(self._random.sample(range(len(ranges)), count))]

    def was_verified(self, name: str, size_bytes: int, digests: Digests) -> bool:
        """Return True if an earlier call has verified a source without errors."""
        if self._record is None or not self._record.has(name, size_bytes, digests):
            return False
        self.previously_verified_bytes += size_bytes
        return True

    def record_verified(self, name: str, size_bytes: int, digests: Digests) -> None:
        """Add a source without errors to the record."""
        if self._record is not None and self._share >= 1:
            self._record.add(name, size_bytes, digests)
