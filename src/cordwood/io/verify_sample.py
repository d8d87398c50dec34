"""The blocks that a verification reads: all, a random share, or those not verified before."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from cordwood.encoding.digests import digest_of
from cordwood.index import Digests

_HEAD = b"cordwood verify: found whole\n"  # the first line of a record, by which it is recognized


class VerifySample:
    """The choice of the blocks that a verification reads, and its counts.

    Args:
        share: the fraction of the blocks of each file to read, chosen at random; 1 is all.
        seed: the seed of the random choice.
        record: a file with one line for each source that was verified without errors, so that a
            later call can skip it; None: there is none.

    Raises ValueError if `record` is a file of another kind, which would be lost.
    """

    def __init__(self, share: float, seed: int | None, record: str | None) -> None:
        self._share = share
        self._random = random.Random(seed)  # noqa: S311
        self._record = record
        self._known = _lines(record)
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
        if _mark(name, size_bytes, digests) not in self._known:
            return False
        self.previously_verified_bytes += size_bytes
        return True

    def record_verified(self, name: str, size_bytes: int, digests: Digests) -> None:
        """Add a source without errors to the record."""
        if self._record is None or self._share < 1:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._record, flags, 0o644)
        try:
            head = b"" if os.fstat(fd).st_size else _HEAD
            os.write(fd, head + f"{_mark(name, size_bytes, digests)}\n".encode())
        finally:
            os.close(fd)

    def delete_record(self) -> None:
        """Delete the record once all is verified, so that the next call starts again."""
        if self._record is not None and os.path.exists(self._record):
            os.unlink(self._record)


def _lines(record: str | None) -> frozenset[str]:
    if record is None or not os.path.exists(record):
        return frozenset()
    with open(record, "rb") as file:
        data = file.read(len(_HEAD))
        if data not in (b"", _HEAD):
            raise ValueError(
                f"resume={record!r}: expected a new file, or one that an interrupted verify has "
                "left; this is another file, and was left as it is: name another path"
            )
        data += file.read()
    end = data.rfind(b"\n") + 1
    if end < len(data):  # drop a partial last line, or the next line would be appended to it
        os.truncate(record, end)
    return frozenset(data[len(_HEAD) : end].decode(errors="replace").split("\n")) - {""}


def _mark(name: str, size_bytes: int, digests: Digests) -> str:
    """Return the line of the record for a source: a digest of its name, size and digests."""
    what = f"{name}\0{size_bytes}\0{digests.start}\0".encode(errors="surrogatepass")
    return digest_of(what + digests.values).hex()


_SAMPLING: ContextVar[VerifySample | None] = ContextVar("sampling", default=None)


def current_sample() -> VerifySample | None:
    """Return the sample of the verification that this thread belongs to."""
    return _SAMPLING.get()


@contextmanager
def verify_sampling(chosen: VerifySample) -> Iterator[VerifySample]:
    """Files that are checked in the block are checked as far as `chosen` says."""
    token = _SAMPLING.set(chosen)
    try:
        yield chosen
    finally:
        _SAMPLING.reset(token)
