"""`force=True` on what is no single directory of a checkpoint: runs, versions of weights, files."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint
import pytest
from click.testing import CliRunner

import cordwood as cw
import cordwood.compat.orbax as ocp
from cordwood.cli.main import cli
from cordwood.compat.orbax import v1
from cordwood.errors import CordwoodError, NotACheckpointError
from cordwood.storage.object_stores.object_store_client import ObjectStore
from cordwood.storage.object_stores.object_transaction import ObjectTransaction
from tests.compat.orbax.both import assert_same, quiet
from tests.storage.stores import StoredObjects, new_url

pytestmark = quiet
OLD, NEW = {"x": np.arange(3)}, {"y": np.ones(2)}


def save_standard(path: Path | str) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, NEW, force=True)


def save_pytree(path: Path | str) -> None:
    ocp.PyTreeCheckpointer().save(path, NEW, force=True)


def save_by_handler(path: Path | str) -> None:
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).save(path, NEW, force=True)


def save_composite(path: Path | str) -> None:
    with ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        items = ocp.args.Composite(state=ocp.args.StandardSave(NEW))
        checkpointer.save(path, args=items, force=True)


def save_v1(path: Path | str) -> None:
    v1.save(path, NEW, overwrite=True)


def save_checkpointables(path: Path | str) -> None:
    v1.save_checkpointables(path, {"state": NEW}, overwrite=True)


DOORS = (
    save_standard,
    save_pytree,
    save_by_handler,
    save_composite,
    save_v1,
    save_checkpointables,
)


def run_of_cordwood(root: Path | str, **options: Any) -> None:
    with cw.CheckpointManager(root, save=1, **options) as manager:
        for step in (0, 1):
            manager.save(step, OLD)


def run_of_orbax(root: Path, *, composite: bool = False, **options: Any) -> None:
    args = orbax.checkpoint.args
    tree = args.StandardSave(OLD)
    with orbax.checkpoint.CheckpointManager(
        root, options=orbax.checkpoint.CheckpointManagerOptions(**options)
    ) as manager:
        for step in (0, 1):
            manager.save(step, args=args.Composite(state=tree) if composite else tree)


def published(root: Path) -> None:
    publisher = cw.WeightPublisher(root)
    for version in (1, 2):
        publisher.publish(version, {"w": np.full(100, version)}).wait()


def unfinished(root: Path) -> None:
    run_of_cordwood(root)
    for step in ("0", "1"):
        (root / step / "cordwood.json").unlink()


def unfinished_of_orbax(root: Path) -> None:
    run_of_orbax(root)
    for step in ("0", "1"):
        (root / step).rename(root / f"{step}.orbax-checkpoint-tmp-7")


def trees_of_zarr(root: Path) -> None:
    orbax.checkpoint.PyTreeCheckpointHandler(use_ocdbt=False).save(root.parent / "tree", OLD)
    for step in ("0", "1"):
        shutil.copytree(root.parent / "tree" / "x", root / step / "x")


def run_below_an_item(root: Path) -> None:
    run_of_orbax(root.parent / "other", composite=True)
    shutil.copytree(root.parent / "other" / "1", root)
    run_of_cordwood(root / "state" / "run")


def run_below_a_checkpoint(root: Path) -> None:
    orbax.checkpoint.PyTreeCheckpointer().save(root, OLD)
    run_of_cordwood(root / "run")


def runs_in_a_directory(root: Path) -> None:
    run_of_cordwood(root / "default")
    run_of_orbax(root / "state")


ROOTS: dict[str, Callable[[Path], None]] = {
    "cordwood": run_of_cordwood,
    "for both": lambda root: run_of_cordwood(root, orbax=True),
    "orbax": run_of_orbax,
    "orbax, composite": lambda root: run_of_orbax(root, composite=True),
    "orbax, ckpt_1": lambda root: run_of_orbax(root, step_prefix="ckpt"),
    "orbax, weights_1": lambda root: run_of_orbax(root, step_prefix="weights"),
    "orbax, padded": lambda root: run_of_orbax(root, step_format_fixed_length=8),
    "published": published,
    "unfinished": unfinished,
    "unfinished of orbax": unfinished_of_orbax,
    "trees of zarr": trees_of_zarr,
    "below an item": run_below_an_item,
    "below a checkpoint": run_below_a_checkpoint,
    "below a directory": runs_in_a_directory,
}
IN_PLACE = [name for name in ROOTS if "below" not in name and name != "unfinished of orbax"]


def content_of(path: Path) -> dict[str, bytes | None]:
    """Return the bytes of all files, and None for directories and links, below a path."""
    return {
        each.relative_to(path).as_posix(): each.read_bytes()
        if each.is_file() and not each.is_symlink()
        else None
        for each in path.rglob("*")
    }


def remove_as_said(error: Exception) -> None:
    command = re.search(r"`cordwood (rm [^`]+)`", str(error))
    assert command is not None
    assert CliRunner().invoke(cli, [*shlex.split(command[1]), "--yes"]).exit_code == 0


@pytest.mark.parametrize("kind", ROOTS)
def test_no_call_replaces_steps(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "parent" / "run"
    root.parent.mkdir()
    ROOTS[kind](root)
    before = content_of(tmp_path)
    for save in DOORS:
        with pytest.raises(NotACheckpointError) as error:
            save(root)
        if kind in IN_PLACE:
            assert re.search(rf"it is a run with 2 steps.*{root}/STEP.*rm {root}", str(error.value))
        assert content_of(tmp_path) == before, save


@pytest.mark.parametrize("use_ocdbt", [True, False])
@pytest.mark.parametrize("items", [("state", "1"), ("default",), ()])
def test_items_and_keys_that_are_numbers_stay_replaceable(
    items: tuple[str, ...], use_ocdbt: bool, tmp_path: Path
) -> None:
    args = orbax.checkpoint.args
    tree = {"0": {"1": np.ones(2)}, "1": np.zeros(1)}
    if items:
        handler = orbax.checkpoint.CompositeCheckpointHandler(*items)
        composite = args.Composite(**{name: args.StandardSave(tree) for name in items})
        orbax.checkpoint.Checkpointer(handler).save(tmp_path / "one", args=composite)
    else:
        checkpointer = orbax.checkpoint.PyTreeCheckpointer(use_ocdbt=use_ocdbt)
        checkpointer.save(tmp_path / "one", tree)
    save_standard(tmp_path / "one")
    assert_same(cw.load(tmp_path / "one"), NEW)


def test_a_pinned_step_and_an_open_manager_keep_their_run(tmp_path: Path) -> None:
    with cw.CheckpointManager(tmp_path / "run", save=1) as manager:
        manager.save(1, OLD)
        manager.wait()
        with manager.pin(1), pytest.raises(NotACheckpointError, match="a run with 1 step"):
            save_standard(tmp_path / "run")
        manager.save(2, OLD)
    assert cw.StepReader(tmp_path / "run").steps() == [1, 2]


def test_other_calls_that_write_keep_steps_as_well(tmp_path: Path) -> None:
    root = tmp_path / "run"
    run_of_cordwood(root)
    cw.save(tmp_path / "one", NEW)
    before = content_of(root)
    calls: list[Callable[[], object]] = [
        lambda: cw.combine(root, {tmp_path / "one": 1.0}, overwrite=True),
        lambda: cw.copy(tmp_path / "one", root),
    ]
    for name in ("packs", "zarr", "orbax"):
        calls += [
            partial(cw.save, root, NEW, format=name),
            partial(cw.convert, tmp_path / "one", root, format=name, overwrite=True, lossy=True),
        ]
    calls.append(partial(cw.convert, tmp_path / "one", root, format="hugging_face", overwrite=True))
    for call in calls:
        with pytest.raises((CordwoodError, FileExistsError)):
            call()
        assert content_of(root) == before


def test_the_remedies_for_a_run_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_of_cordwood("run")
    with pytest.raises(NotACheckpointError) as error:
        save_pytree("run")
    save_pytree("run/5")
    assert_same(cw.load("run/5"), NEW)
    assert_same(cw.load("run/1"), OLD)
    remove_as_said(error.value)
    save_pytree("run")
    assert_same(cw.load("run"), NEW)


@pytest.mark.parametrize("name", ["checkpoint_5", "old.msgpack", "old.safetensors"])
def test_a_file_is_not_replaced_by_a_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    suffix = ".safetensors" if name.endswith(".safetensors") else ".msgpack"
    cw.save(f"saved{suffix}", OLD)
    Path(f"saved{suffix}").rename(name)
    path = Path(name)
    before = content_of(tmp_path)
    with pytest.raises(NotACheckpointError, match="is a directory, which replaces no f") as error:
        save_pytree(path)
    assert content_of(tmp_path) == before
    remove_as_said(error.value)
    if name == "checkpoint_5":
        save_pytree(path)
        assert_same(cw.load(path), NEW)


def put(url: str, path: Path) -> StoredObjects:
    """Put what is below a path below a URL."""
    objects = StoredObjects(url)
    for each in path.rglob("*"):
        if each.is_file():
            objects[each.relative_to(path).as_posix()] = each.read_bytes()
    return objects


@pytest.mark.parametrize("kind", ["orbax", "orbax, padded", "below an item", "cordwood"])
def test_no_call_replaces_steps_in_a_store(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_url("memory", monkeypatch) as url:
        if kind == "cordwood":
            run_of_cordwood(f"{url}/run")
            objects = StoredObjects(url)
        else:
            ROOTS[kind](tmp_path / "parent" / "run")
            objects = put(url, tmp_path / "parent")
        before = dict(objects)
        for save in (save_standard, save_v1):
            with pytest.raises(NotACheckpointError):
                save(f"{url}/run")
        assert dict(objects) == before


def test_an_object_that_is_a_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cw.save(tmp_path / "old.msgpack", OLD)
    with new_url("memory", monkeypatch) as url:
        objects = StoredObjects(url)
        objects["checkpoint_5"] = (tmp_path / "old.msgpack").read_bytes()
        before = dict(objects)
        with pytest.raises(NotACheckpointError, match="replaces no file: save to another path: "):
            save_pytree(f"{url}/checkpoint_5")
        assert dict(objects) == before
        save_pytree(f"{url}/another")


class KilledError(BaseException):
    pass


def kill(*arguments: object, **options: object) -> None:
    raise KilledError


@pytest.mark.parametrize("after_index", [False, True])
def test_a_killed_replacement_in_a_store_is_repeated_and_completed(
    after_index: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orbax.checkpoint.PyTreeCheckpointer().save(tmp_path / "saved", OLD)
    with new_url("memory", monkeypatch) as url:
        objects = put(url, tmp_path)
        with monkeypatch.context() as killed:
            # Nothing is deleted any more: a process that was killed cleans up nothing.
            killed.setattr(ObjectStore, "delete", kill)
            if not after_index:
                killed.setattr(ObjectTransaction, "commit", kill)
            with pytest.raises(KilledError):
                save_pytree(f"{url}/saved")
        assert_same(cw.load(f"{url}/saved"), NEW if after_index else OLD)
        assert "saved/_METADATA" in objects
        objects["saved/notes"] = b"mine"
        if not after_index:
            cw.gc(f"{url}/saved")  # removes nothing of the old one
            assert_same(cw.load(f"{url}/saved"), OLD)
            with pytest.raises(NotACheckpointError, match="holds notes, which is no part of it"):
                save_pytree(f"{url}/saved")
            del objects["saved/notes"]
        save_pytree(f"{url}/saved")
        assert_same(cw.load(f"{url}/saved"), NEW)
        assert ("saved/_METADATA" in objects) == after_index
        removed = cw.gc(f"{url}/saved")
        assert any(each.endswith("/_METADATA") for each in removed) == after_index
        assert not [each for each in objects if each.endswith((".gc", "METADATA", ".ocdbt"))]
        assert ("saved/notes" in objects) == after_index
        assert_same(cw.load(f"{url}/saved"), NEW)
