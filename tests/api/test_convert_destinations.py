"""convert: what is at the destination stays unless it is to be replaced; sources of many trees."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.errors import NotACheckpointError, PrefixError, TruncatedError, UnsupportedFormatError
from cordwood.results import Progress
from tests.golden.orbax_checkpoints import GOLDEN

KINDS = ["a.safetensors", "a.msgpack", "a.msgpack.zst", "packs", "zarr"]


def options(name: str) -> dict[str, Any]:
    return {} if "." in name else {"format": name}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    cordwood.save(tmp_path / "source.safetensors", {"w": np.arange(4.0)})
    return tmp_path / "source.safetensors"


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_is_replaced_only_on_demand(tmp_path: Path, source: Path, name: str) -> None:
    path = tmp_path / name
    cordwood.save(path, {"old": 1}, **options(name))
    with pytest.raises(FileExistsError, match=r"overwrite=True \(--force\)") as error:
        cordwood.convert(source, path, **options(name))
    assert str(path) in str(error.value)
    assert cordwood.load(path) == {"old": 1}
    cordwood.convert(source, path, overwrite=True, **options(name))
    assert list(cordwood.load(path)) == ["w"]


def test_what_is_no_checkpoint_is_never_replaced(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "mine"
    path.mkdir()
    (path / "notes").write_text("mine")
    (tmp_path / "b.safetensors").write_text("mine")
    for other in (path, tmp_path / "b.safetensors"):
        for overwrite in (False, True):
            with pytest.raises(NotACheckpointError):
                cordwood.convert(source, other, overwrite=overwrite)
    assert (path / "notes").read_text() == (tmp_path / "b.safetensors").read_text() == "mine"


def test_an_empty_directory_or_file_is_a_place(tmp_path: Path, source: Path) -> None:
    (tmp_path / "packs").mkdir()
    (tmp_path / "b.safetensors").touch()
    cordwood.convert(source, tmp_path / "packs")
    cordwood.convert(source, tmp_path / "b.safetensors")


def test_in_an_object_store(source: Path) -> None:
    path = "memory://convert-onto/100"
    cordwood.convert(source, path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        cordwood.convert(source, path)
    cordwood.convert(source, path, overwrite=True)


@pytest.mark.parametrize("name", ["packs", "zarr"])
def test_a_second_prefix_does_not_replace_the_first(tmp_path: Path, name: str) -> None:
    source, path = tmp_path / "source", tmp_path / name
    cordwood.save(source, {"w": np.ones(3)}, prefix="params")
    cordwood.save(source, {"mu": np.ones(3)}, prefix="opt")
    cordwood.convert(source, path, prefix="params", **options(name))
    with pytest.raises(FileExistsError, match="to_prefix="):
        cordwood.convert(source, path, prefix="opt", **options(name))
    cordwood.convert(source, path, prefix="opt", to_prefix="moments", **options(name))
    assert list(cordwood.load(path)) == ["w"]
    assert list(cordwood.load(path, prefix="moments")) == ["mu"]
    with pytest.raises(FileExistsError, match="'moments'"):
        cordwood.convert(source, path, prefix="opt", to_prefix="moments", **options(name))
    cordwood.convert(source, path, prefix="params", to_prefix="moments", overwrite=True)
    assert list(cordwood.load(path, prefix="moments")) == list(cordwood.load(path)) == ["w"]


@pytest.mark.parametrize("name", ["packs", "zarr"])
def test_trees_that_would_stay_are_not_passed_over(tmp_path: Path, source: Path, name: str) -> None:
    path = tmp_path / name
    cordwood.save(path, {"w": 1}, prefix="old", **options(name))
    with pytest.raises(FileExistsError, match=r"the tree 'old', which would stay"):
        cordwood.convert(source, path, overwrite=True)
    assert cordwood.load(path) == {"w": 1}


def steps(root: Path, *losses: float) -> None:
    with CheckpointManager(root, save=1, keep=None) as manager:
        for number, loss in enumerate(losses, 1):
            tree = {"w": np.full(3, loss), "step": 100 * number}
            manager.save(100 * number, tree, metrics={"loss": loss}, extras={"at": number})


def test_a_step_is_replaced_only_on_demand_and_without_the_record_of_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps(tmp_path / "run", 1.0, 2.0)
    first, second = tmp_path / "run" / "100", tmp_path / "run" / "200"
    with pytest.raises(FileExistsError, match="step 200 of a CheckpointManager"):
        cordwood.convert(first, second)
    with pytest.raises(FileExistsError, match="step 200 of a CheckpointManager"):
        cordwood.convert(first, second, to_prefix="beside")
    with caplog.at_level(logging.WARNING, "cordwood"):
        cordwood.convert(first, second, overwrite=True)
    assert "the metrics, extras and states of step 100 are left out" in caplog.text
    reader = StepReader(tmp_path / "run")
    assert reader.metrics(100) == {"loss": 1.0}
    assert reader.metrics(200) == {}
    with CheckpointManager(tmp_path / "run") as manager:
        assert manager.best("loss") == 100
    restored = reader.restore()
    assert restored is not None
    assert (restored.step, restored.tree["step"], restored.extras) == (200, 100, None)


@pytest.mark.parametrize("name", ["200", "0200", "run-200", "checkpoint_200", "200.safetensors"])
def test_a_record_goes_to_no_other_step(tmp_path: Path, name: str) -> None:
    steps(tmp_path / "run", 1.0)
    cordwood.convert(tmp_path / "run" / "100", tmp_path / "other" / name)
    with cordwood.open(tmp_path / "other" / name) as checkpoint:
        assert "cordwood-step" not in checkpoint.metadata
    with cordwood.open(tmp_path / "run" / "100") as checkpoint:
        cordwood.convert(checkpoint, tmp_path / "another" / name)
    with cordwood.open(tmp_path / "another" / name) as checkpoint:
        assert "cordwood-step" not in checkpoint.metadata


def test_a_link_is_of_the_step_where_it_leads(tmp_path: Path) -> None:
    steps(tmp_path / "run", 1.0, 2.0)
    (tmp_path / "newest").symlink_to(tmp_path / "run" / "200")
    cordwood.convert(tmp_path / "run" / "100", tmp_path / "newest", overwrite=True)
    assert StepReader(tmp_path / "run").metrics(200) == {}


def test_the_same_step_of_another_root_keeps_its_record(tmp_path: Path) -> None:
    steps(tmp_path / "run", 1.0)
    cordwood.convert(tmp_path / "run" / "100", tmp_path / "other" / "100")
    reader = StepReader(tmp_path / "other")
    assert reader.metrics(100) == {"loss": 1.0}
    restored = reader.restore()
    assert restored is not None
    assert restored.extras == {"at": 1}
    cordwood.convert(tmp_path / "run" / "100", tmp_path / "best")  # no step's name
    cordwood.convert(tmp_path / "best", tmp_path / "again" / "100")
    assert StepReader(tmp_path / "again").metrics(100) == {"loss": 1.0}


@pytest.mark.parametrize("name", ["packs", "zarr"])
@pytest.mark.parametrize("kind", ["packs", "zarr"])
def test_all_trees_of_a_directory(tmp_path: Path, kind: Any, name: Any) -> None:
    source, path = tmp_path / "source", tmp_path / "out"
    trees: dict[str | None, Any] = {
        None: {"n": 1},
        "params": {"w": np.ones(3)},
        "opt": {"mu": np.zeros(5)},
    }
    for prefix, tree in trees.items():
        cordwood.save(source, tree, prefix=prefix, metadata={"of": str(prefix)}, format=kind)
    seen: list[Progress] = []
    done = cordwood.convert(source, path, format=name, cast="f32", progress=seen.append)
    assert (done.leaves, done.size_bytes, done.prefixes) == (3, 32, ("", "opt", "params"))
    assert (seen[-1].done_bytes, seen[-1].total_bytes) == (64, 64)
    assert cordwood.load(path) == {"n": 1}
    assert cordwood.load(path, prefix="opt")["mu"].dtype == np.float32
    for prefix, tree in trees.items():
        assert list(cordwood.load(path, prefix=prefix)) == list(tree)
        with cordwood.open(path, prefix=prefix) as checkpoint:
            assert checkpoint.metadata == {"of": str(prefix)}


def test_one_tree_of_several_where_one_is_meant(tmp_path: Path) -> None:
    source = tmp_path / "source"
    cordwood.save(source, {"w": np.ones(3)}, prefix="params")
    cordwood.save(source, {"mu": np.ones(3)}, prefix="opt")
    for kwargs in ({"select": "w"}, {"rename": {"w": "v"}}, {"cast": {"w": "f32"}}):
        with pytest.raises(PrefixError, match="prefix='opt'"):
            cordwood.convert(source, tmp_path / "out", **kwargs)
    with pytest.raises(PrefixError, match="prefix='opt'"):
        cordwood.convert(source, tmp_path / "out", to_prefix="all")
    with pytest.raises(PrefixError, match="prefix='opt'"):
        cordwood.convert(source, tmp_path / "out.safetensors")
    assert [entry.name for entry in tmp_path.iterdir()] == ["source"]
    with pytest.raises(ValueError, match="to_prefix= is for directories"):
        cordwood.convert(source, tmp_path / "out.safetensors", prefix="opt", to_prefix="x")


def test_nothing_is_written_where_a_tree_cannot_be(tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "out"
    cordwood.save(source, {"w": np.ones(3)}, prefix="params")
    cordwood.save(source, {"mu": np.arange(100_000.0)}, prefix="zz")
    data = max(source.glob("data-*"), key=lambda file: file.stat().st_size)
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(TruncatedError):
        cordwood.convert(source, path)
    assert not path.exists()


def test_all_trees_of_an_orbax_composite(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = tmp_path / "100"
    for item in ("state", "params"):
        shutil.copytree(GOLDEN / "v1" / "state", source / item)
    (source / "_CHECKPOINT_METADATA").write_text("{}")
    (source / "meta").mkdir()
    (source / "meta" / "metadata").write_text("{}")
    with caplog.at_level(logging.WARNING, "cordwood"):
        done = cordwood.convert(source, tmp_path / "out")
    assert done.prefixes == ("params", "state")
    assert "meta" in caplog.text
    for item in done.prefixes:
        with cordwood.open(tmp_path / "out", prefix=item) as checkpoint:
            difference = cordwood.diff(checkpoint, GOLDEN / "v1")
        assert difference.equal, str(difference)


@pytest.mark.parametrize("name", ["big.foo", "big.ckpt"])
def test_a_directory_is_not_named_like_a_file(tmp_path: Path, source: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(UnsupportedFormatError, match=r"expected \.safetensors, .*--format packs"):
        cordwood.convert(source, path)
    assert not path.exists()
    cordwood.convert(source, f"{path}/")
    cordwood.convert(source, path, overwrite=True)  # where a directory is, one is meant
    cordwood.convert(source, tmp_path / f"second-{name}", format="packs")
    cordwood.convert(source, tmp_path / "run-1.5")
    cordwood.convert(source, tmp_path / "model.v2")
