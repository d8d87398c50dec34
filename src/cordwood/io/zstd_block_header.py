"""The block headers of a zstd frame (RFC 8878, section 3.1.1.2)."""

from __future__ import annotations

from typing import NamedTuple

BLOCK_HEADER_BYTES = 3
_RUN = 1  # block type RLE: one byte, repeated


class ZstdBlock(NamedTuple):
    """The contents of a block header."""

    size_bytes: int  # of the block, with its header
    is_last: bool  # the last block of its frame; a checksum may follow


def parse_block_header(header: bytes | memoryview) -> ZstdBlock:
    """Return the block that begins with a header."""
    bits = int.from_bytes(header, "little")
    is_run = bits >> 1 & 3 == _RUN
    return ZstdBlock(BLOCK_HEADER_BYTES + (1 if is_run else bits >> 3), bool(bits & 1))
