"""Recovery in a large job on paper, as benchmarks/peer_plans.md has it for 1,024 processes."""

from __future__ import annotations

import pytest

from benchmarks.peer_plans import LOST, MESH, PACK_BYTES, PACKS, SAME, losses, recover
from cordwood.plan.recovery.replica_placement import place_replicas

PROCESSES = 128


@pytest.mark.parametrize(("name", "lost"), losses(PROCESSES))
def test_no_holder_serves_much_more_than_it_must(name: str, lost: list[int]) -> None:
    for readers in (SAME, MESH):
        recovery = recover(PROCESSES, lost, readers, name=name)
        assert not recovery.missing_files
        total = recovery.own_bytes + recovery.served_bytes
        assert total == pytest.approx(PROCESSES * PACKS * PACK_BYTES)
        assert recovery.most <= 1.1 * recovery.least_possible
        assert recovery.peak_bytes < 2e6
    assert len(lost) == LOST


def test_the_same_processes_read_their_own_roots() -> None:
    recovery = recover(PROCESSES, (), SAME, name="nothing")
    assert recovery.served_bytes == 0


def test_a_file_that_was_at_two_lost_roots_is_missing() -> None:
    (other,) = place_replicas([process // 8 for process in range(PROCESSES)], 1).holders[5]
    recovery = recover(PROCESSES, [5, other], MESH, name="both")
    assert recovery.missing_files == PACKS
