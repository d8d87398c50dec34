"""Digests of the blocks of a file: xxh3-128 per block, packed one after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import xxhash

from cordwood.errors import CorruptionError, LimitError
from cordwood.index import Digests

BLOCK_BYTES = 1 << 20
DIGEST_BYTES = 16
MAX_BLOCK_BYTES = 64 << 20  # blocks are read whole: this limits the memory that a file can claim

Buffer: TypeAlias = bytes | bytearray | memoryview


def digest_of(block: Buffer) -> bytes:
    """Return the digest of one block. Hashing releases the GIL."""
    return xxhash.xxh3_128_digest(block)


def digest_of_parts(parts: Iterable[memoryview]) -> bytes:
    """Return the digest of a block that is in several parts of memory."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return state.digest()


def block_count(size_bytes: int, block_bytes: int) -> int:
    """Return the number of blocks that cover `size_bytes`."""
    return -(-size_bytes // block_bytes)


def digests_of(chunks: Sequence[Buffer], *, start: int, block_bytes: int = BLOCK_BYTES) -> Digests:
    """Return the digests of `chunks`, placed one after another from file offset `start` on."""
    values = bytearray()
    state = xxhash.xxh3_128()
    room = block_bytes
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while len(view):
            part = view[:room]
            state.update(part)
            view = view[len(part) :]
            room -= len(part)
            if room == 0:
                values += state.digest()
                state.reset()
                room = block_bytes
    if room != block_bytes:
        values += state.digest()
    return Digests(start, block_bytes, bytes(values))


def check_coverage(name: str, size_bytes: int, digests: Digests) -> None:
    """Raise unless there is exactly one digest for each block of a file of `size_bytes`.

    Raises:
        CorruptionError: the counts differ; the file grew or shrank.
        LimitError: the block size is not in 1 to MAX_BLOCK_BYTES.
    """
    if not 0 < digests.block_bytes <= MAX_BLOCK_BYTES:
        raise LimitError(
            f"{name}: digest blocks of {digests.block_bytes} bytes; "
            f"expected 1 to {MAX_BLOCK_BYTES} (MAX_BLOCK_BYTES)"
        )
    expected = block_count(max(0, size_bytes - digests.start), digests.block_bytes)
    if digests.start < 0 or len(digests.values) != expected * DIGEST_BYTES:
        raise CorruptionError(
            f"{name}: expected {expected} block digests for its {size_bytes} bytes "
            f"(blocks of {digests.block_bytes} from byte {digests.start}), "
            f"found {len(digests.values) / DIGEST_BYTES:g}: the file grew, shrank or is damaged"
        )
