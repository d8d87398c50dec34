"""Policies of which steps to keep: each alone, joined, and the plan from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood import KeepBest, KeepEvery, KeepLast
from cordwood.policies import (
    KeepAll,
    KeepAt,
    KeepPolicy,
    KeepWithin,
    SavedStep,
)
from cordwood.policies.best_step import best_policy
from cordwood.policies.keep_policies import as_keep_policy
from cordwood.policies.retention_plan import plan_retention
from cordwood.results import PlannedStep

NOW = 1000.0
LOSSES = {0: 9.0, 10: 1.0, 20: math.nan, 30: 1.0, 40: 5.0}
STEPS = [SavedStep(step, 10.0 * step, {"loss": loss}) for step, loss in LOSSES.items()]

values = st.floats(allow_nan=True, width=16)
runs = st.lists(
    st.builds(
        SavedStep,
        st.integers(0, 50),
        st.floats(-100, 2000),
        st.dictionaries(st.sampled_from(["loss", "accuracy"]), values),
    ),
    unique_by=lambda step: step.step,
    max_size=12,
).map(lambda steps: sorted(steps, key=lambda step: step.step))
counts = st.integers(1, 6)
single: st.SearchStrategy[KeepPolicy] = st.one_of(
    st.just(KeepAll()),
    st.builds(KeepLast, counts),
    st.builds(KeepEvery, counts),
    st.builds(KeepAt, st.sets(st.integers(0, 50))),
    st.builds(KeepWithin, st.floats(1, 1000)),
    st.builds(
        KeepBest, counts, st.sampled_from(["loss", "accuracy"]), st.sampled_from(["min", "max"])
    ),
)
policies = st.recursive(
    single,
    lambda parts: (
        st.tuples(parts, parts).map(lambda pair: pair[0] | pair[1])
        | st.tuples(parts, parts).map(lambda pair: pair[0] & pair[1])
    ),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (KeepAll(), dict.fromkeys(LOSSES, "all are kept")),
        (KeepLast(2), {30: "of the last 2", 40: "of the last 2"}),
        (KeepLast(9), dict.fromkeys(LOSSES, "of the last 9")),
        (KeepEvery(20), dict.fromkeys((0, 20, 40), "a multiple of 20")),
        (KeepAt([10, 11]), {10: "asked for"}),
        (KeepWithin(700), {30: "of the last 700 s", 40: "of the last 700 s"}),
        (KeepBest(1, "loss"), {30: "loss 1, of the best 1"}),
        (
            KeepBest(3, "loss"),
            {
                10: "loss 1, of the best 3",
                30: "loss 1, of the best 3",
                40: "loss 5, of the best 3",
            },
        ),
        (KeepBest(1, "loss", "max"), {0: "loss 9, of the best 1"}),
        (KeepBest(1, "accuracy"), {}),
        (KeepLast(1) | KeepAt([40]), {40: "of the last 1; asked for"}),
        (
            KeepLast(3) & KeepEvery(20),
            dict.fromkeys((20, 40), "of the last 3 and a multiple of 20"),
        ),
    ],
)
def test_a_policy_keeps_steps_with_its_reasons(
    policy: KeepPolicy, expected: Mapping[int, str]
) -> None:
    assert policy.kept(STEPS, NOW) == expected


@given(policies, policies, runs)
def test_joining_is_union_and_intersection(
    a: KeepPolicy, b: KeepPolicy, steps: list[SavedStep]
) -> None:
    one, other = set(a.kept(steps, NOW)), set(b.kept(steps, NOW))
    assert set((a | b).kept(steps, NOW)) == one | other
    assert set((a & b).kept(steps, NOW)) == one & other
    assert one <= {step.step for step in steps}


@given(policies, runs, st.sets(st.integers(0, 50), max_size=3))
def test_a_plan_keeps_the_newest_and_what_is_spared(
    policy: KeepPolicy, steps: list[SavedStep], others: set[int]
) -> None:
    spared = dict.fromkeys(others, "pinned")
    plan = plan_retention(steps, policy, time_now=NOW, spared=spared)
    numbers = {step.step for step in steps}
    assert [row.step for row in plan.steps] == sorted(numbers | others)
    newest = {max(numbers)} if numbers else set()
    assert set(plan.kept) == set(policy.kept(steps, NOW)) | newest | others
    assert set(plan.deleted) == numbers - set(plan.kept)
    assert all(row.why for row in plan.steps)
    assert len(str(plan).splitlines()) == len(plan.steps)


@given(policies, runs, st.data())
def test_what_a_plan_keeps_later_ones_keep(
    policy: KeepPolicy, steps: list[SavedStep], data: st.DataObject
) -> None:
    """However much of it was carried out: it can be cut off anywhere and made again."""
    plan = plan_retention(steps, policy, time_now=NOW, spared={})
    gone = data.draw(st.sets(st.sampled_from(plan.deleted))) if plan.deleted else set()
    entries = [step for step in steps if step.step not in gone]
    again = plan_retention(entries, policy, time_now=NOW, spared={})
    assert set(again.kept) >= set(plan.kept)
    if "&" not in repr(policy):
        assert again.kept == plan.kept


def test_a_plan_prints_a_reason_for_each_step() -> None:
    policy = KeepLast(1) | KeepBest(1, "loss")
    plan = plan_retention(STEPS, policy, time_now=NOW, spared={20: "pinned"})
    assert str(plan) == (
        " 0  delete  no policy keeps it\n"
        "10  delete  no policy keeps it\n"
        "20  keep    pinned\n"
        "30  keep    loss 1, of the best 1\n"
        "40  keep    the newest; of the last 1"
    )
    assert plan.steps[2] == PlannedStep(20, True, "pinned")


@given(policies)
def test_a_policy_is_a_value_that_prints_as_code(policy: KeepPolicy) -> None:
    kinds = (KeepAll, KeepAt, KeepBest, KeepEvery, KeepLast, KeepWithin)
    again = eval(repr(policy), {kind.__name__: kind for kind in kinds})
    assert again == policy
    assert hash(again) == hash(policy)


def test_the_first_policy_of_the_best() -> None:
    best = KeepBest(2, "accuracy", "max")
    assert best_policy(best, None) is best
    assert best_policy(KeepLast(2) | (KeepEvery(5) & best) | KeepBest(1, "loss"), None) is best
    assert best_policy(KeepLast(2) | KeepAll(), None) is None
    assert best_policy(KeepBest(1, "loss") | best, "accuracy") is best
    assert best_policy(best, "loss") is None


@pytest.mark.parametrize(
    ("given_as", "expected"), [(None, KeepAll()), (3, KeepLast(3)), (KeepEvery(2), KeepEvery(2))]
)
def test_what_a_manager_may_be_given(given_as: Any, expected: KeepPolicy) -> None:
    assert as_keep_policy(given_as) == expected


@pytest.mark.parametrize("wrong", ["3", False, [1]])
def test_what_it_may_not_be_given(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"keep: expected a number of steps or a policy such as"):
        as_keep_policy(wrong)


def test_numbers_that_cannot_be() -> None:
    for kind, name in ((KeepLast, "count"), (KeepEvery, "count"), (KeepWithin, "seconds")):
        message = f"{kind.__name__}: {name}: expected more than 0, found 0"
        with pytest.raises(ValueError, match=message):
            kind(0)
    with pytest.raises(ValueError, match="KeepBest: count: expected more than 0, found 0"):
        KeepBest(0, "loss")
    with pytest.raises(ValueError, match="KeepBest: mode: expected 'min' or 'max', found 'best'"):
        KeepBest(1, "loss", "best")  # type: ignore[arg-type]
