"""Golden files of tools that need environments of their own; `make foreign-files` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign_files.make.__main__ import GOLDEN, environments
from tests.foreign_files.make.values import SUFFIX, read_values
from tests.foreign_files.reading import assert_equal_values, assert_refused

RUN_SUFFIX = ".run"  # of a root of steps; test_golden_runs.py reads them
MAX_GOLDEN_BYTES = 2_000_000

# Files that are not read, and the words of the refusal: what it is, and what to do.
REFUSED: dict[str, tuple[str, ...]] = {}


def cases() -> list[str]:
    """Return the path of each golden file or directory in GOLDEN: TOOL-VERSION/CASE."""
    paths = [path for folder in GOLDEN.iterdir() for path in folder.iterdir()]
    names = [path.relative_to(GOLDEN).as_posix() for path in paths]
    return sorted(
        name for name in names if not name.endswith(SUFFIX) and Path(name).name != "versions.txt"
    )


@pytest.mark.parametrize("name", [name for name in cases() if not name.endswith(RUN_SUFFIX)])
def test_a_file_is_read_as_its_tool_reads_it_or_refused_in_words(name: str) -> None:
    if name in REFUSED:
        assert_refused(GOLDEN / name, REFUSED[name])
    else:
        assert_equal_values(GOLDEN / name, read_values(GOLDEN / name))


def test_each_environment_has_golden_files_and_the_refused_ones_exist() -> None:
    assert sorted(environments()) == sorted(path.name for path in GOLDEN.iterdir())
    assert REFUSED.keys() <= set(cases())
    for name in environments():
        assert (GOLDEN / name / "versions.txt").is_file()


def test_the_golden_files_are_small() -> None:
    files = [path for path in GOLDEN.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_GOLDEN_BYTES
