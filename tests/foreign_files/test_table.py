"""The page on foreign files says what the tests say."""

from __future__ import annotations

from tests.foreign_files.case import Case
from tests.foreign_files.table import PAGE, page_with_tables
from tests.foreign_files.test_files_of_tools import CASES
from tests.foreign_files.test_golden_files import cases


def test_the_page_lists_all_cases_and_their_outcomes() -> None:
    """If it fails, run python -m tests.foreign_files.table."""
    assert PAGE.read_text() == page_with_tables()


def test_there_are_many_files_of_many_tools() -> None:
    written: list[Case] = CASES
    environments = {name.partition("/")[0] for name in cases()}
    assert len(written) + len(cases()) >= 60
    assert len({case.tool for case in written} | environments) >= 15
