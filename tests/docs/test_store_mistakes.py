"""docs/mistakes.md shows what cordwood says today of mistakes with object stores."""

from __future__ import annotations

import pytest

from demo.mistakes.page import read_store_mistakes
from tests.docs.store_mistakes import ATTEMPTS, Attempt, make

RECORD = {mistake.title: mistake for mistake in read_store_mistakes()}


def test_each_is_on_the_page() -> None:
    assert list(RECORD) == [attempt.title for attempt in ATTEMPTS]


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.title)
def test_the_page_has_the_message(attempt: Attempt) -> None:
    assert make(attempt) == RECORD[attempt.title], "run python -m tests.docs.store_mistakes"


def test_only_a_missing_permission_to_delete_is_no_error() -> None:
    assert [each.title for each in RECORD.values() if not each.error] == ["No permission to delete"]
