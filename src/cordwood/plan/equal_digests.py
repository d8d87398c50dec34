"""Comparison of two stored byte ranges by their digests alone. Pure."""

from __future__ import annotations

from typing import NamedTuple

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
    key = digest_key(one, at, length)
    return key is not None and key == digest_key(other, other_at, length)


class DigestKey(NamedTuple):
    """The digests of the blocks of a range: ranges with equal keys and lengths have equal bytes."""

    inside: int  # the offset of the range in its first block
    block_bytes: int
    values: bytes


def digest_key(digests: Digests | None, at: int, length: int) -> DigestKey | None:
    """Return the digests of the blocks that a range touches; None if not all have one.

    Args:
        digests: the digests of the source; None if it has none.
        at: the start of the range, in bytes from the start of its source.
        length: its length in bytes.
    """
    if digests is None:
        return None
    size = digests.block_bytes
    first, inside = divmod(at - digests.start, size)
    if first < 0:
        return None
    span = -(-(inside + length) // size) * _DIGEST_BYTES
    values = digests.values[first * _DIGEST_BYTES : first * _DIGEST_BYTES + span]
    return DigestKey(inside, size, values) if len(values) == span else None


def have_unequal_digests(
    one: Digests | None,
    at: int,
    size_bytes: int,
    other: Digests | None,
    other_at: int,
    other_size_bytes: int,
    length: int,
) -> bool:
    """Return True if the digests prove that two ranges hold different bytes.

    They do if a block that lies completely in its range differs from the block at the same place
    of the other range. Arguments are those of `have_equal_digests`, and the sizes of the sources,
    which give the length of the last block. False means that the digests prove nothing.
    """
    if not length:
        return False
    a, b = digest_key(one, at, length), digest_key(other, other_at, length)
    if a is None or b is None or a[:2] != b[:2]:
        return False
    first = 1 if a.inside else 0
    last = (a.inside + length) // a.block_bytes
    if at + length == size_bytes and other_at + length == other_size_bytes:
        last = len(a.values) // _DIGEST_BYTES  # the last blocks end with the ranges
    part = slice(first * _DIGEST_BYTES, last * _DIGEST_BYTES)
    return a.values[part] != b.values[part]
