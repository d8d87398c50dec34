"""The golden directory of the zarr layout: it is read, and is written the same."""

from __future__ import annotations

from pathlib import Path

import cordwood
from cordwood.testing import assert_trees_equal
from tests.golden.zarr_directories import COMPRESSED, GOLDEN, METADATA, TREE, write


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_same_bytes_are_written(tmp_path: Path) -> None:
    """Compressed chunks have the same bytes too, as long as it is the same zstd."""
    write(tmp_path / "c")
    assert contents(tmp_path / "c") == contents(GOLDEN)


def test_the_golden_directory_is_read() -> None:
    assert_trees_equal(cordwood.load(GOLDEN, prefix=""), TREE)
    assert_trees_equal(cordwood.load(GOLDEN, prefix="ema"), COMPRESSED)
    with cordwood.open(GOLDEN, prefix="") as checkpoint:
        assert checkpoint.metadata == METADATA
    assert cordwood.verify(GOLDEN).unverified_bytes == 0
