"""The README's numbers are those of the committed pages."""

from __future__ import annotations

from benchmarks.readme import README, with_table


def test_the_table_is_what_the_pages_say() -> None:
    text = README.read_text()
    assert with_table(text) == text, "run python -m benchmarks.readme"
