"""The order in which processes ask the holders of files: near first, and even loads."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.plan.recovery.holder_order import holders_of_files, order_holders
from cordwood.plan.recovery.holder_shares import shares_of_holders
from cordwood.plan.recovery.position_runs import runs_of


def test_the_own_root_comes_first_then_the_host_then_the_others() -> None:
    everywhere = ((0, 1),)
    files = holders_of_files(dict.fromkeys(range(6), everywhere), [10])
    (order,) = order_holders(files, 3, ["a", "a", "b", "b", "b", "c"])
    assert order[0] == 3
    assert set(order[1:3]) == {2, 4}
    assert sorted(order) == [0, 1, 2, 3, 4, 5]


def test_a_file_that_nobody_holds_has_no_holders() -> None:
    files = holders_of_files({0: ((1, 2),)}, [10, 10])
    assert order_holders(files, 1, "ab") == [(), (0,)]


def test_requesters_of_one_file_divide_among_its_holders() -> None:
    files = holders_of_files({0: ((0, 1),), 1: ((0, 1),)}, [10])
    hosts = range(1002)
    firsts = [order_holders(files, requester, hosts)[0][0] for requester in range(2, 1002)]
    assert abs(firsts.count(0) - 500) < 10


@given(
    st.lists(st.sets(st.integers(0, 5)), max_size=6),
    st.integers(0, 5),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
)
def test_each_holder_is_asked_once(files: list[set[int]], requester: int, hosts: list[int]) -> None:
    positions = {process: runs_of(files[process]) for process in range(len(files))}
    holders = holders_of_files(positions, [1] * 6)
    for position, order in enumerate(order_holders(holders, requester, hosts)):
        assert sorted(order) == [each for each in range(len(files)) if position in files[each]]
        distances = [(each != requester, hosts[each] != hosts[requester]) for each in order]
        assert distances == sorted(distances)


GROUPS = st.sets(st.integers(0, 5), min_size=1, max_size=3).map(lambda each: tuple(sorted(each)))


@given(st.lists(st.tuples(st.integers(0, 1000), GROUPS), min_size=1, max_size=6))
def test_no_holder_serves_much_more_than_it_must(files: list[tuple[int, tuple[int, ...]]]) -> None:
    sizes, groups = [size for size, _ in files], [group for _, group in files]
    shares = shares_of_holders(sizes, groups)
    loads = dict.fromkeys(range(6), 0.0)
    for size, group, parts in zip(sizes, groups, shares, strict=True):
        assert sum(parts) == pytest.approx(1)
        for holder, part in zip(group, parts, strict=True):
            loads[holder] += part * size
    assert max(loads.values()) <= 1.02 * least_possible_load(sizes, groups) + 1e-6


def least_possible_load(sizes: list[int], groups: list[tuple[int, ...]]) -> float:
    """Return the largest load that some files force upon all of their holders."""
    files = range(len(sizes))
    subsets = chain.from_iterable(combinations(files, count) for count in range(1, len(sizes) + 1))
    return max(
        sum(sizes[each] for each in subset) / len({h for each in subset for h in groups[each]})
        for subset in subsets
    )
