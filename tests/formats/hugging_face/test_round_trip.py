"""Directories of Hugging Face: many safetensors files and an index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

import cordwood
from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    MismatchError,
    NotACheckpointError,
    TruncatedError,
)
from tests.cli.conftest import Run, run
from tests.golden.hugging_face_shards import FOLDER, SHARDS

__all__ = ["run"]

INDEX = "model.safetensors.index.json"
FIRST, SECOND = SHARDS
TENSORS = {name: array for tensors in SHARDS.values() for name, array in tensors.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "model"))


def write_map(path: Path, weight_map: Any) -> None:
    (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def the_map(**changes: str) -> dict[str, str]:
    return {name: file for file, tensors in SHARDS.items() for name in tensors} | changes


def equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return list(found) == list(expected) and all(
        found[name].dtype == array.dtype and np.array_equal(found[name], array)
        for name, array in expected.items()
    )


def test_a_flat_dict_in_the_order_of_the_index() -> None:
    expected = {name: TENSORS[name] for name in sorted(TENSORS)}
    assert equal(cordwood.load(FOLDER), expected)
    assert equal(cordwood.load(FOLDER, mmap=True), expected)


def test_a_download_is_nested_and_matched_with_like() -> None:
    nested = cordwood.load(FOLDER, nest=True)
    assert list(nested) == ["lm_head", "model"]
    np.testing.assert_array_equal(nested["model"]["norm"]["weight"], np.arange(3))
    loaded = cordwood.load(FOLDER, like=nested)
    assert loaded["model"]["embed"]["weight"].shape == (8, 3)
    del nested["lm_head"]
    with pytest.raises(MismatchError, match=r"lm_head\.weight: in the checkpoint \(int8"):
        cordwood.load(FOLDER, like=nested)


def test_slices_metadata_and_verify() -> None:
    with cordwood.open(FOLDER) as checkpoint:
        assert checkpoint.format == "safetensors-shards"
        assert checkpoint.metadata == {"format": "pt"}
        part = checkpoint["model.embed.weight"][2:4, 1]
        np.testing.assert_array_equal(part, TENSORS["model.embed.weight"][2:4, 1])
    checked = cordwood.verify(FOLDER)
    assert (checked.leaves, checked.verified_bytes) == (3, 0)
    assert checked.unverified_bytes == sum((FOLDER / name).stat().st_size for name in SHARDS)


def test_a_download_is_loaded_onto_a_mesh() -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rules = [("embed", jax.P("x")), ("lm_head", jax.P("x")), ("", jax.P())]
    loaded = cordwood.load(FOLDER, mesh=mesh, rules=rules)
    assert loaded["model.embed.weight"].sharding.spec == jax.P("x")
    np.testing.assert_array_equal(loaded["lm_head.weight"], TENSORS["lm_head.weight"])


def test_symbolic_links_as_in_the_cache(path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "snapshot"
    cache.mkdir()
    for file in path.iterdir():
        (cache / file.name).symlink_to(file)
    assert set(cordwood.load(cache)) == set(TENSORS)


def test_another_name_of_the_index(path: Path) -> None:
    """The names that diffusers uses are recognised."""
    (path / INDEX).rename(path / "diffusion_model.safetensors.index.json")
    assert set(cordwood.load(path)) == set(TENSORS)
    shutil.copy(path / "diffusion_model.safetensors.index.json", path / "b.safetensors.index.json")
    with pytest.raises(NotACheckpointError, match="remove all but the one that is meant"):
        cordwood.load(path)


def test_what_the_index_does_not_list_comes_last(path: Path) -> None:
    listed = the_map()
    del listed["model.embed.weight"]
    write_map(path, listed)
    assert list(cordwood.load(path)) == [*listed, "model.embed.weight"]


def without_a_file(path: Path) -> None:
    (path / FIRST).unlink()


def in_the_other_file(path: Path) -> None:
    write_map(path, the_map(**{"model.norm.weight": SECOND}))


def in_no_file(path: Path) -> None:
    write_map(path, the_map(other=FIRST, more=SECOND))


def in_two_files(path: Path) -> None:
    safetensors.numpy.save_file({"lm_head.weight": np.ones(1)} | SHARDS[FIRST], path / FIRST)


def outside(path: Path) -> None:
    write_map(path, the_map(other="../x.safetensors"))


def no_map(path: Path) -> None:
    (path / INDEX).write_text('{"metadata": {}}')


def an_empty_map(path: Path) -> None:
    write_map(path, {})


def a_key_twice(path: Path) -> None:
    (path / INDEX).write_text(f'{{"weight_map": {{"a": "{FIRST}", "a": "{SECOND}"}}}}')


def no_json(path: Path) -> None:
    (path / INDEX).write_bytes(b"{\xff")


def a_number(path: Path) -> None:
    write_map(path, {"a": 1})


def a_file_cut(path: Path) -> None:
    file = path / SECOND
    file.write_bytes(file.read_bytes()[:-1])


def an_lfs_pointer(path: Path) -> None:
    (path / SECOND).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")


BROKEN: dict[Callable[[Path], None], tuple[type[Exception], str]] = {
    without_a_file: (
        IncompleteCheckpointError,
        f"has no {FIRST}, which .* names for 'model.embed.weight' and 1 tensor more: the download",
    ),
    in_the_other_file: (
        FormatError,
        f"'model.norm.weight' is not in {SECOND}, where the index says .it is in {FIRST}.",
    ),
    in_no_file: (
        FormatError,
        "'other' is not in .* .none of its files has it.: the files .*; and 1 tensor more",
    ),
    in_two_files: (FormatError, f"'lm_head.weight' is in {SECOND} and in {FIRST}: one"),
    outside: (FormatError, "'other': expected the name of a file beside it, found '../x"),
    no_map: (FormatError, "expected an object with a weight_map"),
    an_empty_map: (FormatError, "its weight_map is empty"),
    a_key_twice: (FormatError, "the key 'a' occurs twice"),
    no_json: (FormatError, "not UTF-8 at byte 1"),
    a_number: (FormatError, "'a': expected the name of a file beside it, found 1"),
    a_file_cut: (TruncatedError, f"{SECOND}: the tensors end at byte"),
    an_lfs_pointer: (FormatError, "run `git lfs pull`"),
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_a_broken_download_is_refused(path: Path, damage: Callable[[Path], None]) -> None:
    error, message = BROKEN[damage]
    damage(path)
    for call in (cordwood.load, cordwood.open, cordwood.verify):
        with pytest.raises(error, match=message) as caught:
            call(path)
        assert type(caught.value) is error
        assert str(path) in str(caught.value)


def test_a_directory_of_cordwoods_that_has_lost_its_index(tmp_path: Path) -> None:
    cordwood.save(tmp_path, {"a": np.ones(3)})
    assert (tmp_path / INDEX).exists()
    assert list(cordwood.load(tmp_path)) == ["a"]
    (tmp_path / "cordwood.json").unlink()
    with pytest.raises(CorruptionError, match=r"its cordwood.json is missing: restore"):
        cordwood.load(tmp_path)


def test_nothing_is_saved_there(path: Path) -> None:
    with pytest.raises(NotACheckpointError, match=r"has no cordwood.json, and contains model-"):
        cordwood.save(path, {"a": np.ones(1)})
    assert set(cordwood.load(path)) == set(TENSORS)
    with pytest.raises(ValueError, match="this one holds one"):
        cordwood.load(path, prefix="params")


# A snapshot of one file.


def snapshot(folder: Path) -> Path:
    """Make a directory as `snapshot_download` leaves it: links to blobs, and other files."""
    safetensors.numpy.save_file(TENSORS, folder / "weights", metadata={"format": "pt"})
    blobs, path = folder / "blobs", folder / "snapshots" / ("0f" * 20)
    blobs.mkdir()
    path.mkdir(parents=True)
    (folder / "weights").rename(blobs / "ab12")
    (blobs / "cd34").write_text("{}")
    (path / "model.safetensors").symlink_to("../../blobs/ab12")
    for name in ("config.json", "tokenizer.json"):
        (path / name).symlink_to("../../blobs/cd34")
    (path / "README.md").write_text("a card")
    return path


def test_a_snapshot_of_one_file(tmp_path: Path) -> None:
    path = snapshot(tmp_path)
    assert cordwood.detect(path).format == "safetensors-shards"
    loaded = cordwood.load(path)
    assert equal(loaded, {name: TENSORS[name] for name in loaded})
    assert set(loaded) == set(TENSORS)
    assert set(cordwood.load(path, nest=True)) == {"lm_head", "model"}
    with cordwood.open(path) as checkpoint:
        assert checkpoint.metadata == {"format": "pt"}
    checked = cordwood.verify(path)
    assert (checked.leaves, checked.verified_bytes) == (len(TENSORS), 0)
    cordwood.convert(path, tmp_path / "own")
    assert cordwood.diff(path, tmp_path / "own").equal
    with pytest.raises(NotACheckpointError):
        cordwood.save(path, {"w": 1})
    with pytest.raises(ValueError, match="this one holds one"):
        cordwood.load(path, prefix="a")


def test_a_snapshot_whose_blob_is_missing(tmp_path: Path) -> None:
    path = snapshot(tmp_path)
    (tmp_path / "blobs" / "ab12").unlink()
    with pytest.raises(IncompleteCheckpointError, match="the download is not complete"):
        cordwood.load(path)


def test_a_single_file_of_cordwoods_keeps_its_tree_and_digests(tmp_path: Path) -> None:
    tree = {"layers": [np.ones(300), (np.zeros(3), 7)]}
    file = tmp_path / "run" / "model.safetensors"
    cordwood.save(file, tree)
    loaded = cordwood.load(tmp_path / "run")
    assert isinstance(loaded["layers"][1], tuple)
    assert cordwood.verify(tmp_path / "run").verified_bytes == file.stat().st_size
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptionError):
        cordwood.verify(tmp_path / "run")


def test_in_a_directory_of_steps_the_steps_count(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "run" / "100", {"w": 1})
    cordwood.save(tmp_path / "run" / "model.safetensors", {"w": 2})
    assert cordwood.detect(tmp_path / "run").steps == ("100",)
    with pytest.raises(IncompleteCheckpointError, match="directory of 1 step"):
        cordwood.load(tmp_path / "run")


# The output of a Trainer: its model, and checkpoint-500 beside it


def trainer_output(path: Path, *, sharded: bool) -> Path:
    """Write a model of ones, and the checkpoints 500 and 1000 of twos beside it."""
    for name, value in (("", 1), ("checkpoint-500", 2), ("checkpoint-1000", 2)):
        folder = path / name
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {key: np.full(4, value, np.float32) for key in "ab"}
        (folder / "trainer_state.json").write_text("{}")
        if sharded:
            write_shards(folder, tensors)
        else:
            safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return path


def write_shards(folder: Path, tensors: Mapping[str, Any], *, index: bool = True) -> None:
    files = [f"model-{i:05}-of-{len(tensors):05}.safetensors" for i in range(1, len(tensors) + 1)]
    for file, (name, array) in zip(files, tensors.items(), strict=True):
        safetensors.numpy.save_file({name: array}, folder / file)
    if index:
        write_map(folder, dict(zip(tensors, files, strict=True)))


@pytest.mark.parametrize("sharded", [True, False])
def test_the_output_of_a_trainer_is_its_model(tmp_path: Path, sharded: bool) -> None:
    root = trainer_output(tmp_path / "out", sharded=sharded)
    assert set(cordwood.load(root)["a"]) == {1}
    assert set(cordwood.load(root / "checkpoint-500")["a"]) == {2}
    detected = cordwood.detect(root)
    assert detected.format == "safetensors-shards"
    assert detected.steps == ("checkpoint-500", "checkpoint-1000")
    assert cordwood.verify(root).leaves == 2
    with cordwood.open(root) as checkpoint:
        assert list(checkpoint) == ["a", "b"]


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("place", ["", "checkpoint-500"])
def test_verify_sees_all_files_of_a_trainer(
    run: Run, tmp_path: Path, sharded: bool, place: str
) -> None:
    root = trainer_output(tmp_path / "out", sharded=sharded)
    code, out, _ = run("verify", root)
    assert code == 0
    summary = f"{root}: the model and 2 checkpoints beside it: 3 without damage"
    assert out.splitlines()[-1].startswith(summary)
    file = next((root / place).glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    assert run("verify", root).code == 1


# Files without an index, and an index that is not theirs


def test_all_files_of_a_model_without_an_index(tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, index=False)
    assert equal(cordwood.load(tmp_path), TENSORS)
    assert cordwood.detect(tmp_path).format == "safetensors-shards"
    assert cordwood.verify(tmp_path).leaves == len(TENSORS)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    for read in (cordwood.load, cordwood.open, cordwood.verify):
        with pytest.raises(
            IncompleteCheckpointError,
            match=r"has 2 of 3 files .* model-00002-of-00003\.safetensors",
        ):
            read(tmp_path)


def test_files_of_two_models_without_an_index(tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, index=False)
    write_shards(tmp_path, {"a": np.ones(3)}, index=False)
    with pytest.raises(
        NotACheckpointError, match=r"model-\*-of-00001, model-\*-of-00003\): move all but one away"
    ):
        cordwood.load(tmp_path)
    (tmp_path / "model-00001-of-00001.safetensors").unlink()
    assert equal(cordwood.load(tmp_path), TENSORS)


def test_an_index_that_is_older_than_the_files(tmp_path: Path) -> None:
    write_shards(tmp_path, TENSORS, index=False)
    write_map(tmp_path, {"a": "model-00001-of-00002.safetensors"})
    with pytest.raises(
        IncompleteCheckpointError,
        match=r"has no model-00001-of-00002\.safetensors, .*does not list model-00001-of-00003\.saf"
        r".*remove .*index\.json, and the files of a complete model-\*-of-N load",
    ):
        cordwood.load(tmp_path)
    (tmp_path / INDEX).unlink()
    assert equal(cordwood.load(tmp_path), TENSORS)
