"""Checkpoints and runs in directories that also hold what no checkpoint has."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.errors import CordwoodError, LimitError, NotACheckpointError
from cordwood.removing.remove_checkpoint import plan_removal
from cordwood.storage.directories import size_on_disk
from cordwood.storage.locations import parse_location
from cordwood.storage.removal.list_tree import MAX_DEPTH
from tests.cli.conftest import Run

TREE = {"w": np.arange(4)}
DEPTH = 1200


@pytest.fixture(autouse=True)
def _remove_deep_directories(tmp_path: Path) -> Iterator[None]:
    """Remove what pytest cannot: it calls itself for each level of directories."""
    yield
    subprocess.run(["rm", "-rf", tmp_path], check=True)


def nested_directories(folder: Path) -> None:
    at = os.open(folder, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)


def links_in_a_loop(folder: Path) -> None:
    (folder / "itself").symlink_to("itself")
    (folder / "here").symlink_to(".")
    (folder / "nowhere").symlink_to("missing")


def special_files(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "pipe.safetensors")
    os.mkfifo(folder / ".zattrs")
    at = os.open(folder, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:  # its path may have 107 bytes
        server.bind(f"/proc/self/fd/{at}/socket")
    os.close(at)


def names_that_are_not_utf8(folder: Path) -> None:
    inside = os.fsencode(folder)
    for name in (b"\xff", b"model-\xff.safetensors", b"\xff.json"):
        Path(os.fsdecode(os.path.join(inside, name))).touch()
    os.mkdir(os.path.join(inside, b"folder\xff"))


NEIGHBOURS = (nested_directories, links_in_a_loop, special_files, names_that_are_not_utf8)
each_neighbour = pytest.mark.parametrize("add", NEIGHBOURS, ids=lambda add: add.__name__)


@each_neighbour
@pytest.mark.parametrize("layout", ["packs", "zarr"])
def test_every_call_works_beside_unknown_files_in_a_checkpoint(
    tmp_path: Path, run: Run, add: Callable[[Path], None], layout: Literal["packs", "zarr"]
) -> None:
    """Every call reads and writes the checkpoint all the same, and `rm` says why it does not."""
    path = tmp_path / "step"
    cordwood.save(path, TREE, format=layout)
    add(path)
    assert cordwood.load(path)["w"].tolist() == [0, 1, 2, 3]
    assert cordwood.verify(path).leaves == 1
    assert cordwood.diff(path, path).equal
    assert cordwood.gc(path) == []
    cordwood.convert(path, tmp_path / "converted")
    if layout == "packs":
        cordwood.copy(path, tmp_path / "copied")
        assert cordwood.load(tmp_path / "copied")["w"].tolist() == [0, 1, 2, 3]
    assert size_on_disk(parse_location(path)) > 0
    for command in ("ls", "info"):
        assert run(command, path).code == 0
    with pytest.raises((LimitError, NotACheckpointError), match=r"no part of it|special|deep"):
        plan_removal(path)
    cordwood.save(path, {"w": np.zeros(2)}, format=layout)
    assert cordwood.load(path)["w"].tolist() == [0, 0]


@each_neighbour
def test_every_call_works_beside_unknown_files_in_a_run(
    tmp_path: Path, run: Run, add: Callable[[Path], None]
) -> None:
    root = tmp_path / "run"
    with CheckpointManager(root) as manager:
        manager.save(1, TREE)
        manager.save(2, TREE)
        manager.wait()
        add(root)
        add(root / "1")
        assert manager.steps() == [1, 2]
        manager.save(3, TREE)
        manager.wait()
        assert manager.restore(2).tree["w"].tolist() == [0, 1, 2, 3]
    cordwood.gc(root)
    cordwood.copy(root, tmp_path / "copied")
    assert cordwood.load(tmp_path / "copied" / "3")["w"].tolist() == [0, 1, 2, 3]
    assert run("ls", root).code == 3
    with pytest.raises(CordwoodError, match=r"2 steps|3 steps"):
        cordwood.load(root)


def test_directories_too_deep_to_be_removed_are_named(tmp_path: Path) -> None:
    path = tmp_path / "step"
    cordwood.save(path, TREE)
    nested_directories(path)
    message = f"the directories in d are nested more than {MAX_DEPTH} deep.*rm -r"
    with pytest.raises(LimitError, match=message):
        plan_removal(path)


def test_links_that_lead_nowhere_are_no_steps(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE)
        manager.wait()
        (tmp_path / "7").symlink_to("7")
        (tmp_path / "8").symlink_to("missing")
        assert manager.steps() == [1]
