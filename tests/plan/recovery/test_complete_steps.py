"""The steps that roots and a mirror hold together: complete ones, and what others lack."""

from __future__ import annotations

import json
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from cordwood.plan.recovery.complete_steps import survey_steps
from cordwood.plan.recovery.position_runs import (
    PositionRuns,
    join_runs,
    runs_from_numbers,
    runs_of,
    runs_to_numbers,
    runs_without,
)
from cordwood.plan.recovery.step_inventory import (
    StepInventory,
    decode_inventory,
    encode_inventory,
)

A, B = "a" * 32, "b" * 32
ALL = ((0, 4),)


def part(step: int, files: PositionRuns, digest: str = A, saved_at: float = 1.0) -> StepInventory:
    return StepInventory(step, digest, saved_at, 4, files)


def test_a_step_is_complete_if_its_files_are_somewhere() -> None:
    survey = survey_steps(
        [[part(2, ((0, 2),)), part(1, ((0, 2),))], [part(2, ((3, 4),)), part(1, ((2, 4),))], []]
    )
    (step,) = survey.complete
    assert (step.step, step.is_mirrored) == (1, False)
    assert step.files == {0: ((0, 2),), 1: ((2, 4),)}
    (newer,) = survey.incomplete
    assert (newer.step, newer.missing, newer.processes) == (2, ((2, 3),), (0, 1))


def test_files_of_different_indexes_make_no_step() -> None:
    survey = survey_steps([[part(2, ((0, 2),))], [part(2, ((2, 4),), B)]])
    assert not survey.complete
    assert [each.missing for each in survey.incomplete] == [((2, 4),), ((0, 2),)]


def test_the_mirror_completes_a_step() -> None:
    survey = survey_steps([[part(2, ((0, 2),))]], [part(2, ALL)])
    assert survey.complete[0].files == {0: ((0, 2),)}
    assert survey.complete[0].is_mirrored
    assert survey_steps([[]], [part(1, ALL)]).complete[0].files == {}


def test_the_later_of_two_saves_of_a_number_counts() -> None:
    for roots in (
        [[part(2, ALL)], [part(2, ALL, B, 2.0)]],
        [[part(2, ALL, B, 2.0)], [part(2, ALL)]],
    ):
        survey = survey_steps(roots)
        assert [each.index_digest for each in survey.complete] == [B]
        assert not survey.incomplete


def test_a_leftover_of_a_complete_number_is_no_incomplete_step() -> None:
    survey = survey_steps([[part(2, ((0, 1),), B)], [part(2, ALL)]])
    assert [each.index_digest for each in survey.complete] == [A]
    assert not survey.incomplete


def test_damaged_steps_are_passed_over() -> None:
    survey = survey_steps([[part(2, ALL), part(1, ALL)]], excluded={(2, A)})
    assert [each.step for each in survey.complete] == [1]


def test_a_step_without_files_is_complete() -> None:
    assert survey_steps([[StepInventory(3, A, 1.0, 0, ())]]).complete[0].step == 3


def test_there_may_be_nothing() -> None:
    assert survey_steps([[], []]) == ((), ())


Save: TypeAlias = tuple[int, str, float]  # step, digest of the index, time

POSITIONS = st.sets(st.integers(0, 11))
SAVES = st.sampled_from([(1, A, 1.0), (1, B, 2.0), (2, A, 3.0), (3, A, 4.0)])
ROOTS = st.lists(st.dictionaries(SAVES, POSITIONS), max_size=5)


@given(ROOTS, st.sets(SAVES))
def test_surveys_are_those_of_a_naive_search(
    roots: list[dict[Save, set[int]]], mirrored: set[Save]
) -> None:
    inventories = [
        [StepInventory(*save[:2], save[2], 12, runs_of(files)) for save, files in root.items()]
        for root in roots
    ]
    mirror = [StepInventory(*save[:2], save[2], 12, ((0, 12),)) for save in mirrored]
    survey = survey_steps(inventories, mirror)
    missing = {
        save: set(range(12)) - set().union(*(root.get(save, set()) for root in roots))
        for save in {save for root in roots for save in root} | mirrored
    }
    whole = {save for save in missing if save in mirrored or not missing[save]}
    newest = {step: max(save for save in whole if save[0] == step) for step, _, _ in whole}
    assert [(s.step, s.index_digest, s.saved_at) for s in survey.complete] == [
        newest[step] for step in sorted(newest, reverse=True)
    ]
    assert {(s.step, s.index_digest): s.missing for s in survey.incomplete} == {
        save[:2]: runs_of(missing[save]) for save in missing if save[0] not in newest
    }
    for step in survey.complete:
        save = step.step, step.index_digest, step.saved_at
        for process, root in enumerate(roots):
            assert step.files.get(process, ()) == runs_of(root.get(save, set()))


@given(POSITIONS, POSITIONS)
def test_runs_are_sets(a: set[int], b: set[int]) -> None:
    assert {each for start, stop in runs_of(a) for each in range(start, stop)} == a
    assert join_runs([*runs_of(a), *runs_of(b)]) == runs_of(a | b)
    assert runs_without(runs_of(a), 12) == runs_of(set(range(12)) - a)
    assert runs_from_numbers(runs_to_numbers(runs_of(a))) == runs_of(a)


def test_an_inventory_is_a_small_message() -> None:
    """Each of 1,024 processes writes 4 packs, and holds the replicas of another process."""
    steps = [
        StepInventory(1_000_000 + i, A, 1_790_000_000.25, 4096, ((800, 804), (4092, 4096)))
        for i in range(5)
    ]
    message = json.dumps(encode_inventory(steps))
    assert decode_inventory(json.loads(message)) == steps
    assert len(message) < 90 * len(steps)
