"""The step that all processes replicate, and those that stay until they have."""

from __future__ import annotations

from cordwood.manager.unshared.replica_progress import ReplicaProgress, ReplicaReport
from cordwood.plan.recovery.complete_steps import CompleteStep


def step(number: int, holders: int) -> CompleteStep:
    files = dict.fromkeys(range(holders), ((0, 2),))
    return CompleteStep(number, "", 0.0, 2, files, False)


def test_the_newest_step_with_enough_copies_stays_or_else_the_newest() -> None:
    for complete, stays in (
        ([step(9, 1), step(5, 2), step(3, 3)], 5),
        ([step(9, 1), step(5, 1)], 9),
    ):
        progress = ReplicaProgress(complete, 2)
        reports = [ReplicaReport(None, ())] * 2
        assert progress.advance(10, reports, [3, 5, 9, 10]) == (10, [stays, 10])


def test_all_replicate_one_step_until_each_has_ended_with_it() -> None:
    progress = ReplicaProgress([], 2)
    nothing = ReplicaReport(None, ())
    assert progress.advance(1, [nothing, nothing], [1]) == (1, [1])
    assert progress.advance(2, [ReplicaReport(1, [1]), nothing], [1, 2]) == (1, [1])
    reports = [ReplicaReport(1, [1, 2]), ReplicaReport(1, [1])]
    assert progress.advance(3, reports, [1, 2, 3]) == (3, [1, 3])
    reports = [ReplicaReport(3, [1, 3]), ReplicaReport(3, [1])]  # the second could not
    assert progress.advance(4, reports, [1, 3, 4]) == (4, [1, 4])


def test_a_deleted_step_is_waited_for_no_longer() -> None:
    progress = ReplicaProgress([], 2)
    nothing = ReplicaReport(None, ())
    progress.advance(1, [nothing, nothing], [1])
    assert progress.advance(2, [nothing, nothing], [2]) == (2, [2])
