"""Comparison of two stored byte ranges by their digests alone. Pure."""

from __future__ import annotations

from cordwood.index import Digests

_DIGEST_BYTES = 16


def have_equal_digests(
    one: Digests | None, at: int, other: Digests | None, other_at: int, length: int
) -> bool:
    """Return True if the digests prove that two ranges hold equal bytes.

    They do if both ranges begin at the same place within a block and all blocks that they touch
    have equal digests; then the bytes around the ranges in these blocks are equal as well. False
    means that the digests prove nothing.

    Args:
        one: the digests of the first source; None if it has none.
        at: the start of the first range, in bytes from the start of its source.
        other: the digests of the second source; None if it has none.
        other_at: the start of the second range, in bytes from the start of its source.
        length: the length of both ranges, in bytes.
    """
    if not length:
        return True
    if one is None or other is None or one.block_bytes != other.block_bytes:
        return False
    size = one.block_bytes
    first, inside = divmod(at - one.start, size)
    other_first, other_inside = divmod(other_at - other.start, size)
    if inside != other_inside or min(first, other_first) < 0:
        return False
    span = -(-(inside + length) // size) * _DIGEST_BYTES
    start, other_start = first * _DIGEST_BYTES, other_first * _DIGEST_BYTES
    a = one.values[start : start + span]
    return len(a) == span and a == other.values[other_start : other_start + span]
