"""A run moves over from another tool: its steps are restored, and never deleted."""

from __future__ import annotations

import datetime
import os
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.errors import StepError


def tree_of(step: int) -> dict[str, Any]:
    return {"w": jnp.arange(8.0) + step, "b": {"x": jnp.full(3, step, jnp.int32)}}


def save_with_orbax(root: Path, steps: list[int]) -> None:
    with ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions()) as manager:
        for step in steps:
            manager.save(step, args=ocp.args.StandardSave(tree_of(step)))
        manager.wait_until_finished()


def save_with_flax(root: Path, steps: list[int]) -> None:
    import flax.serialization

    root.mkdir()
    for step in steps:  # as flax.training.checkpoints has it
        data = flax.serialization.to_bytes(jax.tree.map(np.asarray, tree_of(step)))
        (root / f"checkpoint_{step}").write_bytes(data)


def save_with_eformer(root: Path, steps: list[int]) -> None:
    from eformer.serialization import Checkpointer

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    checkpointer = Checkpointer(str(root), datetime.timedelta(hours=1), [])
    for step in steps:
        checkpointer.save_pytree(tree_of(step), prefix="model", mesh=mesh, step=step)


WRITERS = {
    "Orbax": (save_with_orbax, "{}"),
    "Flax": (save_with_flax, "checkpoint_{}"),
    "eFormer": (save_with_eformer, "run-{}"),
}


@pytest.mark.parametrize("tool", WRITERS)
def test_a_manager_goes_on_with_the_run_of_another_tool(tmp_path: Path, tool: str) -> None:
    write, name = WRITERS[tool]
    root = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tool's own
        write(root, [90, 100])
    with CheckpointManager(root, keep=1) as manager:
        assert manager.steps() == [90, 100]
        restored = manager.restore(like=tree_of(0))
        assert restored is not None
        assert restored.step == 100
        assert (restored.tree["w"] == tree_of(100)["w"]).all()
        assert (restored.tree["b"]["x"] == 100).all()
        assert (manager.restore(90, like=tree_of(0)).tree["b"]["x"] == 90).all()
        with pytest.raises(StepError, match="step 95 is not newer than step 100"):
            manager.save(95, tree_of(95))
        manager.save(110, tree_of(110))
        manager.save(120, tree_of(120))
    assert manager.steps() == [90, 100, 120]
    assert str(manager.plan()).splitlines()[0].startswith(" 90  keep    saved by ")
    assert tool.lower() in str(manager.plan()).splitlines()[0].lower()
    assert {name.format(90), name.format(100), "120"} <= set(os.listdir(root))
    assert "110" not in os.listdir(root)


def test_what_is_no_step_of_theirs(tmp_path: Path) -> None:
    for name in ("run-3", "checkpoint_4", "run-x", "7.orbax-checkpoint-tmp-1", "5"):
        (tmp_path / name).mkdir()
    (tmp_path / "run-3" / "tensorstore_index.json").write_text("{}")  # not finished
    (tmp_path / "6").write_text("")
    manager = CheckpointManager(tmp_path)
    assert manager.steps() == []
    with pytest.warns(RuntimeWarning, match="there are run-3: .* without the metadata.json"):
        assert manager.restore() is None


@pytest.mark.parametrize("tool", WRITERS)
def test_no_call_of_a_manager_deletes_them(tmp_path: Path, tool: str) -> None:
    write, name = WRITERS[tool]
    root = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tool's own
        write(root, [90, 100])
    with CheckpointManager(root) as manager:
        manager.save(110, tree_of(110))
        manager.wait()
        message = f"{name.format(100)}: it was saved by {tool}, and a manager deletes only what"
        with pytest.raises(StepError, match=f"(?i){message}.*cordwood rm /"):
            manager.delete(100)
        with pytest.raises(StepError, match=rf"(?i){message}.*\(deleted: 110\)"):
            manager.delete_after(95)
        assert manager.steps() == [90, 100]
        assert (manager.restore(100, like=tree_of(0)).tree["b"]["x"] == 100).all()


