"""The tasks of a verification: ranges of data files, or a whole checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

from cordwood.formats.load_format import data_file_lister_of
from cordwood.formats.table import PACKS
from cordwood.io.find_damage import BadRanges, bad_ranges_in
from cordwood.io.source_digests import SourceDigests
from cordwood.io.stale_handles import retry_stale
from cordwood.io.verify_sample import VerifySample
from cordwood.plan.source_ranges import SourceRange
from cordwood.storage.locations import Location
from cordwood.verifying.verify_one import verify_one
from cordwood.verifying.verify_result import Verification


class BlockChoice(NamedTuple):
    """The share of the blocks to check, and the seed of the choice; None: another in each call."""

    share: float = 1.0
    seed: int | None = None


class CheckedRanges(NamedTuple):
    """The result of a `CheckRanges`: the damage in its ranges, and the bytes that were read."""

    bad: BadRanges
    checked_bytes: int


class CheckRanges(NamedTuple):
    """The check of ranges of data files, without the index of their checkpoint.

    Attributes:
        location: the checkpoint.
        ranges: the ranges.
        choice: the blocks to check.
    """

    location: Location
    ranges: tuple[SourceRange, ...]
    choice: BlockChoice

    @property
    def size_bytes(self) -> int:
        return int(sum([part.stop - part.start for part in self.ranges]) * self.choice.share)

    def run(self) -> CheckedRanges:
        return retry_stale(self._check)

    def to_json(self, result: CheckedRanges) -> list[Any] | None:
        return None if result.bad.is_damage else []

    def _check(self) -> CheckedRanges:
        sources = [part.source for part in self.ranges]
        within = [(part.start, part.stop) for part in self.ranges]
        sample = VerifySample(*self.choice, record=None)
        with ExitStack() as stack:
            files, fetch = data_file_lister_of(PACKS).open_data_files(self.location, sources)
            for file in files:
                stack.callback(file.close)
            digests = SourceDigests(sources, fetch)
            bad = bad_ranges_in(
                sources, files, digests, skip_broken=True, sample=sample, within=within
            )
        return CheckedRanges(bad, sample.checked_bytes)


class VerifyWhole(NamedTuple):
    """The verification of a whole checkpoint, of a format that is not divided.

    Attributes:
        location: the checkpoint.
        choice: the blocks to check.
        format: the name of its format, if the caller gave one.
        max_bytes: the limit for the decompressed size of a compressed file.
        size_bytes: its size.
        stamps: of its files: what a journal says of others does not count.
    """

    location: Location
    choice: BlockChoice
    format: str | None
    max_bytes: int | None
    size_bytes: int
    stamps: str

    def run(self) -> Verification:
        sample = VerifySample(*self.choice, record=None)
        location, format, max_bytes = self.location, self.format, self.max_bytes
        result = retry_stale(
            lambda: verify_one(location, sample, format=format, max_bytes=max_bytes)
        )
        return result if self.choice.share >= 1 else result.of_part(sample.checked_bytes)

    def to_json(self, result: Verification) -> list[Any]:
        return list(result)
