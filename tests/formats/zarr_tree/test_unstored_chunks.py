"""Chunks that a writer of zarr left out, because they equal the fill value of their array."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import CorruptionError


def write(path: Path, version: int, **options: Any) -> np.ndarray:
    """Write an array `w` of six chunks, of which the first is stored."""
    import zarr

    group: Any = zarr.open_group(path, mode="w", zarr_format=version)
    array = group.create_array("w", shape=(6, 4), chunks=(2, 2), dtype="f4", **options)
    array[:2, :2] = 1
    return np.asarray(array[...])


@pytest.mark.parametrize("version", [2, 3])
def test_they_are_read_with_a_warning_and_verify_counts_them(tmp_path: Path, version: int) -> None:
    expected = write(tmp_path / "x", version, fill_value=2)
    with pytest.warns(RuntimeWarning, match=r"x: not all chunks of w are stored: they are read as"):
        result = cordwood.load(tmp_path / "x", to="numpy")["w"]
    np.testing.assert_array_equal(result, expected)
    verification = cordwood.verify(tmp_path / "x")
    assert (verification.unstored_chunks, verification.unstored_leaves) == (5, ("w",))
    assert "5 chunks not stored and read as the fill value (w)" in str(verification)
    with pytest.warns(RuntimeWarning), cordwood.open(tmp_path / "x") as checkpoint:
        np.testing.assert_array_equal(checkpoint["w"][1:5, 1:3], expected[1:5, 1:3])


def test_all_chunks_are_stored_where_there_is_no_fill_value(tmp_path: Path) -> None:
    write(tmp_path / "x", 2, fill_value=0)
    metadata = tmp_path / "x/w/.zarray"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "fill_value": None}))
    message = r"w: 0\.1 is missing: .*\(all chunks of an array without a fill value are stored\)"
    with pytest.raises(CorruptionError, match=message):
        cordwood.load(tmp_path / "x")


def test_a_whole_tree_gives_no_warning(tmp_path: Path) -> None:
    import zarr

    group: Any = zarr.open_group(tmp_path / "x", mode="w", zarr_format=3)
    group.create_array("w", data=np.ones((6, 4), np.float32), chunks=(2, 2), shards=(4, 4))
    assert list(cordwood.load(tmp_path / "x")) == ["w"]


def test_a_missing_chunk_of_eformers_directories_stays_an_error(tmp_path: Path) -> None:
    """A missing file there is lost: eFormer stores every chunk."""
    cordwood.save(tmp_path / "x", {"w": np.zeros(3)}, format="zarr")
    (tmp_path / "x/w/0").unlink()
    with pytest.raises(CorruptionError, match="0 is missing: the checkpoint is incomplete"):
        cordwood.load(tmp_path / "x")
