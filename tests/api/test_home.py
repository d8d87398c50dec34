"""A path that begins with `~` means the home directory in every function that takes a path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.msgpack import load_from_file, save_to_file
from cordwood.storage.locations import parse_location
from tests.cli.conftest import Run, run  # noqa: F401  (a fixture)

TREE = {"w": np.arange(3.0)}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home directory with checkpoints; the working directory is another one, and empty."""
    folder = tmp_path / "home"
    cordwood.save(folder / "m.safetensors", TREE)
    cordwood.save(folder / "ckpt", TREE)
    cordwood.save(folder / "run/1", TREE)
    save_to_file(TREE, folder / "m.msgpack")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(folder))
    return folder


def save_and_wait(path: str) -> None:
    cordwood.save_async(path, TREE).wait()


def save_step(root: str) -> None:
    with CheckpointManager(root) as manager:
        manager.save(1, TREE)


USES: dict[str, Callable[[], object]] = {
    "save": lambda: cordwood.save("~/new/a.safetensors", TREE),
    "save a directory": lambda: cordwood.save("~/new/a", TREE),
    "save zarr": lambda: cordwood.save("~/new/a", TREE, format="zarr"),
    "save a path object": lambda: cordwood.save(Path("~/new/a"), TREE),
    "save_async": lambda: save_and_wait("~/new/a.msgpack"),
    "manager": lambda: save_step("~/new"),
    "convert": lambda: cordwood.convert("~/m.safetensors", "~/new/a.msgpack"),
    "save_to_file": lambda: save_to_file(TREE, "~/m.msgpack"),
    "tree_serialize_leaves": lambda: cordwood.tree_serialize_leaves("~/new/a", TREE),
    "load": lambda: cordwood.load("~/m.safetensors"),
    "load a directory": lambda: cordwood.load("~/ckpt"),
    "open": lambda: cordwood.open("~/ckpt").close(),
    "diff": lambda: cordwood.diff("~/ckpt", "~/m.safetensors"),
    "verify": lambda: cordwood.verify("~/ckpt", progress=lambda _: None, resume="~/record"),
    "detect": lambda: cordwood.detect("~/run"),
    "gc": lambda: cordwood.gc("~/ckpt"),
    "restore": lambda: StepReader("~/run").restore(required=True),
    "load_from_file": lambda: load_from_file(TREE, "~/m.msgpack"),
}


NEW = {
    "save",
    "save a directory",
    "save zarr",
    "save a path object",
    "save_async",
    "manager",
    "convert",
    "tree_serialize_leaves",
}


@pytest.mark.parametrize("use", USES)
def test_every_function_expands_it(home: Path, use: str) -> None:
    USES[use]()
    assert os.listdir() == []
    assert (home / "new").exists() == (use in NEW)


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls", "~/ckpt"),
        ("info", "~/ckpt"),
        ("show", "~/ckpt", "w"),
        ("cat", "~/ckpt", "w"),
        ("diff", "~/ckpt", "~/m.safetensors"),
        ("verify", "~/ckpt"),
        ("convert", "~/ckpt", "~/new.msgpack"),
        ("steps", "~/run"),
        ("gc", "~/ckpt"),
        ("doctor", "~"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_every_command_expands_it(home: Path, run: Run, arguments: tuple[str, ...]) -> None:  # noqa: F811
    assert run(*arguments).code == 0
    assert os.listdir() == []


def test_only_a_leading_tilde_of_a_text_is_expanded(home: Path) -> None:
    assert str(parse_location("~")) == str(home)
    assert str(parse_location("~/a")) == f"{home}/a"
    assert str(parse_location("~root/a")) == os.path.expanduser("~root/a")
    assert str(parse_location("./~/a")) == "./~/a"
    assert str(parse_location("~no-such-user-here")) == "~no-such-user-here"
    assert str(parse_location("s3://bucket/~/a")) == "s3://bucket/~/a"
    assert str(parse_location(Path("a/~"))) == "a/~"


def test_a_missing_home_directory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ValueError, match="has no home directory; give the whole path"):
        cordwood.save("~/a.safetensors", TREE)
