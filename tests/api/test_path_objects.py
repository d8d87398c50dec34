"""A path object of another library that stands for a URL is that URL, in every public call."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from etils import epath
from obstore.store import MemoryStore

import cordwood
import cordwood.compat.orbax as ocp
from cordwood import CheckpointManager, StepReader
from cordwood.cli.main import COMMANDS as COMMAND_MODULES
from cordwood.cli.main import cli
from cordwood.errors import UnsupportedFormatError
from cordwood.msgpack import load_from_file, save_to_file
from cordwood.storage.locations import parse_location
from cordwood.testing import assert_trees_equal, flip_bits
from tests.cli.conftest import Run, run  # noqa: F401  (a fixture)
from tests.test_public_names import NAMESPACES, PEER_MODULES

TREE = {"w": np.arange(3.0)}
LORA = {"w": {"a": np.ones(1), "b": np.ones((1, 3))}}


class Universal:
    """A path object as of universal_pathlib and eFormer, which is no `os.PathLike`."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def with_name(self, name: str) -> Universal:
        return Universal(f"{self._text.rpartition('/')[0]}/{name}")


class Cloud(Universal):
    """A path object as of cloudpathlib, whose `os.fspath` downloads the object."""

    def __fspath__(self) -> str:
        raise AssertionError("the object was downloaded")


class Etils(Universal):
    """A path object as of etils, whose `os.fspath` is the URL."""

    def __fspath__(self) -> str:
        return str(self)


