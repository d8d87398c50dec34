"""CRC-32C (Castagnoli), the checksum at the end of OCDBT nodes and of the indexes of zarr shards.

RFC 3720, appendix B.4.
"""

from __future__ import annotations

import struct

_POLYNOMIAL = 0x82F63B78  # reversed


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def has_valid_crc32c(data: bytes) -> bool:
    """Return whether the last four bytes are the CRC-32C of the others, little-endian."""
    if len(data) < 4:
        return False
    table, state = _TABLE, 0xFFFFFFFF
    for byte in data[:-4]:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    (checksum,) = struct.unpack("<I", data[-4:])
    return bool(checksum == state ^ 0xFFFFFFFF)
