"""The golden directories of packs: what is read from them, and that they are written the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.testing import assert_trees_equal
from tests.golden.packs_directories import (
    COUNTS,
    METADATA,
    SPREAD_AT,
    WHOLE,
    WHOLE_AT,
    spread,
    write_all,
)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_bytes_are_written(tmp_path: Path) -> None:
    write_all(tmp_path)
    for golden in (WHOLE_AT, SPREAD_AT):
        assert contents(tmp_path / golden.name) == contents(golden)


def test_a_golden_checkpoint_of_whole_leaves_is_read() -> None:
    assert_trees_equal(cordwood.load(WHOLE_AT), WHOLE)
    with cordwood.open(WHOLE_AT) as checkpoint:
        assert checkpoint.metadata == METADATA
    assert cordwood.verify(WHOLE_AT).leaves == 15


def test_leaves_that_are_cut() -> None:
    tree = spread()
    assert_trees_equal(cordwood.load(SPREAD_AT, like=tree, prefix="params"), tree)
    assert cordwood.load(SPREAD_AT, prefix="counts") == COUNTS
    assert cordwood.verify(SPREAD_AT).leaves == 6
    plain = cordwood.load(SPREAD_AT, prefix="params", to="numpy")
    assert {name: array.tolist() for name, array in plain.items()} == {
        name: np.asarray(array).tolist() for name, array in tree.items()
    }


@pytest.mark.parametrize("golden", [WHOLE_AT, SPREAD_AT], ids=lambda path: path.name)
def test_other_tools_read_the_files(golden: Path) -> None:
    from safetensors.numpy import load_file

    by_name: dict[str, Any] = {}
    for path in golden.glob("data-*"):
        by_name.update(load_file(path))
    assert len(by_name) == {"packs-v1-whole": 8, "packs-v1-spread": 20}[golden.name]