def test_the_metrics_of_orbax_count(tmp_path: Path) -> None:
    root = tmp_path / "run"
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"], best_mode="min")
    with ocp.CheckpointManager(root, options=options) as theirs:
        for step, loss in enumerate((0.3, 0.1, 0.2)):
            metrics = {"loss": loss, "note": "text", "bad": float("nan")}
            theirs.save(step, args=ocp.args.StandardSave(tree_of(step)), metrics=metrics)
        theirs.wait_until_finished()
        assert theirs.best_step() == 1
    with CheckpointManager(root, keep=cordwood.KeepBest(1, "loss")) as manager:
        assert manager.metrics(1)["loss"] == 0.1
        assert manager.best() == manager.best("loss") == 1
        assert manager.best("loss", mode="max") == 0
        assert manager.restore(1, like=tree_of(0)).metrics["loss"] == 0.1
        assert manager.restore(required=True, like=tree_of(0)).metrics["loss"] == 0.2
        for step, loss in ((3, 0.9), (4, 0.05), (5, 0.9), (6, 0.9)):
            manager.save(step, tree_of(step), metrics={"loss": loss})
            if step == 3:
                manager.wait()
                assert manager.best() == 1
    assert manager.best() == 4
    assert manager.steps() == [0, 1, 2, 4, 6]  # theirs are never deleted
    assert "saved by orbax" in str(manager.plan())


def test_a_root_of_orbax_without_metrics(tmp_path: Path) -> None:
    save_with_orbax(tmp_path / "run", [1])
    (tmp_path / "run" / "1" / "metrics").mkdir()
    (tmp_path / "run" / "1" / "metrics" / "metrics").write_bytes(b"[\xff")
    manager = CheckpointManager(tmp_path / "run")
    assert manager.metrics(1) == {}
    assert manager.best("loss") is None


@pytest.mark.parametrize("name", ["metrics/metrics", "_CHECKPOINT_METADATA"])
def test_numbers_of_orbax_that_no_float_holds(tmp_path: Path, name: str) -> None:
    """They are no metrics, and no error: the steps are listed and restored."""
    save_with_orbax(tmp_path, [1])
    huge = "1" + "0" * 400
    (tmp_path / "1" / "metrics").mkdir(exist_ok=True)
    (tmp_path / "1" / "metrics" / "metrics").write_text('{"loss": 0.5}')
    names = ("loss", "acc") if name == "metrics/metrics" else ("commit_timestamp_nsecs", "x")
    (tmp_path / "1" / name).write_text(f'{{"{names[0]}": {huge}, "{names[1]}": 2}}')
    reader = StepReader(tmp_path)
    assert reader.steps() == [1]
    assert reader.metrics(1) == ({"acc": 2.0} if name == "metrics/metrics" else {"loss": 0.5})
    assert reader.restore(1).step == 1


def test_a_manager_warns_once_that_keep_does_not_count_the_steps_of_another_tool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_with_orbax(tmp_path, [90, 100])

    def warnings_of(steps: range, keep: int | None) -> list[str]:
        caplog.clear()
        with CheckpointManager(tmp_path, keep=keep) as manager:
            for step in steps:
                manager.save(step, tree_of(step))
        return [each.message for each in caplog.records if "keep= does not count" in each.message]

    assert warnings_of(range(101, 103), None) == []  # nothing is deleted
    (text,) = warnings_of(range(103, 106), 2)
    assert "the steps that orbax saved (90, 100), and never deletes them" in text
    subprocess.run(
        [sys.executable, "-m", *shlex.split(text.partition("them: ")[2])[:-2], "--yes"],
        check=True,
        capture_output=True,
    )
    assert CheckpointManager(tmp_path).steps() == [100, 104, 105]
