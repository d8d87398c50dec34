"""Pairs of leaves that were renamed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cordwood.comparing.renamed_leaves import UnpairedLeaf, pair_renamed


def leaves(*rows: Any, size: int = 100) -> list[UnpairedLeaf]:
    """Return leaves from pairs of a key path and contents; their numbers are 0, 1, ..."""
    return [
        UnpairedLeaf(number, tuple(path.split("/")), size, contents)
        for number, (path, contents) in enumerate(rows)
    ]


def test_equal_contents_are_a_pair() -> None:
    a = leaves(("a/kernel", 1), ("b/kernel", 2), ("c", 3))
    b = leaves(("x/weight", 2), ("y/weight", 1), ("c2", 4))
    assert pair_renamed(a, b) == [(0, 1), (1, 0)]
    assert pair_renamed(a, []) == []


def test_longer_common_ends_come_first() -> None:
    zeros = [(f"old/{i}/{name}", 0) for i in range(3) for name in ("bias", "scale")]
    a, b = leaves(*zeros), leaves(*[(path.replace("old", "new"), 0) for path, _ in reversed(zeros)])
    assert pair_renamed(a, b) == [(i, 5 - i) for i in range(6)]


def test_keys_that_a_format_has_joined() -> None:
    a = leaves(("h/0/bias", 0), ("h/1/bias", 0))
    b = leaves(("layers.1.bias", 0), ("layers.0.bias", 0))
    assert pair_renamed(a, b) == [(0, 1), (1, 0)]


def test_without_a_common_end_order_counts_if_the_numbers_agree() -> None:
    a = leaves(("0/bias", 0), ("1/bias", 0))
    assert pair_renamed(a, leaves(("0/b", 0), ("1/b", 0))) == [(0, 0), (1, 1)]
    assert pair_renamed(a, leaves(("0/b", 0))) == []
    assert pair_renamed(a, leaves(("0/b", 0), ("1/b", 0), ("2/b", 0))) == []
    assert pair_renamed(a, leaves(("x/bias", 0))) == [(0, 0)]  # the first that agrees


def test_small_leaves_need_a_name_in_common() -> None:
    assert pair_renamed(leaves(("count", 7), size=1), leaves(("step", 7), size=1)) == []
    assert pair_renamed(leaves(("a/0", 7), size=1), leaves(("b/0", 7), size=1)) == []
    assert pair_renamed(leaves(("a/count", 7), size=1), leaves(("b/count", 7), size=1)) == [(0, 0)]
    assert pair_renamed(leaves(("a/w", 7), size=0), leaves(("b/w", 7), size=0)) == []


PATHS = st.lists(st.sampled_from("abc01"), min_size=1, max_size=4).map("/".join)
ROWS = st.lists(st.tuples(PATHS, st.integers(0, 2)), max_size=12)


@given(ROWS, ROWS, st.sampled_from([1, 100]))
def test_each_leaf_is_in_one_pair(one: Any, other: Any, size: int) -> None:
    a, b = leaves(*one, size=size), leaves(*other, size=size)
    pairs = pair_renamed(a, b)
    assert pairs == sorted(pairs)
    assert all(len({pair[k] for pair in pairs}) == len(pairs) for k in (0, 1))
    assert all(a[i].contents == b[j].contents for i, j in pairs)
    assert {(j, i) for i, j in pair_renamed(b, a)} == set(pairs) or len({*one, *other}) > 1
