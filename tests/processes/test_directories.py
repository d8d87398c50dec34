"""Real processes save directories together: shares, differences, failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.testing import assert_trees_equal
from tests.processes.group import Group
from tests.processes.spread_trees import SPECS, reference

LAYOUTS = ["packs", "zarr"]


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_each_writes_its_share(tmp_path: Path, four: Group) -> None:
    path = tmp_path / "x"
    four.run("spread_trees.save", path=str(path), step=1, columns=2, rows=512)
    by_process = [0] * 4
    for file in path.glob("data-*"):
        by_process[int(file.name.split("-")[2])] += file.stat().st_size
    assert max(by_process) < 1.1 * min(by_process)
    total = sum(reference(1, 512)[name].nbytes for name in SPECS)
    assert sum(by_process) < 1.02 * total  # replicas are not written twice


def test_saves_in_the_background_of_several_prefixes(tmp_path: Path, two: Group) -> None:
    path = tmp_path / "x"
    assert two.run("directories.save_several", path=str(path), count=9) == [9, 9]
    for i in range(3):
        loaded = cordwood.load(path, prefix=f"item-{i}", to="numpy")
        assert_trees_equal(loaded, reference(6 + i))
    assert not cordwood.gc(path)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("step", "local/step: another value on process 1"),
        ("array", "local/numpy: another value on process 1"),
        ("spec", "rows: another type, shape or sharding on process 1"),
        ("more", "the tree: another structure"),
        ("odd", "process 1 failed to save"),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_process_reports_trees_that_differ(
    tmp_path: Path, four: Group, layout: str, what: str, expected: str
) -> None:
    arguments = {"path": str(tmp_path / "x"), "what": what, "format": layout}
    for index, text in enumerate(four.fail("directories.save_differing", **arguments)):
        if what == "odd" and index == 1:
            assert text.startswith("UnsupportedLeafError: local/odd: a value of type builtins.obj")
        else:
            assert text.startswith("ProcessError: ")
            assert expected in text
    assert names(tmp_path) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_on_each_processs_own_devices(tmp_path: Path, two: Group, layout: str) -> None:
    path = tmp_path / "x"
    expected = ["both", "key", "one"]
    result = two.run("directories.save_own_arrays", path=str(path), format=layout)
    assert result == [(0, expected), (1, expected)]


@pytest.mark.parametrize("process", [0, 1])
def test_arrays_on_another_processs_devices(tmp_path: Path, two: Group, process: int) -> None:
    path = tmp_path / "x"
    texts = two.fail("directories.save_on_one", path=str(path), process=process)
    assert f"w: an array on devices of process {process} alone, which process" in texts[1 - process]
    assert f"process {1 - process} failed to save" in texts[process]
    assert not path.exists()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_system_that_is_not_shared(tmp_path: Path, two: Group, layout: str) -> None:
    for index in range(2):
        (tmp_path / str(index)).mkdir()
    two.run("directories.hasten", silence_seconds=60.0, probe_seconds=0.2)
    for text in two.fail("directories.save_apart", folder=str(tmp_path), format=layout):
        assert "checkpoint is not one directory for all processes: process 1 (on " in text
    assert [names(tmp_path / str(index)) for index in range(2)] == [[], []]


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
@pytest.mark.parametrize("process", range(2))
def test_a_process_whose_disk_fails(tmp_path: Path, two: Group, process: int, call: str) -> None:
    path = tmp_path / "x"
    two.run("spread_trees.save", path=str(path), step=1)
    before = names(path)
    arguments: dict[str, Any] = {"process": process, "call": call, "step": 2}
    texts = two.fail("directories.save_failing", path=str(path), **arguments)
    assert texts[process].startswith("StorageError: ")
    other = texts[1 - process]
    assert other.startswith(f"ProcessError: process {process} failed to save {path}: StorageError")
    assert names(path) == before
    assert two.run("spread_trees.load", path=str(path), steps=[1]) == [1, 1]
    two.run("spread_trees.save", path=str(path), step=3)
    assert two.run("spread_trees.load", path=str(path), steps=[3]) == [3, 3]


def test_a_failure_in_the_background_reaches_all(tmp_path: Path, two: Group) -> None:
    path = tmp_path / "x"
    result = two.run("directories.save_background_failing", path=str(path), process=1)
    assert result[1][0].startswith("StorageError: ")
    assert result[0][0].startswith(f"ProcessError: process 1 failed to save {path}: StorageError")
    for _, later in result:
        assert later.startswith("PendingSaveError")
        assert "in the background failed" in later
        assert "The save that was called now was begun all the same" in later
    assert two.run("spread_trees.load", path=str(path), steps=[1]) == [1, 1]


def test_files_are_each_processs_own(tmp_path: Path, two: Group) -> None:
    two.run("directories.save_files", folder=str(tmp_path))
    assert names(tmp_path) == ["0.safetensors", "1.safetensors", "one.msgpack"]
    for index in range(2):
        assert int(cordwood.load(tmp_path / f"{index}.safetensors")["step"]) == index


def test_processes_that_save_to_different_places(tmp_path: Path, two: Group) -> None:
    for text in two.fail("directories.disagree", folder=str(tmp_path), timeout_seconds=6.0):
        assert f"process 1 came to save {tmp_path}/1, process 0 to save {tmp_path}/0" in text
    assert names(tmp_path) == []


def test_what_one_process_cannot_do_with_spread_arrays(tmp_path: Path, two: Group) -> None:
    for save, diff in two.run("directories.use_alone", folder=str(tmp_path)):
        for text in (save, diff):
            assert "w: parts of this array are on the devices of other processes: " in text
            assert "or gather it first (jax.experimental.multihost_utils" in text
        assert "save to a directory, which all processes write together" in save
        assert "diff compares in one process" in diff


def test_the_index_is_small_and_says_all(tmp_path: Path, four: Group) -> None:
    path = tmp_path / "x"
    four.run("spread_trees.save", path=str(path), step=1, columns=2)
    index = json.loads((path / "cordwood.json").read_text())
    written = {row[0] for row in index["items"][""]["files"]}
    assert written == {name for name in names(path) if name.startswith("data-")}
    assert {name.split("-")[2] for name in written} <= {"0", "1", "2", "3"}
