"""The choice of the step that is copied to a mirror next."""

from __future__ import annotations

import pytest

from cordwood import EverySeconds, EverySteps
from cordwood.policies import AtSteps, EveryStep, OnPreemption, SavedStep, SavePolicy
from cordwood.policies.mirror_plan import metrics_to_mirror, step_to_mirror


@pytest.mark.parametrize(
    ("policy", "steps", "last_step", "expected"),
    [
        (EveryStep(), [], None, None),
        (EveryStep(), [10, 20, 30], None, 30),  # those between are skipped
        (EveryStep(), [30, 10, 20], 20, 30),
        (EveryStep(), [10, 20, 30], 30, None),
        (EveryStep(), [10, 20], 30, None),  # the mirror is newer
        (EverySteps(100), [100, 150], None, 150),
        (EverySteps(100), [100, 150], 100, None),
        (EverySteps(100), [150, 200, 250], 100, 250),  # 200 was not copied in time
        (AtSteps([20]), [10, 20, 30], 10, 20),
        (EverySeconds(60), [10], None, None),
        (EverySeconds(5), [10], None, 10),
        (OnPreemption(), [10], None, None),
    ],
)
def test_the_newest_step_that_the_policy_asks_for(
    policy: SavePolicy, steps: list[int], last_step: int | None, expected: int | None
) -> None:
    assert (
        step_to_mirror(steps, policy, last_step=last_step, seconds_since_last=30.0, preempted=False)
        == expected
    )


def test_a_policy_may_ask_for_the_last_step_of_a_preempted_job() -> None:
    number = step_to_mirror(
        [150],
        EverySteps(100) | OnPreemption(),
        last_step=100,
        seconds_since_last=1.0,
        preempted=True,
    )
    assert number == 150


def test_metrics_that_came_later_are_copied_to_steps_of_the_same_save() -> None:
    same = {"loss": 1.0, "accuracy": 0.5, "odd": float("nan")}
    steps = [SavedStep(n, float(n), same) for n in range(1, 6)]
    mirrored = {
        1: SavedStep(1, 1.0, {"loss": 1.0, "odd": float("nan")}),
        2: SavedStep(2, 2.0, {**same, "more": 1.0}),
        3: SavedStep(3, 99.0, {}),  # of another save
        4: SavedStep(4, 4.0, {**same, "loss": 2.0}),  # it was replaced in the root
    }
    assert metrics_to_mirror(steps, mirrored) == {1: {"accuracy": 0.5}, 4: {"loss": 1.0}}