KINDS: list[Callable[[str], Any]] = [Universal, Cloud, Etils]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a folder with checkpoints; the working directory is an empty one."""
    url = f"memory://{tmp_path.name}"
    cordwood.save(f"{url}/ckpt", TREE)
    cordwood.save(f"{url}/run/1", TREE)
    cordwood.save(tmp_path / "m.safetensors", TREE)
    cordwood.delta(tmp_path / "m.safetensors", f"{url}/ckpt", tmp_path / "made")
    cordwood.copy(tmp_path / "made", f"{url}/made")
    cordwood.save(tmp_path / "lora", LORA)
    cordwood.save(f"{url}/lora", LORA)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return url


def _save_step(root: Any) -> None:
    with CheckpointManager(root) as manager:
        manager.save(1, TREE)


def _save_mirrored(mirror: Any) -> None:
    with CheckpointManager("../mirrored", mirror=cordwood.Mirror(mirror)) as manager:
        manager.save((manager.latest() or 0) + 1, TREE)
    assert StepReader(mirror).latest() == manager.latest()


def _save_as_orbax(root: Any) -> None:
    with ocp.CheckpointManager(root) as manager:
        manager.save((manager.latest_step() or 0) + 1, args=ocp.args.StandardSave(TREE))


def _save_as_orbax_v1(root: Any) -> None:
    with ocp.v1.training.Checkpointer(root) as checkpointer:
        checkpointer.save(len(checkpointer.checkpoints), TREE)


def _write_delta(base: Any, target: Any, destination: Any) -> None:
    cordwood.delta(base, target, destination, overwrite=True)


def _apply_delta(base: Any, delta: Any, destination: Any) -> None:
    cordwood.apply_delta(base, delta, destination, overwrite=True)


def _merge_lora(base: Any, adapter: Any, destination: Any) -> None:
    names: Any = {"target": "{module}", "down": "{module}/a", "up": "{module}/b", "alpha": 1}
    cordwood.merge_lora(destination, base, adapter, **names, overwrite=True)


def _publish(location: Any) -> None:
    newest = cordwood.WeightFollower(location).newest() or 0
    cordwood.WeightPublisher(location).publish(newest + 1, TREE).wait()


def _follow(location: Any) -> None:
    _publish(location)
    assert cordwood.WeightFollower(location, to="numpy").update() is not None


LOCAL = "../m.safetensors"
# A path object of a URL in every parameter that takes a path. Calls of local files refuse it.
CALLS: dict[tuple[str, str], Callable[[Any], object]] = {
    ("save", "path"): lambda at: cordwood.save(at("new"), TREE),
    ("save_async", "path"): lambda at: cordwood.save_async(at("new"), TREE).wait(),
    ("load", "path"): lambda at: cordwood.load(at("ckpt"), like=TREE),
    ("open", "path"): lambda at: cordwood.open(at("ckpt")).close(),
    ("verify", "path"): lambda at: cordwood.verify(at("ckpt")),
    ("detect", "path"): lambda at: cordwood.detect(at("ckpt")),
    ("gc", "path"): lambda at: cordwood.gc(at("ckpt")),
    ("diff", "a"): lambda at: cordwood.diff(at("ckpt"), TREE),
    ("diff", "b"): lambda at: cordwood.diff(TREE, at("ckpt")),
    ("convert", "source"): lambda at: cordwood.convert(at("ckpt"), at("new")),
    ("convert", "destination"): lambda at: cordwood.convert(LOCAL, at("new")),
    ("copy", "source"): lambda at: cordwood.copy(at("ckpt"), "../new"),
    ("copy", "destination"): lambda at: cordwood.copy(at("ckpt"), at("new")),
    ("delta", "base"): lambda at: _write_delta(at("ckpt"), LOCAL, "../delta"),
    ("delta", "target"): lambda at: _write_delta(LOCAL, at("ckpt"), "../delta"),
    ("delta", "destination"): lambda at: _write_delta(LOCAL, LOCAL, at("new")),
    ("apply_delta", "base"): lambda at: _apply_delta(at("ckpt"), "../made", "../applied"),
    ("apply_delta", "delta"): lambda at: _apply_delta(LOCAL, at("made"), "../applied"),
    ("apply_delta", "destination"): lambda at: _apply_delta(LOCAL, "../made", at("new")),
    ("combine", "destination"): lambda at: cordwood.combine(at("new"), {LOCAL: 1}),
    ("combine", "weights"): lambda at: cordwood.combine(
        "../combined", {at("ckpt"): 1, LOCAL: 1}, overwrite=True
    ),
    ("merge_lora", "destination"): lambda at: _merge_lora(LOCAL, "../lora", at("new")),
    ("merge_lora", "base"): lambda at: _merge_lora(at("ckpt"), "../lora", "../merged"),
    ("merge_lora", "adapter"): lambda at: _merge_lora(LOCAL, at("lora"), "../merged"),
    ("open_combined", "weights"): lambda at: cordwood.open_combined({at("ckpt"): 1}).close(),
    ("WeightPublisher", "location"): lambda at: _publish(at("published")),
    ("WeightFollower", "location"): lambda at: _follow(at("published")),
    ("Mirror", "root"): lambda at: _save_mirrored(at("new")),
    ("CheckpointManager", "root"): lambda at: _save_step(at("new")),
    ("CheckpointManager", "directory"): lambda at: _save_as_orbax(at("new")),
    ("Checkpointer", "directory"): lambda at: _save_as_orbax_v1(at("new")),
    ("checkpoints_iterator", "checkpoint_dir"): lambda at: next(
        ocp.checkpoint_utils.checkpoints_iterator(at("run"))
    ),
    ("save_pytree", "path"): lambda at: ocp.v1.save_pytree(at("new"), TREE, overwrite=True),
    ("save_pytree_async", "path"): lambda at: ocp.v1.save_pytree_async(
        at("new"), TREE, overwrite=True
    ).result(),
    ("load_pytree", "path"): lambda at: ocp.v1.load_pytree(at("ckpt")),
    ("save_checkpointables", "path"): lambda at: ocp.v1.save_checkpointables(
        at("new"), {"state": TREE}, overwrite=True
    ),
    ("save_checkpointables_async", "path"): lambda at: ocp.v1.save_checkpointables_async(
        at("new"), {"state": TREE}, overwrite=True
    ).result(),
    ("load_checkpointables", "path"): lambda at: ocp.v1.load_checkpointables(at("ckpt")),
    ("metadata", "path"): lambda at: ocp.v1.metadata(at("ckpt")),
    ("pytree_metadata", "path"): lambda at: ocp.v1.pytree_metadata(at("ckpt")),
    ("StepReader", "root"): lambda at: StepReader(at("run")).restore(required=True),
}
LOCAL_CALLS: dict[tuple[str, str], Callable[[Any], object]] = {
    ("open", "scratch"): lambda at: cordwood.open(LOCAL, scratch=at("x")),
    ("convert", "files_from"): lambda at: cordwood.convert(
        LOCAL, "../hub", format="hugging_face", files_from=at("x")
    ),
    ("convert", "scratch"): lambda at: cordwood.convert(LOCAL, "../new", scratch=at("x")),
    ("verify", "resume"): lambda at: cordwood.verify(LOCAL, resume=at("x")),
    ("verify", "journal"): lambda at: cordwood.verify(LOCAL, journal=at("x")),
    ("copy", "journal"): lambda at: cordwood.copy(LOCAL, "../copied", journal=at("x")),
    ("convert", "journal"): lambda at: cordwood.convert(LOCAL, "../new", journal=at("x")),
    ("diff", "journal"): lambda at: cordwood.diff(LOCAL, LOCAL, journal=at("x")),
    ("save_to_file", "filepath"): lambda at: save_to_file(TREE, at("x")),
    ("load_from_file", "filepath"): lambda at: load_from_file(TREE, at("x")),
    ("flip_bits", "path"): lambda at: flip_bits(at("x"), cordwood.load),
    ("tree_serialize_leaves", "checkpoint_dir"): lambda at: cordwood.tree_serialize_leaves(
        at("x"), TREE
    ),
    ("tree_deserialize_leaves", "checkpoint_dir"): lambda at: cordwood.tree_deserialize_leaves(
        at("x"), None
    ),
}
VALUES = {("CheckpointMetadata", "path")}  # it keeps a path that a call has returned
# Parameters that take a path besides other values, or whose annotation does not say so.
UNTYPED = {
    ("diff", "a"),
    ("diff", "b"),
    ("combine", "weights"),
    ("open_combined", "weights"),
    ("tree_serialize_leaves", "checkpoint_dir"),
    ("tree_deserialize_leaves", "checkpoint_dir"),
}
BYTES = [each for each in (CALLS | LOCAL_CALLS).items() if each[0][0] != "diff"]
COMMANDS: dict[str, tuple[str, ...]] = {
    "ls": ("{}/ckpt",),
    "info": ("{}/ckpt",),
    "show": ("{}/ckpt", "w"),
    "cat": ("{}/ckpt", "w"),
    "diff": ("{}/ckpt", "{}/run/1"),
    "verify": ("{}/ckpt",),
    "convert": ("{}/ckpt", "{}/new"),
    "copy": ("{}/ckpt", "{}/new"),
    "delta": ("{}/ckpt", "{}/run/1", "../delta"),
    "apply": ("{}/ckpt", "../made", "{}/new"),
    "combine": ("{}/ckpt=1", "{}/new"),
    "average": ("{}/run", "{}/new", "--last", "1"),
    "steps": ("{}/run",),
    "gc": ("{}/ckpt",),
    "doctor": ("{}/ckpt",),
    "prune": ("{}/run", "--keep", "last 1"),
    "rm": ("{}/ckpt", "--yes"),
    "view": ("{}/ckpt", "--export", "../page.html"),
}


LOCAL_COMMANDS = {
    "index": ("{}/ckpt", "--orbax"),
    "merge-lora": ("../m.safetensors", "{}/ckpt", "../merged"),  # an adapter of PEFT
    "serve": ("{}/ckpt",),
}


def _name(row: object) -> str:
    return ".".join(row) if isinstance(row, tuple) else getattr(row, "__name__", "")


def _parameters() -> Iterator[tuple[str, str]]:
    """Yield each parameter of a public function or class that takes a path."""
    for module in (*NAMESPACES, *PEER_MODULES):
        public = importlib.import_module(module)
        for name in public.__all__:
            value = getattr(public, name)
            is_class = inspect.isclass(value) and not issubclass(value, BaseException)
            if not (inspect.isfunction(value) or is_class):
                continue
            for parameter in inspect.signature(value).parameters.values():
                if "PathLike" in str(parameter.annotation):
                    yield name, parameter.name


def test_every_parameter_that_takes_a_path_has_a_row() -> None:
    assert {*_parameters(), *UNTYPED} - VALUES == {*CALLS, *LOCAL_CALLS}


def _command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def test_every_command_that_takes_a_path_has_a_row() -> None:
    commands = {
        name
        for name in COMMAND_MODULES
        if any(isinstance(each.type, click.Path) for each in _command(name).params)
    }
    assert commands == {*COMMANDS, *LOCAL_COMMANDS}


@pytest.mark.parametrize("kind", KINDS, ids=_name)
@pytest.mark.parametrize("row", CALLS.items(), ids=lambda row: _name(row[0]))
def test_a_path_object_of_a_url(
    bucket: str, row: tuple[object, Callable[[Any], object]], kind: Callable[[str], Any]
) -> None:
    row[1](lambda name: kind(f"{bucket}/{name}"))
    assert os.listdir() == []


@pytest.mark.parametrize("row", CALLS.items(), ids=lambda row: _name(row[0]))
def test_a_path_object_of_a_local_path(
    bucket: str, tmp_path: Path, row: tuple[object, Callable[[Any], object]]
) -> None:
    del bucket
    cordwood.save(tmp_path / "ckpt", TREE)
    cordwood.save(tmp_path / "run/1", TREE)
    row[1](lambda name: Universal(f"../{name}" if name != "new" else "../other"))
    row[1](lambda name: epath.Path(f"../{name}" if name != "new" else "../another"))
    assert os.listdir() == []


@pytest.mark.parametrize("kind", [str, *KINDS], ids=_name)
@pytest.mark.parametrize("row", LOCAL_CALLS.items(), ids=lambda row: _name(row[0]))
def test_what_takes_local_paths_refuses_a_url(
    bucket: str, row: tuple[object, Callable[[Any], object]], kind: Callable[[str], Any]
) -> None:
    with pytest.raises(UnsupportedFormatError, match=f"{bucket}/x: "):
        row[1](lambda name: kind(f"{bucket}/{name}"))
    assert os.listdir() == []


@pytest.mark.parametrize("row", BYTES, ids=lambda row: _name(row[0]))
def test_every_call_refuses_a_path_of_bytes(
    bucket: str, row: tuple[object, Callable[[Any], object]]
) -> None:
    with pytest.raises(TypeError, match=r"found bytes, b'.*os\.fsdecode\(path\)"):
        row[1](lambda name: f"{bucket}/{name}".encode())
    assert os.listdir() == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_a_url(bucket: str, run: Run, command: str) -> None:  # noqa: F811
    ran = run(command, *[argument.format(bucket, bucket) for argument in COMMANDS[command]])
    assert ran.code == 0, ran.err
    assert os.listdir() == []


@pytest.mark.parametrize("command", LOCAL_COMMANDS)
def test_a_command_for_local_paths_refuses_a_url(bucket: str, run: Run, command: str) -> None:  # noqa: F811
    ran = run(command, *[argument.format(bucket) for argument in LOCAL_COMMANDS[command]])
    assert ran.code != 0
    assert f"{bucket}/ckpt: " in ran.err


@pytest.mark.parametrize("text", ["gs://bucket/run/100", "s3://bucket/run", "az://container/a"])
def test_a_path_of_etils_is_a_location(text: str) -> None:
    path = epath.Path(text)
    assert str(parse_location(path)) == text
    assert parse_location(path) == parse_location(text)
    assert str(parse_location(path / "1")) == f"{text}/1"


def test_a_run_at_a_path_of_etils(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = epath.Path("gs://bucket-of-etils/run")
    with cordwood.storage_options("gs://bucket-of-etils", store=MemoryStore()):
        with CheckpointManager(root) as manager:
            manager.save(100, TREE)
        cordwood.save(root / "101", TREE)
        assert_trees_equal(cordwood.load(root / "100", like=TREE), TREE)
        assert StepReader(root).steps() == [100, 101]
    assert os.listdir() == []


def test_a_path_object_that_has_lost_a_slash_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="pass a str such as 'gs://bucket/x'"):
        parse_location(Etils("gs:/bucket/x"))
