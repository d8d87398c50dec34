"""Steps of a manager with `orbax=`, as Orbax's managers read them, and their life beside others."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1

import cordwood
from cordwood.errors import UnsupportedLeafError
from cordwood.manager.orbax_indexes import add_orbax_index
from cordwood.storage.locations import parse_location
from cordwood.testing import assert_trees_equal


class Iterator:
    def get_state(self) -> dict[str, int]:
        return {"position": 4}

    def set_state(self, state: dict[str, int]) -> None:
        raise NotImplementedError


def tree_of(step: int) -> dict[str, Any]:
    return {"w": np.full(3, step, np.float32), "frozen": np.arange(4.0), "step": step}


def save_steps(root: Path | str, steps: list[int], **options: Any) -> None:
    with cordwood.CheckpointManager(root, background=False, **options) as manager:
        for step in steps:
            manager.save(step, tree_of(step), metrics={"loss": 1 / step}, force=True)


def test_orbax_finds_and_restores_the_steps(tmp_path: Path) -> None:
    save_steps(tmp_path, [1, 2, 3], orbax=True)
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"], best_mode="max")
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        assert manager.all_steps() == [1, 2, 3]
        assert (manager.latest_step(), manager.best_step()) == (3, 1)
        assert manager.metrics(2) == {"loss": 0.5}
        assert_trees_equal(manager.restore(2), dict(sorted(tree_of(2).items())))
        target = {"w": jnp.zeros(3), "frozen": jnp.zeros(4), "step": 0}
        restored = manager.restore(3, args=ocp.args.StandardRestore(target))
        assert np.array_equal(restored["w"], tree_of(3)["w"])
        assert set(manager.item_metadata(3).tree) == set(tree_of(3))
    with ocp.CheckpointManager(tmp_path, ocp.PyTreeCheckpointer()) as manager:
        assert_trees_equal(manager.restore(2), dict(sorted(tree_of(2).items())))
        assert manager.restore(2, items=tree_of(1))["step"] == 2


def test_orbax_restores_items_extras_and_states(tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path, background=False, orbax="params") as manager:
        items = {"ema": {"w": jnp.ones(2)}, "data": Iterator()}
        manager.save(7, tree_of(7), extras={"meta": [1], "epoch": 1}, items=items)
        manager.save(8, tree_of(8), extras=["no", "dict"])
        manager.save(9, tree_of(9), extras={"a/b": 2})
    json = ocp.args.JsonRestore()
    with ocp.CheckpointManager(tmp_path) as orbax:
        tree = ocp.args.StandardRestore()
        args = ocp.args.Composite(params=tree, ema=tree, data=json, meta=json, epoch=json)
        restored = orbax.restore(7, args=args)
        for step, extras in {8: ["no", "dict"], 9: {"a/b": 2}}.items():
            args = ocp.args.Composite(extras=json)
            assert orbax.restore(step, args=args).extras == extras
    assert_trees_equal(restored.params, dict(sorted(tree_of(7).items())))
    assert np.array_equal(restored.ema["w"], np.ones(2))
    assert (restored.data, restored.meta, restored.epoch) == ({"position": 4}, [1], 1)


def test_the_directory_of_an_item_is_loaded_as_the_tree_in_the_step(tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path, orbax="params") as manager:
        manager.save(7, tree_of(7), items={"ema": {"w": jnp.ones(2)}})
    assert_trees_equal(cordwood.load(tmp_path / "7" / "params", like=tree_of(7)), tree_of(7))
    assert isinstance(cordwood.load(tmp_path / "7" / "ema")["w"], jax.Array)
    with cordwood.open(tmp_path / "7" / "params") as checkpoint:
        assert (checkpoint.format, checkpoint.path) == ("packs", str(tmp_path / "7"))


def test_the_checkpointer_of_v1_restores_the_item_state(tmp_path: Path) -> None:
    save_steps(tmp_path, [1, 2], orbax="state")
    with v1.training.Checkpointer(tmp_path) as checkpointer:
        assert_trees_equal(checkpointer.load(), dict(sorted(tree_of(2).items())))
        assert [each.step for each in checkpointer.checkpoints] == [1, 2]
        assert checkpointer.latest is not None
        assert checkpointer.latest.metrics == {"loss": 0.5}


def test_metrics_that_are_added_later_reach_orbax(tmp_path: Path) -> None:
    save_steps(tmp_path, [1, 2], orbax=True)
    with cordwood.CheckpointManager(tmp_path) as manager:
        manager.add_metrics(1, {"accuracy": 0.9})
    assert not cordwood.verify(tmp_path / "1").stale
    with ocp.CheckpointManager(
        tmp_path, options=ocp.CheckpointManagerOptions(best_fn=lambda m: m["loss"])
    ) as orbax:
        assert orbax.metrics(1) == {"loss": 1.0, "accuracy": 0.9}


def test_linked_files_are_those_of_orbax_too(tmp_path: Path) -> None:
    save_steps(tmp_path, [1, 2, 3], orbax=True)
    frozen = [path for path in (tmp_path / "3").iterdir() if path.stat().st_nlink > 1]
    assert frozen
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "3" / "default")
    assert_trees_equal(restored, dict(sorted(tree_of(3).items())))


def test_retention_and_deletion_remove_what_was_written_for_orbax(tmp_path: Path) -> None:
    save_steps(tmp_path, [1, 2, 3, 4], orbax=True, keep=3)
    assert sorted(os.listdir(tmp_path)) == ["2", "3", "4"]
    with cordwood.CheckpointManager(tmp_path) as manager:
        manager.delete(3)
    assert sorted(os.listdir(tmp_path)) == ["2", "4"]


def test_a_file_of_others_in_a_folder_for_orbax_stays(tmp_path: Path) -> None:
    save_steps(tmp_path, [1], orbax=True)
    (tmp_path / "1" / "default" / "notes.txt").write_text("mine")
    (tmp_path / "1" / "metrics" / "link").symlink_to("metrics")
    save_steps(tmp_path, [2, 3], orbax=True, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["1", "3"]
    remaining = [path for path in (tmp_path / "1").rglob("*") if not path.is_dir()]
    assert sorted(path.name for path in remaining) == ["link", "notes.txt"]


def test_gc_of_a_run_writes_what_a_killed_save_has_not_written(tmp_path: Path) -> None:
    save_steps(tmp_path, [1, 2], orbax=True)
    (tmp_path / "2" / "default" / "manifest.ocdbt").unlink()
    names = [str(tmp_path / "2" / "default" / "manifest.ocdbt")]
    assert cordwood.gc(tmp_path, dry_run=True).rewritten == names
    assert cordwood.gc(tmp_path).rewritten == names
    assert not cordwood.gc(tmp_path).rewritten
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.restore(2)["step"] == 2


def test_gc_removes_a_killed_step_that_orbax_would_take_for_the_latest(tmp_path: Path) -> None:
    save_steps(tmp_path, [11], orbax=True)
    (tmp_path / "12").mkdir()
    data = next((tmp_path / "11").glob("data-*"))
    shutil.copy(data, tmp_path / "12" / data.name)
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.latest_step() == 12
        assert len(manager.restore(None)) == 0
    with ocp.CheckpointManager(tmp_path) as manager:
        assert not manager.save(12, args=ocp.args.StandardSave(tree_of(12)))
    cordwood.gc(tmp_path)
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.latest_step() == 11
        assert_trees_equal(manager.restore(None), dict(sorted(tree_of(11).items())))


def test_orbax_deletes_a_step_whole(tmp_path: Path) -> None:
    save_steps(tmp_path, [1, 2, 3], orbax=True)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.delete(1)
    assert sorted(os.listdir(tmp_path)) == ["2", "3"]
    with cordwood.CheckpointManager(tmp_path) as manager:
        assert manager.steps() == [2, 3]


def test_a_step_that_orbax_cannot_read_is_refused_before_it_is_written(tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path, orbax=True) as manager:
        with pytest.raises(UnsupportedLeafError, match=r"^w: Orbax stores no bytes"):
            manager.save(1, {"w": b"x"})
        for name in ("default", "metrics", "a/b", ".hidden"):
            with pytest.raises(ValueError, match=f"in a directory '{name}', which cannot be"):
                manager.save(1, tree_of(1), items={name: tree_of(1)}, metrics={"loss": 1})
        with pytest.raises(ValueError, match="in a directory 'metrics', which cannot be"):
            manager.save(1, tree_of(1), items={"metrics": tree_of(1)})  # metrics may be added
        with pytest.raises(UnsupportedLeafError, match="ema: w: Orbax stores no bytes"):
            manager.save(1, tree_of(1), items={"ema": {"w": b"x"}})
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_in_a_store_the_error_says_how_a_step_becomes_one_of_orbax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "memory://orbax-steps/run"
    with pytest.raises(cordwood.errors.UnsupportedFormatError, match="orbax= needs links") as run:
        cordwood.CheckpointManager(url, orbax=True)
    with pytest.raises(cordwood.errors.UnsupportedFormatError, match="orbax= needs links") as one:
        cordwood.save(f"{url}/3", tree_of(3), orbax=True)
    with pytest.raises(cordwood.errors.UnsupportedFormatError, match="needs links") as index:
        add_orbax_index(parse_location(f"{url}/3"), None)
    save_steps(url, [3])
    for error in (run, one, index):
        advice = re.fullmatch(r".*: (cordwood\.convert\(.*\))", str(error.value))
        assert advice is not None
        eval(advice[1].replace("STEP", "3"), {"cordwood": cordwood})
        shutil.rmtree("copy", ignore_errors=True)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        restored = manager.restore(3, args=ocp.args.StandardRestore(tree_of(0)))
        assert np.array_equal(restored["w"], tree_of(3)["w"])


def test_other_values_of_the_option_are_refused() -> None:
    with pytest.raises(TypeError, match="expected True, False or the name of an item"):
        cordwood.CheckpointManager("run", orbax=3)  # type: ignore[arg-type]


def test_a_copied_run_is_one_of_orbax_too(tmp_path: Path) -> None:
    save_steps(tmp_path / "run", [1, 2], orbax=True)
    cordwood.copy(tmp_path / "run", tmp_path / "copy")
    with ocp.CheckpointManager(tmp_path / "copy") as manager:
        assert_trees_equal(manager.restore(2), dict(sorted(tree_of(2).items())))


def test_steps_of_a_mirror_on_a_disk_are_those_of_orbax_too(tmp_path: Path) -> None:
    mirror = cordwood.Mirror(tmp_path / "safe", keep=2)
    with cordwood.CheckpointManager(tmp_path / "run", orbax="params", mirror=mirror) as manager:
        for step in (1, 2, 3):
            manager.save(step, tree_of(step), metrics={"loss": step}, items={"ema": tree_of(9)})
            manager.wait()
        manager.add_metrics(3, {"accuracy": 0.5})
        manager.save(4, tree_of(4))
    assert manager.problems == []
    assert sorted(os.listdir(tmp_path / "safe")) == ["3", "4"]
    assert not any(cordwood.verify(tmp_path / "safe" / step).stale for step in ("3", "4"))
    tree = ocp.args.StandardRestore()
    with ocp.CheckpointManager(tmp_path / "safe") as orbax:
        assert (orbax.all_steps(), orbax.metrics(3)) == ([3, 4], {"loss": 3, "accuracy": 0.5})
        restored = orbax.restore(3, args=ocp.args.Composite(params=tree, ema=tree))
        assert_trees_equal(restored.params, dict(sorted(tree_of(3).items())))
        assert_trees_equal(restored.ema, dict(sorted(tree_of(9).items())))


def test_copies_in_a_store_leave_it_out_with_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = "the index for Orbax is not copied: object stores have no links"
    root, mirror, copy = tmp_path / "run", "memory://orbax-mirror/run", "memory://orbax-copy/run"

    def warnings_about_it() -> list[str]:
        lines = [each.getMessage() for each in caplog.records if sentence in each.getMessage()]
        caplog.clear()
        return lines

    with cordwood.CheckpointManager(root, orbax=True, mirror=cordwood.Mirror(mirror)) as manager:
        for step in (1, 2, 3):
            manager.save(step, tree_of(step))
            manager.wait()
    assert manager.problems == []
    assert warnings_about_it() == [f"{root}: the mirror {mirror}: {sentence}"]
    cordwood.copy(root, copy)
    assert warnings_about_it() == [f"{copy}: {sentence}"]
    for place in (mirror, copy):
        assert cordwood.StepReader(place).steps() == [1, 2, 3]
        assert not cordwood.verify(f"{place}/3").stale
        assert cordwood.load(f"{place}/3")["step"] == 3
    shutil.rmtree(root)
    with cordwood.CheckpointManager(root, orbax=True, mirror=cordwood.Mirror(mirror)) as manager:
        assert manager.restore(required=True).step == 3
        manager.save(4, tree_of(4))
    with ocp.CheckpointManager(root) as orbax:
        assert_trees_equal(orbax.restore(4), dict(sorted(tree_of(4).items())))


def test_both_tools_take_turns_on_one_run(tmp_path: Path) -> None:
    saved: list[int] = []
    for step in range(1, 13):
        if step % 2:
            with cordwood.CheckpointManager(
                tmp_path, background=False, orbax=True, keep=2
            ) as manager:
                restored = manager.restore()
                assert (restored.step if restored else 0) == step - 1
                manager.save(step, tree_of(step))
        else:
            options = ocp.CheckpointManagerOptions(max_to_keep=4)
            with ocp.CheckpointManager(tmp_path, options=options) as orbax:
                assert orbax.restore(orbax.latest_step())["step"] == step - 1
                orbax.save(
                    step, args=ocp.args.StandardSave(jax.tree.map(np.asarray, tree_of(step)))
                )
        saved.append(step)
    steps = sorted(map(int, [name for name in os.listdir(tmp_path) if name.isdecimal()]))
    assert steps[-2:] == saved[-2:]
    for step in steps:
        assert cordwood.load(tmp_path / str(step))["step"] == step
