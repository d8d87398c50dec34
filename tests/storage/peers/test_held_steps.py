"""Steps whose files several places hold: they are read as one checkpoint."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood.copying.copy_step import Copier
from cordwood.errors import CorruptionError, StorageError, UnsupportedFormatError
from cordwood.formats.format_protocol import OpenOptions
from cordwood.formats.load_format import storage_of
from cordwood.formats.table import DEFAULT
from cordwood.loading.open_reader import open_reader
from cordwood.storage.locations import Holder, LocalPath, parse_location
from cordwood.testing import assert_trees_equal
from tests.storage.peers.held_steps import (
    ENTRY,
    TOKEN,
    SavedStep,
    held,
    load,
    peer,
    save_step,
    serve,
    tree_of,
)


@pytest.fixture
def step(tmp_path: Path) -> SavedStep:
    return save_step(tmp_path / "whole")


def test_a_step_is_read_from_its_own_root_a_peer_and_a_mirror(
    step: SavedStep, tmp_path: Path
) -> None:
    root = step.copy_to(tmp_path / "own", [0])
    step.copy_to(tmp_path / "other", [1])
    mirror = step.copy_to(tmp_path / "mirror", [0, 1, 2])
    problems: list[str] = []
    with serve(tmp_path / "other") as server:
        other = peer(server.address)
        places: dict[int, list[Holder]] = {0: [root, mirror], 1: [other, mirror], 2: [mirror]}
        location = held(step, places, lambda place, _: problems.append(place))
        for item in range(3):
            assert_trees_equal(load(location, item), tree_of(item))
    assert not problems


def test_a_held_step_is_copied_with_its_digests_checked(step: SavedStep, tmp_path: Path) -> None:
    root = step.copy_to(tmp_path / "own", [0, 1])
    damage(tmp_path / "own" / ENTRY / step.files[1])
    step.copy_to(tmp_path / "other", [1, 2])
    problems: list[str] = []
    with serve(tmp_path / "other") as server:
        other = peer(server.address)
        places: dict[int, list[Holder]] = {0: [root], 1: [root, other], 2: [other]}
        location = held(step, places, lambda place, _: problems.append(place))
        destination = tmp_path / "copy"
        copier = Copier(verify=False, in_pool=False)
        copier.copy_step("", location, LocalPath(str(destination)))
    assert problems == [str(root)]
    cordwood.verify(destination)
    for item in range(3):
        assert_trees_equal(cordwood.load(destination, prefix=str(item)), tree_of(item))


def test_a_store_is_a_place_too_with_the_names_of_its_pool(step: SavedStep, tmp_path: Path) -> None:
    cordwood.copy(tmp_path / "whole", "memory://held-steps")
    place = parse_location(f"memory://held-steps/{ENTRY}")
    location = held(step, {number: [place] for number in range(3)})
    assert_trees_equal(load(location, 1), tree_of(1))


@pytest.mark.parametrize("where", ["header", "data"])
def test_a_damaged_file_is_read_from_the_next_place(
    step: SavedStep, tmp_path: Path, where: str
) -> None:
    root = step.copy_to(tmp_path / "own", [0])
    step.copy_to(tmp_path / "other", [0])
    damage(tmp_path / "own" / ENTRY / step.files[0], at=20 if where == "header" else -1)
    problems: list[tuple[str, Exception]] = []
    with serve(tmp_path / "other") as server:
        places: dict[int, list[Holder]] = {0: [root, peer(server.address)]}
        location = held(step, places, lambda *problem: problems.append(problem))
        assert_trees_equal(load(location, 0), tree_of(0))
    ((place, error),) = problems
    assert place == str(root)
    assert "do not match the digest" in str(error)


def test_a_file_that_is_read_ahead_has_a_next_place_too(step: SavedStep, tmp_path: Path) -> None:
    step.copy_to(tmp_path / "one", [0])
    step.copy_to(tmp_path / "other", [0])
    damage(tmp_path / "one" / ENTRY / step.files[0])
    with serve(tmp_path / "one") as one, serve(tmp_path / "other") as other:
        location = held(step, {0: [peer(one.address), peer(other.address, "process 2")]})
        options = OpenOptions(read_ahead_bytes=1 << 30)
        reader = open_reader(location, format=None, prefix="0", options=options)
        with closing(reader.opened):
            leaves = [leaf for leaf in reader.index.leaves if leaf.dtype]
            arrays = reader.read(leaves)
    np.testing.assert_array_equal(arrays[0], tree_of(0)["w"])


def test_bytes_are_checked_though_no_check_is_asked_for(step: SavedStep, tmp_path: Path) -> None:
    root = step.copy_to(tmp_path / "own", [0])
    damage(tmp_path / "own" / ENTRY / step.files[0])
    with pytest.raises(CorruptionError, match="cannot be read from the 1 place"):
        load(held(step, {0: [root]}), 0, verify=False)


def test_an_error_lists_all_places_that_failed(step: SavedStep, tmp_path: Path) -> None:
    root = step.copy_to(tmp_path / "own", [])
    step.copy_to(tmp_path / "other", [0])
    damage(tmp_path / "other" / ENTRY / step.files[0])
    with serve(tmp_path / "other") as server:
        places: dict[int, list[Holder]] = {0: [root, peer(server.address)]}
        with pytest.raises(CorruptionError) as caught:
            load(held(step, places), 0)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{step.files[0]} of nowhere/{ENTRY}: ")
    assert lines[0].endswith("it cannot be read from the 2 places that should hold it:")
    assert "is missing" in lines[1]
    assert lines[2].startswith(f"  process 1 (http://{server.address}/{ENTRY}): ")
    assert TOKEN not in str(caught.value)


def test_a_place_that_cannot_be_reached_is_no_damage(step: SavedStep, tmp_path: Path) -> None:
    root = step.copy_to(tmp_path / "own", [])
    server = serve(tmp_path / "own")
    server.close()
    places: dict[int, list[Holder]] = {0: [root, peer(server.address)]}
    with pytest.raises(StorageError, match="no connection") as caught:
        load(held(step, places), 0)
    assert not isinstance(caught.value, CorruptionError)
    assert caught.value.errno == errno.EIO


def test_a_file_without_places_is_an_error_that_says_so(step: SavedStep) -> None:
    with pytest.raises(CorruptionError, match="no place holds it"):
        load(held(step, {}), 0)


def test_a_place_that_failed_is_asked_last_for_other_files(step: SavedStep, tmp_path: Path) -> None:
    step.copy_to(tmp_path / "one", [1, 2])
    step.copy_to(tmp_path / "other", [0, 1])
    with serve(tmp_path / "one") as one, serve(tmp_path / "other") as other:
        first, second = peer(one.address), peer(other.address, "process 2")
        places = {0: [first, second], 1: [first, second], 2: [first]}
        problems: list[str] = []
        location = held(step, places, lambda place, _: problems.append(place))
        for item in range(3):
            assert_trees_equal(load(location, item), tree_of(item))
    assert problems == [str(first)]
    assert location.held is not None
    assert location.held.failed == {first}


def test_a_held_step_cannot_be_saved_to_or_mapped(step: SavedStep, tmp_path: Path) -> None:
    location = held(step, {0: [step.copy_to(tmp_path / "own", [0])]})
    with pytest.raises(UnsupportedFormatError, match="can only be read"):
        storage_of(DEFAULT).store_at(location, to_save=True)
    with pytest.raises(OSError, match="mmap=True"):
        load(location, 0, mmap=True)


def test_the_log_has_a_failure_that_nobody_asks_for(
    step: SavedStep, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = step.copy_to(tmp_path / "own", [0])
    removed = tmp_path / "gone" / ENTRY
    assert_trees_equal(load(held(step, {0: [LocalPath(str(removed)), root]}), 0), tree_of(0))
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert str(removed) in record.getMessage()


def damage(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.unlink()  # the other roots link it
    path.write_bytes(data)


def test_an_unreachable_peer_is_an_error_of_storage(step: SavedStep, tmp_path: Path) -> None:
    step.copy_to(tmp_path / "other", [0])
    server = serve(tmp_path / "other")
    server.close()
    errors: list[Exception] = []
    root = step.copy_to(tmp_path / "own", [0])
    location = held(step, {0: [peer(server.address), root]}, lambda _, error: errors.append(error))
    assert_trees_equal(load(location, 0), tree_of(0))
    (error,) = errors
    assert isinstance(error, StorageError)
    assert error.errno == errno.ECONNREFUSED
