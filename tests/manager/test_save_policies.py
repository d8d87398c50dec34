"""Policies of when to save: each alone, and joined."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood import EverySeconds, EverySteps
from cordwood.policies import (
    AtSteps,
    EveryStep,
    Moment,
    OnPreemption,
    SavePolicy,
    WhenIdle,
)
from cordwood.policies.save_policies import as_save_policy

CALM = Moment(step=7, last_step=None, seconds_since_last=5.0, saving=False, preempted=False)

moments = st.builds(
    Moment,
    step=st.integers(0, 300),
    last_step=st.none() | st.integers(0, 300),
    seconds_since_last=st.floats(0, 100),
    saving=st.booleans(),
    preempted=st.booleans(),
)
single: st.SearchStrategy[SavePolicy] = st.one_of(
    st.just(EveryStep()),
    st.builds(EverySteps, st.integers(1, 50)),
    st.builds(EverySeconds, st.floats(1, 100)),
    st.builds(AtSteps, st.sets(st.integers(0, 300))),
    st.just(WhenIdle()),
    st.just(OnPreemption()),
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
    ("policy", "moment", "expected"),
    [
        (EveryStep(), CALM, "every step is saved, 7 too"),
        (EverySteps(7), CALM, "7 is a multiple of 7"),
        (EverySteps(5), CALM, "5, a multiple of 5, was not saved"),
        (EverySteps(5), CALM._replace(last_step=5), None),
        (EverySteps(5), CALM._replace(last_step=6), None),
        (EverySteps(8), CALM, None),
        (EverySteps(8), CALM._replace(step=0), "0 is a multiple of 8"),
        (EverySeconds(5), CALM, "5 s have gone by (every 5 s)"),
        (EverySeconds(5.5), CALM, None),
        (AtSteps([3, 7]), CALM, "7 was asked for"),
        (AtSteps([3]), CALM, None),
        (WhenIdle(), CALM, "no save goes on"),
        (WhenIdle(), CALM._replace(saving=True), None),
        (OnPreemption(), CALM, None),
        (OnPreemption(), CALM._replace(preempted=True), "the job has been told to end"),
        (EverySteps(7) & WhenIdle(), CALM, "7 is a multiple of 7 and no save goes on"),
        (EverySteps(7) & WhenIdle(), CALM._replace(saving=True), None),
        (EverySteps(7) | AtSteps([7]), CALM, "7 is a multiple of 7; 7 was asked for"),
    ],
)
def test_a_policy_says_why_it_saves(
    policy: SavePolicy, moment: Moment, expected: str | None
) -> None:
    assert policy.why(moment) == expected


def test_a_multiple_that_is_passed_is_saved_once() -> None:
    policy, last, saved = EverySteps(100), None, []
    for step in range(7, 1000, 7):
        if policy.why(CALM._replace(step=step, last_step=last)) is not None:
            saved.append(step)
            last = step
    assert saved == [105, 203, 301, 406, 504, 602, 700, 805, 903]


@given(policies, policies, moments)
def test_joining_is_or_and_and(a: SavePolicy, b: SavePolicy, moment: Moment) -> None:
    one, other = a.why(moment), b.why(moment)
    assert ((a | b).why(moment) is not None) == (one is not None or other is not None)
    assert ((a & b).why(moment) is not None) == (one is not None and other is not None)
    for reason in (one, other):
        assert reason is None or reason in str((a | b).why(moment))


@given(policies, moments, st.floats(0, 100), st.booleans(), st.booleans())
def test_a_policy_by_step_looks_at_nothing_else(
    policy: SavePolicy, moment: Moment, seconds: float, saving: bool, preempted: bool
) -> None:
    if policy.by_step:
        other = moment._replace(seconds_since_last=seconds, saving=saving, preempted=preempted)
        assert policy.why(moment) == policy.why(other)


@given(policies)
def test_a_policy_is_a_value_that_prints_as_code(policy: SavePolicy) -> None:
    names = {
        **{kind.__name__: kind for kind in (AtSteps, EverySeconds, EveryStep, EverySteps)},
        **{kind.__name__: kind for kind in (WhenIdle, OnPreemption)},
    }
    again = eval(repr(policy), names)
    assert again == policy
    assert hash(again) == hash(policy)


@pytest.mark.parametrize(
    ("given_as", "expected"), [(None, EveryStep()), (5, EverySteps(5)), (WhenIdle(), WhenIdle())]
)
def test_what_a_manager_may_be_given(given_as: Any, expected: SavePolicy) -> None:
    assert as_save_policy(given_as) == expected


@pytest.mark.parametrize("wrong", ["5", True, 5.0])
def test_what_it_may_not_be_given(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"save: expected a number of steps or a policy such as"):
        as_save_policy(wrong)


def test_numbers_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="EverySteps: count: expected more than 0, found 0"):
        EverySteps(0)
    with pytest.raises(ValueError, match="EverySeconds: seconds: expected more than 0, found -1"):
        EverySeconds(-1)
