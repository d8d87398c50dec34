"""A save that is killed between `cordwood.json` and `model.safetensors.index.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import CorruptionError
from cordwood.testing import assert_trees_equal
from tests.soak.roots import HUGGING_FACE_NAME, read_tensors

OLD = {"w": np.zeros(3, np.float32), "v": np.ones(2, np.float32)}
NEW = {"w": np.ones(4, np.float32)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a checkpoint whose index is that of NEW, and whose index for the hub that of OLD."""
    path = tmp_path / "d"
    leave_stale(path)
    return path


def leave_stale(path: Path) -> None:
    cordwood.save(path, OLD)
    kept = {each.name: each.read_bytes() for each in path.iterdir() if each.suffix != ".lock"}
    cordwood.save(path, NEW)
    for name, data in kept.items():
        if name != "cordwood.json":
            (path / name).write_bytes(data)


def test_verify_says_that_it_is_stale(path: Path) -> None:
    verification = cordwood.verify(path)
    assert verification.stale == (HUGGING_FACE_NAME,)
    assert "no damage: 1 leaf" in str(verification)
    assert f"stale: {HUGGING_FACE_NAME}" in str(verification)
    assert_trees_equal(cordwood.load(path, to="numpy"), NEW)
    assert_trees_equal(read_tensors(path), dict(sorted(OLD.items())))


def test_gc_writes_it_again_before_it_removes_the_files_that_it_named(path: Path) -> None:
    planned = cordwood.gc(path, dry_run=True)
    assert_trees_equal(read_tensors(path), dict(sorted(OLD.items())))
    report = cordwood.gc(path)
    assert report == planned
    assert len(report) == 1
    assert report.rewritten == planned.rewritten == [f"{path}/{HUGGING_FACE_NAME}"]
    require_brought_in_line(path, NEW)
    assert cordwood.gc(path).rewritten == []


def test_the_next_save_writes_it_again(path: Path) -> None:
    cordwood.save(path, OLD)
    require_brought_in_line(path, dict(sorted(OLD.items())))


def test_one_that_is_missing_is_written_by_gc(path: Path) -> None:
    (path / HUGGING_FACE_NAME).unlink()
    assert cordwood.verify(path).stale == ()
    assert cordwood.gc(path).rewritten == [f"{path}/{HUGGING_FACE_NAME}"]
    require_brought_in_line(path, NEW)


def test_one_that_names_missing_files_is_damage_which_gc_repairs(path: Path) -> None:
    for name in set(data_files(path, HUGGING_FACE_NAME)) - set(data_files(path, "cordwood.json")):
        (path / name).unlink()
    with pytest.raises(CorruptionError, match=r"not the one of this index: gc \(cordwood gc\)"):
        cordwood.verify(path)
    cordwood.gc(path)
    require_brought_in_line(path, NEW)


def test_one_of_fewer_trees_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "d"
    cordwood.save(path, OLD, prefix="a")
    before = (path / HUGGING_FACE_NAME).read_bytes()
    cordwood.save(path, {"other": np.ones(1, np.float32)}, prefix="b")
    (path / HUGGING_FACE_NAME).write_bytes(before)
    assert cordwood.verify(path).stale == (HUGGING_FACE_NAME,)
    cordwood.gc(path)
    assert cordwood.verify(path).stale == ()


def test_gc_keeps_the_files_that_only_the_hub_index_names(path: Path) -> None:
    """A directory that is used without cordwood's index is a whole checkpoint of the hub."""
    (path / "cordwood.json").unlink()
    assert len(cordwood.gc(path)) == 1  # of NEW, which nothing names
    assert_trees_equal(read_tensors(path), dict(sorted(OLD.items())))


def test_a_copy_has_the_new_one(path: Path, tmp_path: Path) -> None:
    cordwood.copy(path, tmp_path / "to")
    require_brought_in_line(tmp_path / "to", NEW)


def test_a_second_copy_completes_it(path: Path, tmp_path: Path) -> None:
    cordwood.copy(path, tmp_path / "to")
    for missing in (True, False):
        index = tmp_path / "to" / HUGGING_FACE_NAME
        index.unlink() if missing else index.write_bytes((path / HUGGING_FACE_NAME).read_bytes())
        report = cordwood.copy(path, tmp_path / "to")
        assert (report.steps_there, report.files) == (("",), 0)
        require_brought_in_line(tmp_path / "to", NEW)


def require_brought_in_line(path: Path, tree: Any) -> None:
    verification = cordwood.verify(path)
    assert verification.stale == ()
    assert "stale" not in str(verification)
    assert_trees_equal(read_tensors(path), tree)
    assert len(list(path.glob("data-*"))) == len(set(data_files(path, "cordwood.json")))


def data_files(path: Path, index: str) -> list[str]:
    text = (path / index).read_text()
    return [each.name for each in path.glob("data-*") if f'"{each.name}"' in text]
