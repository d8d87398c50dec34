"""The sentence about a step of which some files are nowhere."""

from __future__ import annotations

from cordwood.manager.recovery.incomplete_text import incomplete_text
from cordwood.plan.recovery.complete_steps import IncompleteStep


def test_it_says_what_is_missing_and_who_has_the_index() -> None:
    step = IncompleteStep(300, "a", 9, ((1, 3), (4, 7)), (0, 2))
    assert incomplete_text(step, [f"data-{i}" for i in range(9)]) == (
        "step 300: 5 of its 9 files are missing (data-1, data-2, data-4 and 2 more); "
        "its index is in the root of processes 0 and 2"
    )
    assert incomplete_text(step._replace(processes=(1,))) == (
        "step 300: 5 of its 9 files are missing; its index is in the root of process 1"
    )
