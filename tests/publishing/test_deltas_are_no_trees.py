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


def test_an_open_delta_says_what_its_leaves_are(tmp_path: Path, version: Path) -> None:
    with cw.open(version) as checkpoint, pytest.raises(KeyError, match="tree/step") as caught:
        checkpoint["step"]
    remedy = str(caught.value.args[0]).partition("of a tree. ")[2].partition(" returns")[0]
    assert_trees_equal(eval(remedy, {"cordwood": cw}), tree_of(2))
    cw.save(tmp_path / "whole", tree_of(2))
    cw.delta(version.parent / "1", tmp_path / "whole", tmp_path / "change")
    with cw.open(tmp_path / "change") as change, pytest.raises(KeyError, match="apply_delta"):
        change["step"]
    with cw.open(version.parent / "1") as whole, pytest.raises(KeyError) as caught:
        whole["stepp"]
    assert "this is a delta" not in str(caught.value)


def test_a_copy_of_a_delta_alone_is_warned_of(
    tmp_path: Path, version: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cw.copy(version, tmp_path / "w2")
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith(f"{tmp_path / 'w2'} is a delta: it holds the changes of version 1 alone")
    remedy = text.partition("its number. ")[2].partition(" stores")[0]
    eval(remedy, {"cordwood": cw, "PATH": tmp_path / "whole"})
    assert_trees_equal(cw.load(tmp_path / "whole"), tree_of(2))


def test_copies_that_can_be_loaded_are_not_warned_of(
    tmp_path: Path, version: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cw.copy(version.parent, tmp_path / "all")
    for number in (1, 2):
        cw.copy(version.parent / str(number), tmp_path / "each" / str(number))
        assert_trees_equal(cw.load(tmp_path / "each" / str(number)), tree_of(number))
    assert_trees_equal(cw.load(tmp_path / "all" / "2"), tree_of(2))
    assert not caplog.records
