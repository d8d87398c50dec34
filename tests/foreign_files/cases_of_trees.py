"""x."""

from tests.foreign_files.case import Case

CASES: list[Case] = []
