"""`cordwood index --orbax`: checkpoints that exist become Orbax's, too."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import cordwood
from cordwood.errors import UnsupportedLeafError
from cordwood.manager.orbax_indexes import add_orbax_index
from cordwood.storage.locations import LocalPath
from cordwood.testing import assert_trees_equal
from tests.cli.conftest import Run
from tests.manager.test_foreign_steps import save_with_orbax


def tree_of(step: int) -> dict[str, Any]:
    return {"step": step, "w": np.full(3, step, np.float32)}


def save_steps(root: Path, *steps: int) -> None:
    with cordwood.CheckpointManager(root, background=False) as manager:
        for step in steps:
            manager.save(step, tree_of(step), metrics={"loss": 1 / step})


def test_one_step(run: Run, tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2)
    code, out, _ = run("index", tmp_path / "latest", "--orbax")
    assert (code, out.split(": ")[0]) == (0, str(tmp_path / "2"))
    assert out.endswith(", 1 link\n")
    with ocp.CheckpointManager(tmp_path) as manager:
        assert_trees_equal(manager.restore(2), tree_of(2))
    assert cordwood.load(tmp_path / "2")["step"] == 2
    assert ["for", "Orbax", "too", "item", "default"] in [
        line.split() for line in run("info", tmp_path / "2").out.splitlines()
    ]
    assert not (tmp_path / "1" / "default").exists()


def test_all_steps_of_a_run_but_those_of_other_tools(run: Run, tmp_path: Path) -> None:
    save_with_orbax(tmp_path, [1])
    save_steps(tmp_path, 2, 3)
    document = json.loads(run("index", tmp_path, "--orbax", "--all", "--json").out)
    assert [each["path"] for each in document["indexes"]] == [f"{tmp_path}/2", f"{tmp_path}/3"]
    assert run("index", tmp_path, "--orbax", "--all").code == 0  # again: the same files
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        assert manager.all_steps() == [1, 2, 3]
        assert manager.metrics(3) == {"loss": 1 / 3}
        assert manager.restore(3)["step"] == 3
    assert "no damage" in run("verify", tmp_path).out


def test_a_run_names_the_command_for_all_its_steps(run: Run, tmp_path: Path) -> None:
    save_steps(tmp_path / "my run", 1, 2)
    code, _, err = run("index", tmp_path / "my run", "--orbax", "--item", "state")
    assert code == 3
    assert "is a run, with 2 steps that cordwood saved. To index all of them: " in err
    remedy = shlex.split(err.strip().rpartition(": ")[2])
    assert remedy[:2] == ["cordwood", "index"]
    assert run(*remedy[1:]).code == 0
    assert all((tmp_path / "my run" / step / "state").is_dir() for step in ("1", "2"))


def test_the_item_can_be_named_and_renamed(run: Run, tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    for name in ("state", "params"):
        assert run("index", tmp_path / "1", "--orbax", "--item", name).code == 0
        assert sorted(path.name for path in (tmp_path / "1").iterdir() if path.is_dir()) == sorted(
            ["metrics", name]
        )
    code, _, error = run("index", tmp_path / "1", "--orbax", "--item", "a/b")
    assert (code, "'a/b', which cannot be" in error) == (2, True)


def test_a_checkpoint_of_save_is_the_tree_itself(run: Run, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "model", tree_of(1))
    assert run("index", tmp_path / "model", "--orbax").out.endswith(", 0 links\n")
    with ocp.StandardCheckpointer() as checkpointer:
        assert_trees_equal(checkpointer.restore(tmp_path / "model"), tree_of(1))


def test_an_interrupted_deletion_of_the_files_is_mended(run: Run, tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    run("index", tmp_path / "1", "--orbax")
    shutil.rmtree(tmp_path / "1" / "default")
    run("index", tmp_path / "1", "--orbax")
    assert not cordwood.verify(tmp_path / "1").stale


def test_what_orbax_could_not_read_is_refused_and_nothing_changes(run: Run, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "model", {"w": b"bytes"})
    before = (tmp_path / "model" / "cordwood.json").read_bytes()
    with pytest.raises(UnsupportedLeafError, match=r"^w: Orbax stores no bytes"):
        add_orbax_index(LocalPath(str(tmp_path / "model")), None)
    assert (tmp_path / "model" / "cordwood.json").read_bytes() == before
    code, _, error = run("index", tmp_path / "model", "--orbax")
    assert (code, "w: Orbax stores no bytes" in error) == (3, True)


def test_errors_say_what_to_do(run: Run, tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    assert run("index", tmp_path, "--orbax").code == 3
    cordwood.save(tmp_path / "named", tree_of(1), prefix="ema")
    assert "needs a tree without a prefix" in run("index", tmp_path / "named", "--orbax").err
    cordwood.save("memory://index/1", tree_of(1))
    message = run("index", "memory://index/1", "--orbax").err
    assert 'cordwood.convert("memory://index/1", "' in message
    assert 'format="orbax")' in message
    assert "no steps that cordwood saved" in run("index", tmp_path / "1", "--orbax", "--all").err


def test_a_copy_from_before_the_index_is_the_same_step(run: Run, tmp_path: Path) -> None:
    save_steps(tmp_path / "run", 1)
    cordwood.copy(tmp_path / "run", tmp_path / "copy")
    run("index", tmp_path / "run", "--orbax", "--all")
    assert cordwood.copy(tmp_path / "run", tmp_path / "copy").files == 0
    with ocp.CheckpointManager(tmp_path / "copy") as manager:
        assert_trees_equal(manager.restore(1), tree_of(1))
