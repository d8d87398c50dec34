"""A root without steps: what else lies there is reported, and no run starts anew by accident."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.manager.other_checkpoints import other_checkpoints

TREE = {"w": np.ones(3, np.float32)}


def save_packs(path: Path) -> None:
    cordwood.save(path, TREE)


def save_orbax(path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, TREE)


def save_flax(path: Path) -> None:
    import flax.serialization

    path.write_bytes(flax.serialization.to_bytes(TREE))


def save_eformer(path: Path) -> None:
    from eformer.serialization import AsyncCheckpointManager

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    tree = {"w": jnp.ones(3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tool's own
        AsyncCheckpointManager().save_pytree(tree, str(path), mesh, prefix="state")


WRITERS: dict[str, Callable[[Path], None]] = {
    "packs": save_packs,
    "orbax": save_orbax,
    "flax": save_flax,
    "eformer": save_eformer,
}


@pytest.mark.parametrize(
    ("name", "tool", "description"),
    [
        ("ckpt-4", "orbax", "an Orbax checkpoint"),
        ("model_7", "flax", "a file of msgpack"),
        ("model-3", "packs", "a directory of safetensors files with cordwood's index"),
        ("params_3", "flax", ""),
        ("weights_3", "orbax", ""),
        ("3.ckpt", "orbax", ""),
        ("final", "packs", ""),
        ("epoch3.safetensors", "packs", "a safetensors file"),
        ("model_7.msgpack", "packs", ""),
        ("best", "eformer", "a directory of zarr arrays with eFormer's index"),
    ],
)
@pytest.mark.parametrize("kind", [CheckpointManager, StepReader])
def test_a_checkpoint_of_any_name_is_reported(
    tmp_path: Path, kind: type[StepReader], name: str, tool: str, description: str
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "config.json").write_text("{}")
    WRITERS[tool](tmp_path / name)
    assert cordwood.detect(tmp_path / name).format != "steps"
    with pytest.warns(RuntimeWarning) as warned:
        assert kind(tmp_path).restore() is None
    text = str(warned[0].message)
    assert text.startswith(f"{tmp_path}: nothing is restored, and there are {name}: {name} is ")
    assert description.removeprefix("a file of ") in text
    assert "steps are named 100, checkpoint_100 or run-100; rename those" in text
    assert f"cordwood.load('{tmp_path / name}')" in text
    assert warned[0].filename == __file__


def test_a_root_within_the_root_is_reported(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save(3, TREE)
    with pytest.warns(
        RuntimeWarning,
        match=f"a directory of 1 step: 3; .* give {tmp_path}/checkpoints as the root",
    ):
        assert CheckpointManager(tmp_path).restore() is None


def test_what_eformer_saves_by_itself_is_a_step(tmp_path: Path) -> None:
    save_eformer(tmp_path / "run-10")
    manager = CheckpointManager(tmp_path)
    assert manager.steps() == [10]
    restored = manager.restore(required=True, prefix="state")
    assert restored.step == 10
    assert (restored.tree["w"] == 1).all()
    os.remove(tmp_path / "run-10" / "checkpoint_metadata.json")  # which is written last
    with pytest.warns(RuntimeWarning, match="run-10 is .* without the metadata.json that eFormer"):
        assert CheckpointManager(tmp_path).restore() is None


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]


def test_a_new_run_is_a_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cordwood")
    root = tmp_path / "run"
    assert CheckpointManager(root).restore() is None
    root.mkdir()
    assert CheckpointManager(root).restore() is None
    (root / "notes.txt").write_text("")
    assert CheckpointManager(root).restore() is None
    why = ["there is no such directory", "it is empty", "it holds notes.txt, and no checkpoint"]
    check = "check the path, or save a step first"
    assert lines(caplog) == [f"nothing to restore in {root}: {each}; {check}" for each in why]


def test_a_step_that_is_required(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with pytest.raises(FileNotFoundError, match="required=True was passed: there is no such"):
        CheckpointManager(root).restore(required=True)
    root.mkdir()
    save_flax(root / "model_7")
    with pytest.raises(FileNotFoundError, match=r"there are model_7: .* rename those") as caught:
        StepReader(root).restore(required=True, like=TREE)
    assert caught.value.filename == str(root)
    os.rename(root / "model_7", root / "checkpoint_7")
    assert StepReader(root).restore(required=True, like=TREE).step == 7
    assert StepReader(root).restore(7, required=True).step == 7


@pytest.mark.parametrize("name", ["a\x1b[31m\n.txt", "a\x1b[31m_20.safetensors"])
def test_names_are_shown_without_control_characters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    cordwood.save(tmp_path / name, TREE, format="safetensors")
    (tmp_path / name).write_bytes(b"x" if name.endswith("txt") else (tmp_path / name).read_bytes())
    with caplog.at_level(logging.INFO, "cordwood"), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert StepReader(tmp_path).restore() is None
    (messages,) = [str(each.message) for each in warned] or lines(caplog)
    with pytest.raises(FileNotFoundError) as caught:
        StepReader(tmp_path).restore(required=True)
    for text in (messages, str(caught.value)):
        assert text.isprintable()
        assert "a\\x1b[31m" in text


def test_unfinished_checkpoints_are_not_reported(tmp_path: Path) -> None:
    (tmp_path / "7.orbax-checkpoint-tmp-1").mkdir()
    (tmp_path / ".5.cordwood-0123456789abcdef.deleted").mkdir()
    (tmp_path / "5").mkdir()
    assert CheckpointManager(tmp_path).restore() is None


def test_an_empty_root_in_a_store_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="cordwood")
    root = f"memory://nothing-to-restore/{os.getpid()}"
    reader: Any = StepReader(root)
    assert reader.restore() is None
    assert lines(caplog) == [
        f"nothing to restore in {root}: it is empty; check the path, or save a step first"
    ]
    cordwood.save(f"{root}/model_7", TREE)
    with pytest.warns(RuntimeWarning, match="there are model_7: .* rename those, or load one with"):
        assert reader.restore() is None


def test_a_first_save_that_ends_while_restore_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_first(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        with CheckpointManager(tmp_path, background=False) as manager:
            manager.save(0, TREE)
        return other_checkpoints(*arguments, **named)

    monkeypatch.setattr("cordwood.manager.steps.other_checkpoints", save_first)
    restored = StepReader(tmp_path).restore(like=TREE)  # a warning would be an error
    assert restored is not None
    assert restored.step == 0


@pytest.mark.parametrize("place", ["a disk", "an object store"])
def test_the_first_save_warns_of_steps_by_names_that_are_not_read(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = str(tmp_path) if place == "a disk" else f"memory://{tmp_path.name}"
    for name in ("ckpt_100", "step-200"):
        cordwood.save(f"{root}/{name}", TREE)
    for steps in ((0, 1), (2,)):
        with CheckpointManager(root) as manager:
            for step in steps:
                manager.save(step, TREE)
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    names = "ckpt_100, step-200: steps are named 100, checkpoint_100 or run-100"
    assert lines == [f"{root}: the run begins anew beside {names}"]


def test_the_first_save_beside_other_entries_warns_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cordwood.save(tmp_path / "best", TREE)
    (tmp_path / "logs-3").mkdir()
    with CheckpointManager(tmp_path) as manager:
        manager.save(0, TREE)
    assert [each for each in caplog.records if each.levelno == logging.WARNING] == []
