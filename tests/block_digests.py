"""The digests of bytes in memory, as a file with them has in its header."""

from __future__ import annotations

from cordwood.encoding.digests import BLOCK_BYTES, BytesLike, digest_of
from cordwood.index import Digests


def digests_of(data: BytesLike, *, start: int, block_bytes: int = BLOCK_BYTES) -> Digests:
    """Return the digests of the blocks of `data`, which begins at file offset `start`."""
    view = memoryview(data).cast("B")
    blocks = range(0, len(view), block_bytes)
    values = b"".join([digest_of(view[at : at + block_bytes]) for at in blocks])
    return Digests(start, block_bytes, values)
