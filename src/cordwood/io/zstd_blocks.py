"""The blocks of a zstd frame (RFC 8878, section 3.1.1.2): each begins with a head of its size."""

from __future__ import annotations

from typing import NamedTuple

BLOCK_HEADER_BYTES = 3
_RUN = 1  # of one byte, repeated


class ZstdBlock(NamedTuple):
    """What the head of a block tells."""

    size_bytes: int  # with the head
    is_last: bool  # of its frame; a checksum may follow


def parse_block_header(head: bytes | memoryview) -> ZstdBlock:
    """The block that begins with a head."""
    bits = int.from_bytes(head, "little")
    is_run = bits >> 1 & 3 == _RUN
    return ZstdBlock(BLOCK_HEADER_BYTES + (1 if is_run else bits >> 3), bool(bits & 1))
