"""What must hold of saves that were broken, however that was done."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tests.faults import Outcome

__all__ = ["check", "check_errors"]


def check(outcomes: Sequence[Outcome], *, at_least: int) -> None:
    """Each kept exactly the old or the new tree, and the next save left nothing behind."""
    for outcome in outcomes:
        assert outcome.kept_a_tree, outcome
    assert len(outcomes) >= at_least


def check_errors(outcomes: Sequence[Outcome], code: int, *, name: str) -> None:
    """Of failed calls: each error has the errno and the path, and says which tree is there now."""
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
