"""Real processes save a directory together and load what other numbers of them have saved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.testing import assert_trees_equal
from tests.processes.group import Group
from tests.processes.spread_trees import reference

LAYOUTS: dict[str, dict[str, Any]] = {
    "packs": {},
    "zarr": {"format": "zarr"},
    "zarr with zstd": {"format": "zarr", "compression": "zstd"},
}


def save(group: Group, path: Path, step: int, **options: Any) -> None:
    group.run("spread_trees.save", path=str(path), step=step, **options)


def load(group: Group, path: Path, step: int, columns: int) -> None:
    steps = group.run("spread_trees.load", path=str(path), steps=[step], columns=columns)
    assert steps == [step] * group.count


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_number_of_processes_to_any_other(
    tmp_path: Path, four: Group, two: Group, layout: str
) -> None:
    path, options = tmp_path / "x", LAYOUTS[layout]
    save(four, path, 1, columns=2, **options)
    load(two, path, 1, columns=1)
    save(two, path, 2, columns=4, **options)
    load(four, path, 2, columns=2)
    with Group(1) as one:
        load(one, path, 2, columns=1)
        save(one, path, 3, columns=1, **options)
    load(four, path, 3, columns=8)
    save(four, path, 4, columns=8, **options)
    load(two, path, 4, columns=1)
    # No file of an older save is left, and this process reads what four have written.
    assert_trees_equal(cordwood.load(path, to="numpy"), reference(4))
    assert cordwood.verify(path).unverified_bytes == 0
    assert cordwood.gc(path) == []
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("columns", [1, 2, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_four_processes_save_in_the_background(
    tmp_path: Path, four: Group, layout: str, columns: int
) -> None:
    path = tmp_path / "x"
    save(four, path, 1, columns=columns, background=True, **LAYOUTS[layout])
    load(four, path, 1, columns=2)
