"""Calls that need a tree refuse a published version that is a delta, with a remedy that works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cordwood as cw
from cordwood.errors import MismatchError, UnsupportedFormatError
from cordwood.manager.orbax_indexes import add_orbax_index
from cordwood.storage.locations import LocalPath
from cordwood.testing import assert_trees_equal
from tests.publishing.published import tree_of

NEEDS_A_TREE: dict[str, Callable[[Path, Path], Any]] = {
    "convert": lambda path, out: cw.convert(path, out),
    "convert, to an archive": lambda path, out: cw.convert(path, out, compression="archive"),
    "convert an open one": lambda path, out: cw.convert(cw.open(path), out),
    "combine": lambda path, out: cw.combine(out, {path: 0.5, path.parent / "1": 0.5}),
    "diff": lambda path, _: cw.diff(path.parent / "1", path),
    "diff with a tree": lambda path, _: cw.diff(path, tree_of(2)),
    "delta": lambda path, out: cw.delta(path.parent / "1", path, out),
    "apply_delta": lambda path, out: cw.apply_delta(path, path, out),
    "restore": lambda path, _: cw.StepReader(path.parent).restore(2),
}


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """Publish two versions, and return the path of the second, which is a delta."""
    publisher = cw.WeightPublisher(tmp_path / "weights")
    for number in (1, 2):
        publisher.publish(number, tree_of(number)).wait()
    return tmp_path / "weights" / "2"


@pytest.mark.parametrize("call", NEEDS_A_TREE)
def test_a_delta_is_not_taken_for_a_tree(tmp_path: Path, version: Path, call: str) -> None:
    message = "is a delta: expected a tree, found the changes of version 1"
    with pytest.raises(MismatchError, match=message) as caught:
        NEEDS_A_TREE[call](version, tmp_path / "out")
    assert type(caught.value) is MismatchError
    assert not (tmp_path / "out").exists()
    remedy = str(caught.value).partition("version 1. ")[2].partition(" returns")[0]
    cw.save(tmp_path / "whole", eval(remedy, {"cordwood": cw}))
    assert_trees_equal(cw.load(tmp_path / "whole"), tree_of(2))


def test_no_index_for_orbax_is_written_into_a_delta(tmp_path: Path, version: Path) -> None:
    files = sorted(version.iterdir())
    with pytest.raises(UnsupportedFormatError, match=r"cordwood.load .*orbax=True"):
        add_orbax_index(LocalPath(str(version)), None)
    assert sorted(version.iterdir()) == files
    cw.save(tmp_path / "whole", cw.load(version), orbax=True)
    assert_trees_equal(cw.load(tmp_path / "whole"), tree_of(2))
