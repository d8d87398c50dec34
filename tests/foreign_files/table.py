"""The tables of docs/foreign-files.md; python -m tests.foreign_files.table writes them there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.foreign_files.case import Case
from tests.foreign_files.test_files_of_tools import CASES
from tests.foreign_files.test_golden_files import REFUSED, UNREADABLE, cases

PAGE = Path(__file__).resolve().parents[2] / "docs" / "foreign-files.md"
BEGIN, END = "<!-- written by tests.foreign_files.table -->\n", "<!-- end -->"


def page_with_tables() -> str:
    """Return the page with its tables made anew."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{tables()}\n{END}{tail}"


def tables() -> str:
    """Return a table of what the tests write, and one of the golden files."""
    rows = [(case.tool, case.content, outcome(case)) for case in CASES]
    by_environment: dict[str, list[str]] = {}
    for name in cases():
        environment, _, file = name.partition("/")
        by_environment.setdefault(environment, []).append(file)
    golden = []
    for environment, files in by_environment.items():
        tool, _, version = environment.rpartition("-")
        refused = [file for file in files if f"{environment}/{file}" in REFUSED]
        for verdict, some in (
            ("read", [file for file in files if file not in refused]),
            ("refused in words", refused),
        ):
            if some:
                in_part = [f"{environment}/{file}" in UNREADABLE for file in some]
                text = f"{verdict}; of one only the arrays of numbers" if any(in_part) else verdict
                golden.append((f"{tool} {version}", ", ".join(map(_code, some)), text))
    return "\n\n".join(
        [
            _table(
                ("written by", "content", "cordwood"), sorted(rows, key=lambda row: row[0].lower())
            ),
            _table(("written by", "files in tests/foreign_files/golden", "cordwood"), golden),
        ]
    )


def outcome(case: Case) -> str:
    if case.refused:
        return "refused in words"
    if case.unreadable:
        return f"read, but for {', '.join(map(_code, case.unreadable))}"
    return "read"


def _code(text: str) -> str:
    return f"`{text}`"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join([f"| {' | '.join(line)} |" for line in lines])


if __name__ == "__main__":
    PAGE.write_text(page_with_tables())
