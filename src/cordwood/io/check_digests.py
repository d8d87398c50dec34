"""Checks of blocks against their digests."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.encoding.digests import DIGEST_BYTES, digest_of, digest_of_parts
from cordwood.errors import CorruptionError
from cordwood.index import Digests


def check_blocks(name: str, start: int, parts: Sequence[memoryview], digests: Digests) -> None:
    """Raise CorruptionError unless `parts`, whole blocks from `start` on, match their digests."""
    bad = bad_blocks(start, parts, digests)
    if bad:
        a, b = bad[0]
        raise CorruptionError(
            f"{name}: bytes {a} to {b} do not match the digest that was saved with them: the "
            "file is damaged; load another copy, or verify() to list every damaged block"
        )


def bad_blocks(start: int, parts: Sequence[memoryview], digests: Digests) -> list[tuple[int, int]]:
    """Return the byte ranges of the blocks in `parts` whose digests differ."""
    if len(parts) == 1:
        return _bad_blocks_of_one(start, parts[0], digests)
    block = digests.block_bytes
    number = (start - digests.start) // block
    bad: list[tuple[int, int]] = []
    pending: list[memoryview] = []
    room, at = block, start

    def close_block() -> None:
        nonlocal number, at
        size = block - room
        digest = digest_of(pending[0]) if len(pending) == 1 else digest_of_parts(pending)
        if digest != digests.values[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]:
            bad.append((at, at + size))
        number, at = number + 1, at + size

    for part in parts:
        a = 0
        while a < len(part):
            piece = part[a : a + room]
            pending.append(piece)
            a += len(piece)
            room -= len(piece)
            if room == 0:
                close_block()
                pending.clear()
                room = block
    if pending:
        close_block()
    return bad


def _bad_blocks_of_one(start: int, part: memoryview, digests: Digests) -> list[tuple[int, int]]:
    block, values = digests.block_bytes, digests.values
    offset = (start - digests.start) // block * DIGEST_BYTES
    bad: list[tuple[int, int]] = []
    for at in range(0, len(part), block):
        piece = part[at : at + block]
        if digest_of(piece) != values[offset : offset + DIGEST_BYTES]:
            bad.append((start + at, start + at + len(piece)))
        offset += DIGEST_BYTES
    return bad
