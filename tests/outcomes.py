"""Checks of the outcomes of broken saves, for every kind of fault."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tests.faults import Outcome


def check(outcomes: Sequence[Outcome], *, at_least: int) -> None:
    """Require that each kept exactly the old or the new tree, and the next save nothing else."""
    for outcome in outcomes:
        assert outcome.kept_a_tree, outcome
    assert len(outcomes) >= at_least


def check_errors(outcomes: Sequence[Outcome], code: int, *, name: str) -> None:
    """Require the errno and path of the failed call in each error, and which tree loads."""
    assert {outcome.found for outcome in outcomes} == {"old", "new"}
    for outcome in outcomes:
        error = outcome.error
        if error is None:
            continue
        assert isinstance(error, OSError), outcome
        assert error.errno == code
        assert os.path.basename(error.filename) == name
        assert os.strerror(code) in str(error)
        if outcome.found == "old":
            assert "what was there before is untouched" in str(error), outcome
        else:
            message = r"; the new (file|checkpoint|directory) is in place and whole"
            assert re.search(message, str(error)), outcome
