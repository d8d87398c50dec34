"""The msgpack file `checkpoint` of older versions: its leaves, and what is wrong with it.

tests/foreign_files has what those versions write.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax.serialization import msgpack_serialize

import cordwood
from cordwood.errors import CordwoodError, CorruptionError, FormatError, IncompleteCheckpointError

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)


def write_array(path: Path, array: np.ndarray[Any, Any]) -> None:
    path.mkdir(parents=True)
    members = {
        "zarr_format": 2,
        "shape": array.shape,
        "chunks": array.shape,
        "dtype": array.dtype.str,
        "compressor": None,
        "fill_value": None,
        "filters": None,
        "order": "C",
    }
    (path / ".zarray").write_text(json.dumps(members))
    (path / ".".join("0" * array.ndim or "0")).write_bytes(array.tobytes())


def entry(*keys: str, value_type: str, skip: bool) -> dict[str, Any]:
    return {
        "key_metadata": [{"key": key, "key_type": 2} for key in keys],
        "value_metadata": {"value_type": value_type, "skip_deserialize": skip},
    }


def write_tree(path: Path, aggregate: Any, *entries: dict[str, Any]) -> Path:
    """Write a checkpoint with `kernel` as an array; without entries, of the oldest versions."""
    write_array(path / "kernel", KERNEL)
    (path / "checkpoint").write_bytes(msgpack_serialize(aggregate))
    if entries:
        tree = {str(number): each for number, each in enumerate(entries)}
        (path / "_METADATA").write_text(json.dumps({"tree_metadata": tree}))
    return path


AGGREGATE = {"kernel": "PLACEHOLDER://kernel", "bias": np.ones(3, np.int16), "n": 7, "raw": b"abc"}
ENTRIES = (
    entry("kernel", value_type="jax.Array", skip=False),
    entry("bias", value_type="jax.Array", skip=True),
    entry("n", value_type="scalar", skip=True),
)


def test_leaves_in_the_file_and_beside_it(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "c", AGGREGATE, *ENTRIES)
    tree = cordwood.load(path)
    assert (np.asarray(tree["kernel"]) == KERNEL).all()
    assert (tree["bias"] == 1).all()
    assert tree["n"] == 7
    with cordwood.open(path) as checkpoint:
        assert [checkpoint[name].kind for name in ("kernel", "bias", "n")] == ["jax", "jax", "int"]
        assert (checkpoint["bias"][1:] == 1).all()
    assert cordwood.verify(path).leaves == 3
    cordwood.convert(path, tmp_path / "converted")
    assert cordwood.diff(path, tmp_path / "converted").equal


def test_the_file_is_all_that_says_what_the_tree_is(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "c", {**AGGREGATE, "list": [{"x": "AGGREGATED://kernel"}]})
    tree = cordwood.load(path)
    assert sorted(tree) == ["bias", "kernel", "list", "n", "raw"]
    assert (tree["kernel"] == KERNEL).all()
    assert (tree["list"][0]["x"] == KERNEL).all()
    assert (tree["n"], tree["raw"]) == (7, b"abc")
    assert cordwood.detect(path).format == "orbax"


def test_bytes_that_orbax_calls_none_are_not_lost(tmp_path: Path) -> None:
    none = entry("raw", value_type="None", skip=True)
    missing = entry("nothing", value_type="None", skip=True)
    path = write_tree(tmp_path / "c", {**AGGREGATE, "nothing": None}, *ENTRIES, none, missing)
    assert cordwood.load(path)["raw"] == b"abc"
    assert cordwood.load(path)["nothing"] is None


def test_keys_that_are_numbers(tmp_path: Path) -> None:
    numbered = entry("layers", "0", value_type="np.ndarray", skip=True)
    aggregate = {**AGGREGATE, "layers": {"0": np.zeros(2)}}
    path = write_tree(tmp_path / "c", aggregate, *ENTRIES, numbered)
    assert (cordwood.load(path)["layers"]["0"] == 0).all()


@pytest.mark.parametrize("has_metadata", [True, False])
def test_an_array_that_the_file_names_is_missing(tmp_path: Path, has_metadata: bool) -> None:
    path = write_tree(tmp_path / "c", AGGREGATE, *(ENTRIES if has_metadata else ()))
    (path / "kernel" / ".zarray").unlink()
    for read in (cordwood.load, cordwood.open, cordwood.verify):
        with pytest.raises(CorruptionError, match=r"c: kernel: .*\.zarray.* is missing"):
            read(path)


def test_a_value_that_should_be_in_the_file_is_not(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "c", {"kernel": "PLACEHOLDER://kernel"}, *ENTRIES)
    with pytest.raises(CorruptionError, match=r"c: bias: .*in the file 'checkpoint', which is mis"):
        cordwood.load(path)
    (path / "checkpoint").unlink()
    with pytest.raises(CorruptionError, match=r"c: bias: .* copy it again"):
        cordwood.load(path)


def test_every_cut_of_the_file_is_noticed(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "c", AGGREGATE, *ENTRIES)
    data = (path / "checkpoint").read_bytes()
    for stop in range(len(data)):
        (path / "checkpoint").write_bytes(data[:stop])
        with pytest.raises(CordwoodError, match=r"c(/checkpoint)?: "):
            cordwood.load(path)


def test_a_file_of_that_name_in_a_newer_checkpoint_is_not_read(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "c", AGGREGATE, ENTRIES[0])
    (path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    assert (np.asarray(cordwood.load(path)["kernel"]) == KERNEL).all()
    (path / "checkpoint").unlink()
    (path / "checkpoint").symlink_to("_METADATA")
    assert (np.asarray(cordwood.load(path)["kernel"]) == KERNEL).all()


def test_the_text_of_that_name_that_tensorflow_writes_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    with pytest.raises(IncompleteCheckpointError, match="it contains checkpoint, and no index"):
        cordwood.load(tmp_path)


def test_a_file_that_is_no_tree_of_flax(tmp_path: Path) -> None:
    path = write_tree(tmp_path / "c", AGGREGATE)
    (path / "checkpoint").write_bytes(b"\x92\xc1\xc1")
    with pytest.raises(FormatError, match=r"c/checkpoint: byte 1: expected a value, found 0xc1"):
        cordwood.load(path)
