"""The placement of replicas: other domains, even loads, and problems where there are too few."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.plan.recovery.replica_placement import place_replicas, replicas_to_fetch


def test_replicas_go_to_other_domains_in_rings() -> None:
    placement = place_replicas(["a", "a", "b", "b", "c", "c"], 1)
    assert placement.holders == ((2,), (3,), (4,), (5,), (0,), (1,))
    assert not placement.shared_domains


def test_two_replicas_are_in_two_domains() -> None:
    placement = place_replicas([0, 1, 2, 3], 2)
    assert placement.holders == ((1, 2), (2, 3), (3, 0), (0, 1))


def test_processes_of_a_domain_need_not_be_neighbours() -> None:
    assert place_replicas(["a", "b", "a", "b"], 1).holders == ((1,), (0,), (3,), (2,))


def test_a_single_domain_holds_its_own_replicas() -> None:
    placement = place_replicas(["host"] * 3, 1)
    assert placement.holders == ((1,), (2,), (0,))
    assert placement.shared_domains == (0, 1, 2)


def test_a_large_domain_spreads_over_the_small_ones() -> None:
    placement = place_replicas(["big"] * 6 + ["x", "y"], 1)
    assert not placement.shared_domains
    assert Counter(each for holders in placement.holders[:6] for each in holders) == {6: 3, 7: 3}


@pytest.mark.parametrize(("count", "replicas"), [(1, 0), (3, 2)])
def test_more_replicas_than_other_processes_are_not_placed(count: int, replicas: int) -> None:
    placement = place_replicas(range(count), 5)
    assert placement.replicas == replicas
    assert all(len(set(holders)) == replicas for holders in placement.holders)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=24), st.integers(0, 4))
def test_copies_are_in_as_many_domains_as_can_be(domains: list[int], replicas: int) -> None:
    placement = place_replicas(domains, replicas)
    assert placement == place_replicas(domains, replicas)
    count = min(replicas, len(domains) - 1)
    assert placement.replicas == count
    for process, holders in enumerate(placement.holders):
        assert len({process, *holders}) == 1 + count
        copies = {domains[each] for each in (process, *holders)}
        assert len(copies) == min(1 + count, len(set(domains)))
        assert (process in placement.shared_domains) == (len(copies) < 1 + count)
    loads = Counter(each for holders in placement.holders for each in holders)
    largest = max(Counter(domains).values())
    if (count + 1) * largest <= len(domains):
        assert count == 0 or set(loads.values()) == {count}


def test_1024_processes_are_placed_evenly() -> None:
    placement = place_replicas([process // 8 for process in range(1024)], 1)
    loads = Counter(holder for (holder,) in placement.holders)
    assert set(loads.values()) == {1}
    assert all(a // 8 != b // 8 for a, (b,) in enumerate(placement.holders))


def test_a_process_fetches_what_it_is_to_hold_and_lacks() -> None:
    placement = place_replicas(range(3), 1)
    files = {0: ((0, 2),), 1: ((1, 3),), 2: ((3, 5),)}
    assert replicas_to_fetch(files, placement, 0) == {3: 2, 4: 2}
    assert replicas_to_fetch(files, placement, 1) == {0: 0}
    assert replicas_to_fetch({}, placement, 1) == {}
