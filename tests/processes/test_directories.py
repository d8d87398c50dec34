"""Real processes save directories together, and load what other numbers of them have saved."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cordwood
from cordwood.engine.together import MARK_SECONDS
from cordwood.testing import assert_trees_equal
from tests.processes.directories import reference
from tests.processes.group import Group, Result


@pytest.fixture(scope="module")
def four() -> Iterator[Group]:
    with Group(4) as group:
        yield group


def data_files(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("data-*"))


def test_any_number_of_processes_to_any_other(tmp_path: Path, four: Group) -> None:
    paths = [str(tmp_path / f"{i}") for i in range(4)]
    four.run("directories.save", path=paths[0], step=1, columns=2)
    with Group(2) as two:
        assert two.run("directories.load", path=paths[0], steps=[1], columns=1) == [1, 1]
        two.run("directories.save", path=paths[1], step=2, columns=2)
    with Group(1) as one:
        assert one.run("directories.load", path=paths[1], steps=[2], columns=1) == [2]
        one.run("directories.save", path=paths[2], step=3, columns=1)
    assert four.run("directories.load", path=paths[2], steps=[3], columns=4) == [3] * 4
    four.run("directories.save", path=paths[2], step=4, columns=8)
    assert four.run("directories.load", path=paths[2], steps=[4], columns=1) == [4] * 4
    assert_trees_equal(cordwood.load(paths[2], to="numpy"), reference(4))
    assert cordwood.verify(paths[2]).unverified_bytes == 0
