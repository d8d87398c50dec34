"""The tables of the pages that the benchmarks write, read again."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent


def read_rows(page: str, section: str) -> list[list[str]]:
    """Return the cells of all rows of the tables of a section, headers included.

    Raises:
        KeyError: the page has no such section.
    """
    heading = f"\n## {section}\n"
    text = (HERE / page).read_text()
    if heading not in text:
        raise KeyError(f"{page} has no section {section}")
    lines = text.split(heading)[1].split("\n## ")[0].splitlines()
    return [
        [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]


def read_number(page: str, section: str, row: str, column: str) -> float:
    """Return the number in the row and column of the first table that has both.

    Raises:
        KeyError: no table of the section has such a row and column.
    """
    header, previous = [""], [""]
    for cells in read_rows(page, section):
        if set("".join(cells)) <= set("-:"):  # the line below a header
            header = previous
        previous = cells
        if cells[0] == row and column in header:
            text = cells[header.index(column)]
            return float(text.replace(",", "").removeprefix("+").removesuffix("%"))
    raise KeyError(f"{page}, {section}: no row {row!r} with a column {column!r}")


def read_environment(page: str) -> list[str]:
    """Return the lines of a page that name versions and hardware."""
    lines = (HERE / page).read_text().split("\n## ")[0].splitlines()
    return [line.removeprefix("- ") for line in lines if line.startswith("- ")]
