"""Leftovers of killed saves are removed by the next save, before it writes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.storage import syscalls
from cordwood.storage.paths import temporary_path
from tests.manager.dying import Dying, Killed

TREE = {"w": np.arange(100.0)}


def test_a_run_that_dies_in_every_save_does_not_fill_the_disk(tmp_path: Path) -> None:
    entries = []
    for call in range(1, 40):
        manager = CheckpointManager(tmp_path, background=False)
        dying = Dying(call)
        with syscalls.override(dying), suppress(Killed):
            manager.save(7, TREE)
        if not dying.died or manager.latest() == 7:
            break
        entries.append(sorted(os.listdir(tmp_path / "7")) if (tmp_path / "7").exists() else [])
    assert max(sum(name.startswith("data-") for name in names) for names in entries) == 1
    assert max(map(len, entries)) <= 4  # and the temporaries of two small files, and a lock
    CheckpointManager(tmp_path, background=False).save(8, TREE)
    assert sorted(os.listdir(tmp_path)) == ["7", "8"]


def test_what_is_left_of_other_steps_goes_before_a_save(tmp_path: Path) -> None:
    """And of deletions: a full disk is no reason that it stays full."""
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / f"data-{'0' * 16}-0-0.safetensors").write_bytes(b"dead")
    gone = tmp_path / f".2.cordwood-{'0' * 16}.deleted"
    gone.mkdir()
    (gone / "cordwood.json").write_bytes(b"dead")
    with syscalls.override(Dying(20)), suppress(Killed):
        CheckpointManager(tmp_path, background=False).save(7, TREE)
    assert sorted(os.listdir(tmp_path)) == ["7"]


def test_what_is_left_in_a_whole_step_goes_after_a_save(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE)
        manager.save(2, TREE)
    whole = sorted(os.listdir(tmp_path / "1"))
    (tmp_path / "2" / ".cordwood.json.cordwood-lock").write_bytes(b"")
    for name in ("cordwood.json", "model.safetensors.index.json"):
        Path(temporary_path(str(tmp_path / "1"), name)).write_bytes(b"dead")
    (tmp_path / "1" / f"data-{'0' * 16}-0-0.safetensors").write_bytes(b"dead")
    (tmp_path / "1" / "mine.txt").write_bytes(b"")
    with CheckpointManager(tmp_path) as manager:
        manager.save(3, TREE)
    assert sorted(os.listdir(tmp_path / "1")) == sorted([*whole, "mine.txt"])
    assert not [name for name in os.listdir(tmp_path / "2") if name.startswith(".")]
    assert manager.steps() == [1, 2, 3]


def test_directories_with_numbers_do_not_list_the_root_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand of them, as classes of images may lie, would take minutes."""
    for number in range(40):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "a.png").write_bytes(b"x")
    listed = 0

    def counted(function: Any) -> Any:
        def call(path: Any = ".", *rest: Any) -> Any:
            nonlocal listed
            listed += str(path) == str(tmp_path)
            return function(path, *rest)

        return call

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    with CheckpointManager(tmp_path) as manager:
        assert manager.restore() is None
        manager.save(100, {"w": np.ones(3)})
    assert manager.steps() == [100]
    assert 0 < listed < 40


def test_gc_of_a_run_looks_into_unfinished_steps(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE)
    dead = f"data-{'0' * 16}-0-0.safetensors"
    for name in ("2", "3", "1", "notes"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / dead).write_bytes(b"dead")
    (tmp_path / "3" / "mine").write_bytes(b"")
    (tmp_path / "4").mkdir()
    expected = [f"{tmp_path}/2/{dead}", f"{tmp_path}/3/{dead}", f"{tmp_path}/4"]
    assert sorted(cordwood.gc(tmp_path, dry_run=True)) == expected
    assert sorted(cordwood.gc(tmp_path)) == expected
    assert sorted(os.listdir(tmp_path)) == ["1", "3", "notes"]
    assert os.listdir(tmp_path / "3") == ["mine"]
    assert os.listdir(tmp_path / "notes") == [dead]
    assert dead in os.listdir(tmp_path / "1")  # whole: `gc run/1`, or the next save
