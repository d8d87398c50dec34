"""Division of arrays into parts that are contiguous in C order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.comparing.equal_parts import have_equal_digests
from cordwood.comparing.operands import StoredRange
from cordwood.index import Digests
from cordwood.plan.split_arrays import element_range, split_array
from cordwood.sharding.boxes import element_count, shape_of, slices


@given(
    st.lists(st.integers(0, 9), max_size=4),
    st.integers(1, 8),
    st.integers(1, 200),
    st.integers(1, 4),
)
def test_parts_follow_one_another(shape: list[int], item: int, limit: int, rows: int) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    at = 0
    for box in split_array(shape, item_bytes=item, limit_bytes=limit, rows=rows):
        start, stop = element_range(box, shape)
        assert start == at
        at = stop
        np.testing.assert_array_equal(array[slices(box)].reshape(-1), np.arange(start, stop))
        if element_count(box) * item > limit:  # no less can be had
            kept = rows if shape and shape[0] > 1 else 1
            assert all(size == 1 for size in shape_of(box)) or shape_of(box)[0] <= kept
        if rows > 1 and shape and shape_of(box)[0] != shape[0]:
            assert box.start[0] % rows == 0
    assert at == array.size


def digests(data: bytes, start: int = 0, block: int = 4) -> Digests:
    blocks = [data[i : i + block] for i in range(start, len(data), block)]
    return Digests(start, block, b"".join(part.ljust(16, b".") for part in blocks))


@pytest.mark.parametrize(
    ("one", "at", "other", "other_at", "length", "expected"),
    [
        (b"abcdefgh", 0, b"abcdefgh", 0, 8, True),
        (b"abcdefgh", 0, b"abcdefgX", 0, 8, False),
        (b"abcdefgh", 0, b"abcdefgX", 0, 4, True),
        (b"abcdefgh", 3, b"abcdefgX", 3, 1, True),
        (b"abcdefgh", 3, b"abcdefgX", 3, 2, False),
        (b"abcdefgh", 4, b"efgh", 0, 4, True),
        (b"abcdefgh", 5, b"efgh", 1, 2, True),
        (b"abcdefgh", 5, b"fgh", 0, 2, False),  # the same bytes, cut elsewhere
        (b"abcdef", 0, b"abcdef", 0, 9, False),  # past the end
        (b"abcdef", 2, b"xxxxxx", 2, 0, True),
    ],
)
def test_digests_of_split_arrays_prove_ranges_equal(
    one: bytes, at: int, other: bytes, other_at: int, length: int, expected: bool
) -> None:
    a, b = digests(one), digests(other)
    assert equal(a, at, b, other_at, length) is expected


def equal(one: Digests | None, at: int, other: Digests | None, other_at: int, length: int) -> bool:
    ranges = [StoredRange(one, at, length, 100), StoredRange(other, other_at, length, 100)]
    return have_equal_digests(*ranges)


def test_where_digests_begin_behind_a_header() -> None:
    one, other = digests(b"HHabcdefgh", 2), digests(b"HHHabcdefgh", 3)
    assert equal(one, 6, other, 7, 4)
    assert not equal(one, 0, other, 1, 2)
    assert not equal(None, 6, other, 7, 4)
    assert not equal(digests(b"abcdefgh", 0, 8), 0, digests(b"abcdefgh"), 0, 8)
