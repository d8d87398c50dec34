"""Whether two stored ranges hold the same bytes, as far as digests alone can tell. Pure."""

from __future__ import annotations

from cordwood.index import Digests

_DIGEST_BYTES = 16


def have_equal_digests(
    one: Digests | None, at: int, other: Digests | None, other_at: int, length: int
) -> bool:
    """Whether two ranges are known to be equal.

    They are where the blocks that they lie in are cut at the same places and all have the same
    digests: then what is around them is equal as well. False where that cannot be said.

    Args:
        one, other: the digests of the two sources; None: there are none.
        at, other_at: where the ranges begin, in bytes from the start of their source.
        length: of both, in bytes.
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
