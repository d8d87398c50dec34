"""Golden runs of other tools: the roots of steps in golden/, each of their steps."""

from __future__ import annotations

import pytest

import cordwood
from tests.foreign_files.make.__main__ import GOLDEN
from tests.foreign_files.make.values import leaves_of, read_values
from tests.foreign_files.reading import assert_equal_leaves
from tests.foreign_files.test_golden_files import RUN_SUFFIX, cases


@pytest.mark.parametrize("name", [name for name in cases() if name.endswith(RUN_SUFFIX)])
def test_each_step_of_a_run_is_restored(name: str) -> None:
    values = {tuple(key.split("/", 1)): value for key, value in read_values(GOLDEN / name).items()}
    steps = sorted({int(step) for step, _ in values})
    reader = cordwood.StepReader(GOLDEN / name)
    assert reader.steps() == steps
    for step in steps:
        tree = reader.restore(step).tree
        expected = {leaf: value for (number, leaf), value in values.items() if number == str(step)}
        assert_equal_leaves(dict(leaves_of(tree)), expected)
    newest = reader.restore()
    assert newest is not None
    assert newest.step == steps[-1]
