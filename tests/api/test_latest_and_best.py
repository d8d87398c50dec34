"""`run/latest` and `run/best` in every call that reads, on a disk and in an object store."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.cli.list_leaves import list_leaves
from cordwood.errors import CordwoodError, MismatchError
from cordwood.loading.locate_step import is_nickname, locate_checkpoint
from cordwood.storage.locations import parse_location
from tests.api.test_path_objects import CALLS, Universal
from tests.cli.conftest import Run, run  # noqa: F401  (a fixture)

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
LOSSES = {1: 0.5, 2: 0.1, 3: 0.3, 4: 0.2}
NEWEST, LEAST, GREATEST = 4, 2, 1


def _tree(step: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"w": np.full(3, step, np.float32)}


def _saved(root: str, *metrics: str) -> str:
    with CheckpointManager(root) as manager:
        for step, loss in LOSSES.items():
            manager.save(step, _tree(step), metrics=dict.fromkeys(metrics, loss))
    return root


@pytest.fixture(params=["a disk", "an object store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run") if request.param == "a disk" else f"memory://{tmp_path.name}/run"


def _step(tree: Any) -> int:
    return int(tree["w"][0])


def _opened(path: Any) -> int:
    with cordwood.open(path) as checkpoint:
        return _step(checkpoint.load())


def _copied(path: Any, new: Path) -> int:
    cordwood.copy(path, new)
    return _step(cordwood.load(new))


def _converted(path: Any, new: Path) -> int:
    cordwood.convert(path, f"{new}.safetensors")
    return _step(cordwood.load(f"{new}.safetensors"))


def _applied(path: Any, new: Path) -> int:
    """Return the step that is the base, by a delta to itself."""
    cordwood.delta(path, path, f"{new}-delta")
    cordwood.apply_delta(path, f"{new}-delta", new)
    return _step(cordwood.load(new))


def _combined(path: Any, new: Path) -> int:
    cordwood.combine(new, {path: 1})
    return _step(cordwood.load(new))


def _merged(path: Any, new: Path) -> int:
    """Return the step that is the base, with an update of zeros."""
    factors = {"w": {"a": np.zeros(1, np.float32), "b": np.zeros((1, 3), np.float32)}}
    cordwood.save(f"{new}-lora", factors)
    names: Any = {"target": "{module}", "down": "{module}/a", "up": "{module}/b"}
    cordwood.merge_lora(new, path, f"{new}-lora", **names, alpha=1)
    return _step(cordwood.load(new))


def _refused_as_lora(path: Any, new: Path) -> int:
    names: Any = {"target": "{module}", "down": "{module}/a", "up": "{module}/b"}
    with pytest.raises(MismatchError, match="w: no factor of LoRA") as raised:
        cordwood.merge_lora(new, path, path, **names, alpha=1)
    match = re.search(r"run/(\d+) does not fit", str(raised.value))
    assert match is not None
    return int(match[1])


def _opened_combined(path: Any) -> int:
    with cordwood.open_combined({path: 1}) as combination:
        return _step(combination.load())


def _refused_as_delta(path: Any, new: Path) -> int:
    with pytest.raises(CordwoodError, match="delta") as raised:
        cordwood.apply_delta(path, path, new)
    match = re.search(r"run/(\d+)\b", str(raised.value))
    assert match is not None
    return int(match[1])


def _number_in(path: str) -> int:
    return int(path.rpartition("/")[2])


# Each call that reads a path: the step that it has read.
READING: dict[tuple[str, str], Callable[[Any, Path], int]] = {
    ("load", "path"): lambda path, _: _step(cordwood.load(path)),
    ("open", "path"): lambda path, _: _opened(path),
    ("verify", "path"): lambda path, _: _number_in(cordwood.verify(path).path),
    ("detect", "path"): lambda path, _: _number_in(cordwood.detect(path).path),
    ("diff", "a"): lambda path, _: _number_in(cordwood.diff(path, _tree(1)).a),
    ("diff", "b"): lambda path, _: _number_in(cordwood.diff(_tree(1), path).b),
    ("convert", "source"): _converted,
    ("delta", "base"): lambda path, new: _number_in(cordwood.delta(path, path, new).base),
    ("delta", "target"): lambda path, new: _number_in(cordwood.delta(path, path, new).target),
    ("apply_delta", "base"): _applied,
    ("apply_delta", "delta"): _refused_as_delta,
    ("copy", "source"): _copied,
    ("combine", "weights"): _combined,
    ("merge_lora", "base"): _merged,
    ("merge_lora", "adapter"): _refused_as_lora,
    ("open_combined", "weights"): lambda path, _: _opened_combined(path),
}
_ORBAX_KINDS = ("pytree", "checkpointables")
# These write, or take the root of a run: a path is never another.
LITERAL = {
    ("save", "path"),
    ("save_async", "path"),
    ("gc", "path"),
    ("convert", "destination"),
    ("copy", "destination"),
    ("delta", "destination"),
    ("apply_delta", "destination"),
    ("combine", "destination"),
    ("merge_lora", "destination"),
    ("WeightPublisher", "location"),
    ("WeightFollower", "location"),
    ("Mirror", "root"),
    ("CheckpointManager", "root"),
    ("StepReader", "root"),
}
# The calls of Orbax take every path literally, as Orbax does.
LITERAL |= {
    ("CheckpointManager", "directory"),
    ("Checkpointer", "directory"),
    ("checkpoints_iterator", "checkpoint_dir"),
    *((f"{verb}_{kind}", "path") for verb in ("save", "load") for kind in _ORBAX_KINDS),
    *((f"save_{kind}_async", "path") for kind in _ORBAX_KINDS),
    ("metadata", "path"),
    ("pytree_metadata", "path"),
}
NAMES = {
    "latest": NEWEST,
    "latest/": NEWEST,
    "best": LEAST,
    "best:loss": LEAST,
    "best:loss:max": GREATEST,
    "best:max": GREATEST,
}


def test_every_call_reads_such_a_path_or_takes_it_literally() -> None:
    assert {*READING, *LITERAL} == {*CALLS}


@pytest.mark.parametrize("row", READING.items(), ids=lambda row: ".".join(row[0]))
def test_every_reading_call_takes_latest_and_best(
    root: str, tmp_path: Path, row: tuple[object, Callable[[Any, Path], int]]
) -> None:
    _saved(root, "loss")
    assert row[1](f"{root}/latest", tmp_path / "new") == NEWEST
    assert row[1](Universal(f"{root}/best"), tmp_path / "other") == LEAST


@pytest.mark.parametrize(("name", "step"), NAMES.items())
def test_a_nickname_leads_to_its_step(root: str, name: str, step: int) -> None:
    _saved(root, "loss")
    assert str(locate_checkpoint(parse_location(f"{root}/{name}"))) == f"{root}/{step}"
    assert is_nickname(parse_location(f"{root}/{name}"))


def test_the_leaves_of_the_best_step_are_listed(root: str) -> None:
    _saved(root, "loss")
    assert [row.key_path for row in list_leaves(f"{root}/best").rows] == ["w"]


def test_a_name_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _saved(str(tmp_path), "loss")
    monkeypatch.chdir(tmp_path)
    assert _step(cordwood.load("latest")) == NEWEST
    assert _step(cordwood.load("best")) == LEAST


def test_several_metrics_are_listed_with_the_spelling(root: str) -> None:
    _saved(root, "val/loss", "accuracy")
    with pytest.raises(ValueError, match=r"several metrics \(accuracy, val/loss\)") as raised:
        cordwood.load(f"{root}/best")
    assert f"{root}/best:accuracy for the least value" in str(raised.value)
    assert _step(cordwood.load(f"{root}/best:accuracy:max")) == GREATEST
    assert _step(cordwood.load(f"{root}/best:val/loss")) == LEAST


def test_a_run_without_that_metric(root: str) -> None:
    _saved(root)
    with pytest.raises(FileNotFoundError, match=r"no step of .* has metrics .*add_metrics"):
        cordwood.load(f"{root}/best")
    with CheckpointManager(root) as manager:
        manager.add_metrics(3, {"loss": 1.0})
    assert _step(cordwood.load(f"{root}/best")) == 3
    with pytest.raises(FileNotFoundError, match=r"'acc'; their metrics are loss"):
        cordwood.load(f"{root}/best:acc")


def test_nan_is_never_the_best_and_of_equal_steps_the_newer_is(root: str) -> None:
    with CheckpointManager(root) as manager:
        for step, loss in {1: 0.5, 2: 0.5, 3: float("nan")}.items():
            manager.save(step, _tree(step), metrics={"loss": loss})
    assert str(locate_checkpoint(parse_location(f"{root}/best"))) == f"{root}/2"
    assert str(locate_checkpoint(parse_location(f"{root}/best:max"))) == f"{root}/2"


def test_the_log_names_the_step(root: str, caplog: pytest.LogCaptureFixture) -> None:
    _saved(root, "loss")
    with caplog.at_level(logging.INFO, "cordwood"):
        cordwood.load(f"{root}/best")
    assert f"{root}/best is 2: loss 0.1 is the least of 4 steps" in caplog.text


def test_an_entry_of_that_name_is_itself(root: str) -> None:
    _saved(root, "loss")
    for step, name in ((7, "best"), (8, "latest")):
        cordwood.save(f"{root}/{name}", _tree(step))
        assert _step(cordwood.load(f"{root}/{name}")) == step
        assert not is_nickname(parse_location(f"{root}/{name}"))
    assert _step(cordwood.load(f"{root}/best:loss")) == LEAST


def test_a_link_or_an_unfinished_save_of_that_name_is_itself(tmp_path: Path) -> None:
    root = Path(_saved(str(tmp_path), "loss"))
    (root / "latest").symlink_to("1")
    assert _step(cordwood.load(root / "latest")) == 1
    (root / "latest").unlink()
    (root / "latest").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="symbolic link"):
        cordwood.load(root / "latest")
    (root / f".best.cordwood-{16 * '0'}.stage").mkdir()
    with pytest.raises(FileNotFoundError, match="has not finished"):
        cordwood.load(root / "best")


def test_no_writing_call_means_a_step(root: str) -> None:
    _saved(root, "loss")
    cordwood.save(f"{root}/best", _tree(9))
    cordwood.convert(f"{root}/1", f"{root}/latest")
    assert [_step(cordwood.load(f"{root}/{step}")) for step in LOSSES] == [*LOSSES]
    assert _step(cordwood.load(f"{root}/best")) == 9
    assert _step(cordwood.load(f"{root}/latest")) == 1


def test_the_newest_step_that_is_not_finished_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = _saved(str(tmp_path), "loss")
    (tmp_path / "4" / "cordwood.json").unlink()
    (tmp_path / "4" / "model.safetensors.index.json").unlink()
    with caplog.at_level(logging.INFO, "cordwood"):
        assert _step(cordwood.load(f"{root}/latest")) == 3
    assert "the newest complete step is 3, not 4" in caplog.text


def test_a_damaged_index_is_not_compared_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = _saved(str(tmp_path), "loss")
    index = tmp_path / "2" / "cordwood.json"
    index.write_bytes(index.read_bytes().replace(b"0.1", b"0.2", 1))
    assert _step(cordwood.load(f"{root}/best")) == NEWEST
    assert "2 is not compared with the other steps" in caplog.text


def test_steps_by_other_names(tmp_path: Path) -> None:
    for name, step in (("step_9.safetensors", 9), ("step_10.safetensors", 10)):
        cordwood.save(tmp_path / name, _tree(step))
    assert _step(cordwood.load(tmp_path / "latest")) == 10


def test_metrics_that_orbax_recorded_choose_the_best_step(tmp_path: Path) -> None:
    for step, loss in LOSSES.items():
        folder = tmp_path / str(step)
        shutil.copytree(GOLDEN / "orbax" / "v1", folder)
        (folder / "metrics").mkdir(exist_ok=True)
        (folder / "metrics" / "metrics").write_text(json.dumps({"loss": loss}))
    assert str(locate_checkpoint(parse_location(tmp_path / "best"))) == f"{tmp_path}/{LEAST}"
    assert str(locate_checkpoint(parse_location(tmp_path / "latest"))) == f"{tmp_path}/{NEWEST}"


@pytest.mark.parametrize(
    "path", ["memory://latest", "s3://latest", "gs://best", "https://a.example/run/latest", "a/b"]
)
def test_what_is_no_step_of_a_run_is_not_looked_up(path: str) -> None:
    assert str(locate_checkpoint(parse_location(path))) == path
    assert not is_nickname(parse_location(path))


@pytest.mark.parametrize("name", ["latest", "best", "best:loss"])
def test_a_directory_without_steps(tmp_path: Path, name: str) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
            cordwood.load(root / name)
    assert os.listdir(tmp_path) == []


def test_commands_take_a_nickname_and_rm_refuses_it(root: str, run: Run) -> None:  # noqa: F811
    _saved(root, "loss", "accuracy")
    assert json.loads(run("info", f"{root}/best:loss", "--json").out)["path"] == f"{root}/2"
    code, _, err = run("ls", f"{root}/best")
    assert code == 3
    assert "accuracy, loss" in err
    code, _, err = run("rm", f"{root}/best:loss", "--yes")
    assert code == 2
    assert f"which is {root}/2 now" in err
