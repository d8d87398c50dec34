"""Files of a user in a checkpoint of Orbax, by names that its own files might have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from cordwood.errors import NotACheckpointError
from cordwood.formats.orbax.checkpoint_files import foreign_files
from cordwood.removing.remove_checkpoint import plan_removal, remove
from cordwood.storage.locations import parse_location
from tests.foreign_files.make.__main__ import GOLDEN

TREE = {"w": np.arange(4.0), "b": {"c": np.ones((2, 3)), "t": "text"}}


def save_tree(path: Path) -> None:
    ocp.PyTreeCheckpointer(use_ocdbt=True).save(path, TREE)


def save_arrays(path: Path) -> None:
    ocp.PyTreeCheckpointer(use_ocdbt=False).save(path, TREE)


def save_zarr3(path: Path) -> None:
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=True)
    ocp.Checkpointer(handler).save(path, TREE)


def save_items(path: Path) -> None:
    items = ocp.args.Composite(state=ocp.args.PyTreeSave(TREE), conf=ocp.args.JsonSave({"a": 1}))
    ocp.Checkpointer(ocp.CompositeCheckpointHandler()).save(path, args=items)


def save_step(path: Path) -> None:
    with ocp.CheckpointManager(path.parent) as manager:
        items = ocp.args.Composite(state=ocp.args.PyTreeSave(TREE), conf=ocp.args.JsonSave({}))
        manager.save(int(path.name), args=items, metrics={"loss": 1.0})
        manager.wait_until_finished()


WRITERS = (save_tree, save_arrays, save_zarr3, save_items, save_step)
NEIGHBOURS = [
    "notes/metadata",
    "notes/process_0-of-1.json",
    "embeddings/.zarray",
    "embeddings/0.0",
    "embeddings/zarr.json",
    "other/d/0123456789abcdef",
    "other/_METADATA.json",
]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_they_are_no_part_of_it(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "run" / "1"
    path.parent.mkdir()
    write(path)
    own = sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())
    places = NEIGHBOURS + [f"state/{name}" for name in NEIGHBOURS if (path / "state").exists()]
    assert foreign_files(parse_location(path), [*own, *places]) == {*places}
    for name in places:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
        with pytest.raises(NotACheckpointError) as e:
            plan_removal(path)
        assert name in str(e.value)
        (path / name).unlink()
        for folder in (path / name).parents:
            if folder != path and not any(folder.iterdir()):
                folder.rmdir()
    remove(plan_removal(path))
    assert not path.exists()


def checkpoints_of_all_versions() -> list[Path]:
    marks = [each for name in ("_METADATA", "checkpoint") for each in GOLDEN.rglob(name)]
    folders = {mark.parent for mark in marks if mark.is_file()}
    return sorted(folders | {folder.parent for folder in folders if folder.parent.parent != GOLDEN})


@pytest.mark.parametrize("path", checkpoints_of_all_versions(), ids=lambda path: path.name)
def test_no_file_of_any_version_is_taken_for_a_users(path: Path) -> None:
    names = [str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()]
    assert not foreign_files(parse_location(path), names)
