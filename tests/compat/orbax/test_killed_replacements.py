"""`force=True` over a checkpoint of Orbax: killed at any call, the old or the new one is there."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint
import pytest

import cordwood as cw
import cordwood.compat.orbax as ocp
from cordwood.compat.orbax import v1
from cordwood.errors import NotACheckpointError
from cordwood.storage import syscalls
from cordwood.storage.object_stores.object_store_client import ObjectStore
from tests.compat.orbax.both import assert_same, quiet
from tests.faults.systems import LackingSystem
from tests.manager.dying import Dying, Killed
from tests.storage.stores import StoredObjects, new_url

pytestmark = quiet
OLD, NEW = {"x": np.arange(3)}, {"y": np.ones(2)}


class DyingWithoutExchange(Dying):
    """The same on a file system such as NFS, which cannot exchange two directories."""

    def exchange(self, one: str, other: str) -> None:
        LackingSystem(["exchange"]).exchange(one, other)


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    orbax.checkpoint.PyTreeCheckpointer().save(tmp_path / "parent" / "saved", OLD)
    return tmp_path / "parent"


def save_new(path: Path | str) -> None:
    ocp.PyTreeCheckpointer().save(path, NEW, force=True)


def restored_by_orbax(path: Path) -> Any:
    return orbax.checkpoint.PyTreeCheckpointer().restore(path)


def files_in(path: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()
    }


@pytest.mark.parametrize("system", [Dying, DyingWithoutExchange])
def test_at_every_call_the_old_or_the_new_one_is_whole(system: type[Dying], parent: Path) -> None:
    copy, old_files = parent.with_name("copy"), files_in(parent / "saved")
    outcomes = []
    for call in range(1, 500):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(parent, copy)
        dying = system(call)
        with syscalls.override(dying), suppress(Killed):
            save_new(copy / "saved")
        loaded = cw.load(copy / "saved")
        with pytest.raises(ValueError, match="already exists"):  # it first undoes half an exchange
            ocp.PyTreeCheckpointer().save(copy / "saved", NEW)
        is_new = (copy / "saved" / "cordwood.json").exists()
        outcomes.append(is_new)
        if is_new:
            assert cw.verify(copy / "saved").stale == ()
        else:
            assert files_in(copy / "saved") == old_files
        assert_same(loaded, NEW if is_new else OLD)
        save_new(copy / "saved")
        assert cw.verify(copy / "saved").stale == ()
        assert {*os.listdir(copy)} <= {"saved", ".steps.cordwood-lock"}
        if not dying.died:
            break
    assert_same(restored_by_orbax(copy / "saved"), NEW)
    assert len(outcomes) > 25
    assert outcomes == sorted(outcomes)  # from some call on it is the new one
    assert outcomes.count(True) > 3  # some of the old one was still there


class FileThatComes(syscalls.SystemCalls):
    """Someone puts a file into the old directory just before, or after, the exchange."""

    def __init__(self, path: Path, *, is_after: bool) -> None:
        self._path = path
        self._is_after = is_after

    def exchange(self, one: str, other: str) -> None:
        if not self._is_after:
            self._path.write_text("mine")
        super().exchange(one, other)
        if self._is_after and not self._path.exists():
            (Path(one) / self._path.name).write_text("mine")


@pytest.mark.parametrize("is_after", [False, True])
def test_a_file_that_comes_meanwhile_keeps_the_old_one(parent: Path, is_after: bool) -> None:
    notes = parent / "saved" / "notes"
    with (
        syscalls.override(FileThatComes(notes, is_after=is_after)),
        pytest.raises(NotACheckpointError, match="has changed while a new checkpoint was written"),
    ):
        save_new(parent / "saved")
    assert notes.read_text() == "mine"
    assert_same(restored_by_orbax(parent / "saved"), OLD)
    assert {*os.listdir(parent)} <= {"saved", ".steps.cordwood-lock"}
    with pytest.raises(NotACheckpointError, match="notes, which is no part of it"):
        save_new(parent / "saved")
    notes.unlink()
    save_new(parent / "saved")
    assert_same(cw.load(parent / "saved"), NEW)


def test_a_tree_that_is_refused_leaves_nothing_beside_the_old_one(parent: Path) -> None:
    with pytest.raises(cw.errors.UnsupportedLeafError):
        v1.save(parent / "saved", {"w": object()}, overwrite=True)
    assert os.listdir(parent) == ["saved"]
    v1.save(parent / "saved", NEW, overwrite=True)
    assert_same(cw.load(parent / "saved"), NEW)


def test_the_new_directory_has_the_permissions_of_the_old_one(parent: Path) -> None:
    (parent / "saved").chmod(0o750)
    save_new(parent / "saved")
    assert (parent / "saved").stat().st_mode & 0o777 == 0o750


def test_in_a_store_the_old_objects_go_last(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_url("memory", monkeypatch) as url:
        objects = StoredObjects(url)
        for path in parent.rglob("*"):
            if path.is_file():
                objects[path.relative_to(parent).as_posix()] = path.read_bytes()
        trees_at_deletions = []
        delete = ObjectStore.delete

        def look_and_delete(store: ObjectStore, names: list[str]) -> None:
            if "_METADATA" in names:
                trees_at_deletions.append(cw.load(f"{url}/saved"))
            delete(store, names)

        monkeypatch.setattr(ObjectStore, "delete", look_and_delete)
        with pytest.raises(cw.errors.UnsupportedLeafError):
            ocp.PyTreeCheckpointer().save(f"{url}/saved", {"w": object()}, force=True)
        assert_same(cw.load(f"{url}/saved"), OLD)
        save_new(f"{url}/saved")
        assert_same(trees_at_deletions, [NEW])
        assert "saved/cordwood.json" in objects
        assert "saved/_METADATA" not in objects
        assert_same(cw.load(f"{url}/saved"), NEW)
