"""The README's table of measurements agrees with the benchmarks' pages."""

from __future__ import annotations

from benchmarks.readme import README, replace_table


def test_the_table_agrees_with_the_pages() -> None:
    text = README.read_text()
    assert replace_table(text) == text, "run python -m benchmarks.readme"
