"""Equal and unequal ranges, as far as digests of blocks prove it."""

from __future__ import annotations

import pytest

from cordwood.comparing.equal_parts import have_equal_digests, have_unequal_digests
from cordwood.comparing.operands import StoredRange
from cordwood.index import Digests
from tests.block_digests import digests_of

BLOCK = 4


def digests(data: bytes, start: int = 0) -> Digests:
    return digests_of(data[start:], start=start, block_bytes=BLOCK)


def stored(data: bytes, at: int, length: int) -> StoredRange:
    return StoredRange(digests(data), at, length, len(data))


def equal(one: bytes, at: int, other: bytes, other_at: int, length: int) -> bool:
    return have_equal_digests(stored(one, at, length), stored(other, other_at, length))


def unequal(one: bytes, at: int, other: bytes, other_at: int, length: int) -> bool:
    return have_unequal_digests(stored(one, at, length), stored(other, other_at, length))


@pytest.mark.parametrize(
    ("one", "at", "other", "other_at", "length", "proof"),
    [
        (b"abcdefgh", 0, b"abcdefgh", 0, 8, "equal"),
        (b"abcdefgh", 0, b"abcdefgX", 0, 8, "unequal"),
        (b"abcdefgh", 0, b"abcdefgX", 0, 4, "equal"),
        (b"abcdefgh", 4, b"efgh", 0, 4, "equal"),  # at another block
        (b"abcdefgh", 2, b"abcdefgX", 2, 4, None),  # the byte that differs is outside
        (b"abcdefghij", 2, b"abcdXfghij", 2, 6, "unequal"),  # the second block is all inside
        (b"abcdefghij", 2, b"cdefghij", 0, 6, None),  # other places within the blocks
        (b"abcdef", 0, b"abcdeX", 0, 6, "unequal"),  # the last block is short, and all inside
        (b"abcdef", 0, b"abcdXf", 0, 5, None),  # the last block is short, and not all inside
        (b"abcdef", 4, b"efgh", 0, 2, None),  # blocks of other lengths
        (b"abcdef", 3, b"abcdef", 3, 0, "equal"),  # nothing
    ],
)
def test_digests_prove_ranges_equal_or_unequal(
    one: bytes, at: int, other: bytes, other_at: int, length: int, proof: str | None
) -> None:
    assert equal(one, at, other, other_at, length) is (proof == "equal")
    assert unequal(one, at, other, other_at, length) is (proof == "unequal")
    assert equal(other, other_at, one, at, length) is (proof == "equal")
    assert unequal(other, other_at, one, at, length) is (proof == "unequal")


def test_without_digests_nothing_is_proven() -> None:
    some = stored(b"abcd", 0, 4)
    none = some._replace(digests=None)
    assert not have_equal_digests(some, none)
    assert not have_unequal_digests(some, none)
    others = some._replace(digests=digests_of(b"abcX", start=0, block_bytes=2))
    assert not have_unequal_digests(some, others)
    assert not have_unequal_digests(some._replace(digests=digests(b"abcd", start=2)), some)
