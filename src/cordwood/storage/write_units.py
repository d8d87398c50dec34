"""Units of writing: ranges of a few MiB, each hashed by blocks while it is written."""

from __future__ import annotations

from cordwood.encoding.digests import BLOCK_BYTES, digest_of

UNIT_BYTES = 4 << 20


def block_digests(unit: memoryview) -> bytes:
    """Return the digests of the blocks of a unit, one after another."""
    return b"".join(
        [digest_of(unit[a : a + BLOCK_BYTES]) for a in range(0, len(unit), BLOCK_BYTES)]
    )
