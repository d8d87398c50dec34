"""Orbax checkpoints that are not whole, or not what they say: an error that names what is wrong."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.formats.orbax.arrays import MAX_UNSTORED_CHUNKS
from cordwood.index import Inline
from tests.formats.orbax_trees import EVERY, change, copied, scanned

FILES2, FILES3 = "v0-zarr2-files", "v0-zarr3-files"
KERNEL = "params.kernel"


def link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def shape(path: Path, found: list[int]) -> None:
    change(path, lambda members: members.update(shape=found))


Damage = tuple[str, Callable[[Path], object], type[CordwoodError], str]
DAMAGES: dict[str, Damage] = {
    "no leaf": (
        FILES2,
        lambda p: shutil.rmtree(p / KERNEL),
        CorruptionError,
        "params.kernel: .zarray is missing: the checkpoint is incomplete; copy it again",
    ),
    "no metadata": (
        FILES3,
        lambda p: (p / KERNEL / "zarr.json").unlink(),
        CorruptionError,
        "params.kernel: zarr.json is missing: the checkpoint is incomplete",
    ),
    "no chunk": (
        FILES2,
        lambda p: (p / KERNEL / "2.1").unlink(),
        CorruptionError,
        "params.kernel: 2.1 is missing: the checkpoint is incomplete; copy it again, or load",
    ),
    "no chunk in a directory": (
        FILES3,
        lambda p: (p / KERNEL / "c/2/1").unlink(),
        CorruptionError,
        "params.kernel: c/2/1 is missing",
    ),
    "no directory of chunks": (
        FILES3,
        lambda p: shutil.rmtree(p / KERNEL / "c"),
        CorruptionError,
        "params.kernel: c/0/0 is missing",
    ),
    "a chunk too many": (
        FILES2,
        lambda p: shutil.copy(p / KERNEL / "2.1", p / KERNEL / "4.0"),
        CorruptionError,
        r"4.0 is no chunk of an array of shape \[64, 48\] in chunks of \[16, 24\]",
    ),
    "a shape that is larger": (
        FILES2,
        lambda p: shape(p / KERNEL / ".zarray", [80, 48]),
        CorruptionError,
        "params.kernel: 4.0 is missing",
    ),
    "a shape that is smaller": (
        FILES3,
        lambda p: shape(p / KERNEL / "zarr.json", [48, 48]),
        CorruptionError,
        r"c/3/0 is no chunk of an array of shape \[48, 48\]",
    ),
    "a shape of more axes": (
        FILES2,
        lambda p: shape(p / KERNEL / ".zarray", [64, 48, 1]),
        FormatError,
        "params.kernel: .zarray: shape has 3 axes, chunks 2",
    ),
    "a shape of nothing": (
        FILES2,
        lambda p: shape(p / KERNEL / ".zarray", [0, 48]),
        CorruptionError,
        "is no chunk of an array of shape",
    ),
    "a grid that no directory could hold": (
        FILES2,
        lambda p: change(
            p / KERNEL / ".zarray", lambda m: m.update(shape=[2**40, 48], chunks=[1, 1])
        ),
        CorruptionError,
        "params.kernel: 0.2 is missing",
    ),
    "damaged metadata": (
        FILES2,
        lambda p: (p / KERNEL / ".zarray").write_text("{"),
        FormatError,
        "params.kernel: .zarray: .zarray is not JSON",
    ),
    "another codec": (
        FILES3,
        lambda p: change(p / KERNEL / "zarr.json", lambda m: m.update(codecs=[{"name": "zfp"}])),
        UnsupportedFormatError,
        "params.kernel: zarr.json: codecs: expected bytes.*found zfp",
    ),
    "large metadata": (
        FILES2,
        lambda p: (p / KERNEL / ".zarray").write_bytes(b" " * (2 << 20)),
        LimitError,
        ".zarray: 2097152 bytes; expected at most",
    ),
    "a short raw chunk": (
        FILES3,
        lambda p: os.truncate(p / KERNEL / "c/0/0", 15),
        TruncatedError,
        "params.kernel: c/0/0: expected an index of 20 bytes, found 15 in all",
    ),
    "a cut raw chunk": (
        FILES3,
        lambda p: os.truncate(p / KERNEL / "c/0/0", 1000),
        CorruptionError,
        "params.kernel: c/0/0: the index of its chunks does not match its checksum",
    ),
    "a damaged index": (
        FILES3,
        lambda p: flip(p / KERNEL / "c/1/1", -6),
        CorruptionError,
        "params.kernel: c/1/1: the index of its chunks does not match its checksum",
    ),
    "a symlink": (
        FILES2,
        lambda p: link(p / KERNEL / "1.1"),
        CorruptionError,
        "params.kernel/1.1: expected a regular file, found a symbolic link",
    ),
    "a symlinked leaf": (
        FILES2,
        lambda p: link(p / KERNEL),
        CorruptionError,
        "params.kernel is, or lies behind, a symbolic link",
    ),
    "a pipe": (
        FILES2,
        lambda p: pipe(p / KERNEL / "1.1"),
        CorruptionError,
        "expected a regular file",
    ),
    "no strings": (
        FILES2,
        lambda p: (p / "_strings.json").unlink(),
        CorruptionError,
        "_strings.json is missing",
    ),
    "another string": (
        FILES2,
        lambda p: (p / "_strings.json").write_text("{}"),
        CorruptionError,
        "name: _strings.json does not have it",
    ),
    "strings that are none": (
        FILES2,
        lambda p: (p / "_strings.json").write_text('{"name": 3}'),
        FormatError,
        "_strings.json: expected an object of strings",
    ),
    "keys that are none": (
        FILES2,
        lambda p: (p / "array_metadatas/process_0").write_text("[]"),
        FormatError,
        "array_metadatas/process_0: expected an object with array_metadatas",
    ),
    "keys of floats": (
        FILES2,
        lambda p: (p / "array_metadatas/process_0").write_text(
            json.dumps({"array_metadatas": [about("params.kernel", "threefry2x32")]})
        ),
        FormatError,
        r"params.kernel: an array of float32\[64, 48\] cannot hold PRNG keys of 'threefry2x32'",
    ),
    "keys of another size": (
        FILES2,
        lambda p: (p / "array_metadatas/process_0").write_text(
            json.dumps({"array_metadatas": [about("key", "rbg")]})
        ),
        FormatError,
        r"key: an array of uint32\[2\] cannot hold PRNG keys of 'rbg'",
    ),
    "a scalar of some numbers": (
        FILES2,
        lambda p: change(p / "_METADATA", lambda m: scalar(m, "('params', 'kernel')")),
        FormatError,
        r"params.kernel: an array of shape \[64, 48\] is no scalar",
    ),
    "a cut tree": (
        FILES2,
        lambda p: os.truncate(p / "_METADATA", 900),
        FormatError,
        "_METADATA is not JSON",
    ),
    "another way to store": (
        FILES2,
        lambda p: change(p / "_METADATA", lambda m: m.update(use_ocdbt=True)),
        CorruptionError,
        "manifest.ocdbt is missing",
    ),
    "another zarr": (
        FILES2,
        lambda p: change(p / "_METADATA", lambda m: m.update(use_zarr3=True)),
        CorruptionError,
        "zarr.json is missing",
    ),
    "a name upwards": (
        FILES2,
        lambda p: change(p / "_METADATA", lambda m: upwards(m)),
        FormatError,
        "'../../x/.zarray' is no path of plain names",
    ),
}


def about(name: str, impl: str) -> dict[str, Any]:
    return {"array_metadata": {"param_name": name, "ext_metadata": {"random_key_impl": impl}}}


def scalar(members: Any, name: str) -> None:
    members["tree_metadata"][name]["value_metadata"]["value_type"] = "scalar"


def upwards(members: Any) -> None:
    key = {"key": "../../x", "key_type": 2}
    value = {"value_type": "jax.Array", "skip_deserialize": False}
    members["tree_metadata"] = {"x": {"key_metadata": [key], "value_metadata": value}}


@pytest.mark.parametrize(
    ("layout", "damage", "error", "message"), DAMAGES.values(), ids=DAMAGES.keys()
)
def test_damage(
    tmp_path: Path,
    layout: str,
    damage: Callable[[Path], object],
    error: type[CordwoodError],
    message: str,
) -> None:
    path = copied(layout, tmp_path)
    damage(path)
    with pytest.raises(error, match=message) as caught:
        scanned(path)
    assert str(path) in str(caught.value)
    with pytest.raises(error, match=message):
        cordwood.load(path)


@pytest.mark.parametrize("layout", EVERY)
def test_damaged_chunks_are_not_read_as_other_numbers(tmp_path: Path, layout: str) -> None:
    """What is compressed; raw bytes carry no checksum, and `verify` says so."""
    path = copied(layout, tmp_path)
    expected = np.asarray(cordwood.load(path, to="numpy")["params"]["kernel"])
    index = scanned(path).stored
    (kernel,) = [leaf for leaf in index.leaves if leaf.key_path == ("params", "kernel")]
    assert not isinstance(kernel.storage, Inline)
    for piece in kernel.storage.pieces[:4]:
        file = path / index.sources[piece.source].name
        data = file.read_bytes()
        stop = piece.offset + piece.length
        for size in (1, stop // 2, stop - 1):
            file.write_bytes(data[:size])
            with pytest.raises(CordwoodError, match=r"copy|damaged|expected"):
                cordwood.load(path)
        file.write_bytes(data)
    assert np.array_equal(cordwood.load(path, to="numpy")["params"]["kernel"], expected)


def test_what_carries_no_checksum_is_said(tmp_path: Path) -> None:
    for layout in EVERY:
        path = copied(layout, tmp_path)
        found = cordwood.verify(path)
        assert found.leaves == 14
        assert found.unverified_bytes > 10_000
        assert (found.verified_bytes > 500) == ("files" not in layout)


def test_keys_without_their_metadata_are_numbers(tmp_path: Path) -> None:
    path = copied(FILES2, tmp_path)
    shutil.rmtree(path / "array_metadatas")
    assert cordwood.load(path)["key"].dtype == np.uint32


def leave_zeros_out(path: Path) -> None:
    change(path / "_METADATA", lambda m: m.pop("store_array_data_equal_to_fill_value"))


@pytest.mark.parametrize("layout", [FILES2, FILES3])
def test_zeros_that_an_older_orbax_did_not_store(tmp_path: Path, layout: str) -> None:
    path = copied(layout, tmp_path)
    expected = np.array(cordwood.load(path)["params"]["kernel"])
    leave_zeros_out(path)
    (path / KERNEL / ("1.1" if layout == FILES2 else "c/1/1")).unlink()
    for name in ("rate/0", "rate/c"):
        (path / name).unlink(missing_ok=True)
    expected[16:32, 24:48] = 0
    found = cordwood.load(path)
    assert np.array_equal(found["params"]["kernel"], expected)
    assert found["rate"] == 0.0
    with cordwood.open(path) as checkpoint:
        assert np.array_equal(checkpoint["params/kernel"][20:, 20:30], expected[20:, 20:30])
    change(path / KERNEL / (".zarray" if layout == FILES2 else "zarr.json"), fill_with_one)
    with pytest.raises(CorruptionError, match=r"1.1 is missing|c/1/1 is missing"):
        cordwood.load(path)


def fill_with_one(members: Any) -> None:
    members["fill_value"] = 1


@pytest.mark.parametrize("layout", [FILES2, FILES3])
def test_zeros_without_end(tmp_path: Path, layout: str) -> None:
    path = copied(layout, tmp_path)
    leave_zeros_out(path)
    shape(path / KERNEL / (".zarray" if layout == FILES2 else "zarr.json"), [2**40, 2**10])
    with pytest.raises(LimitError, match=f"expected at most {MAX_UNSTORED_CHUNKS} of zeros"):
        scanned(path)


def test_a_chunk_of_zeros_that_is_too_large(tmp_path: Path) -> None:
    path = copied(FILES2, tmp_path)
    leave_zeros_out(path)
    large = {"shape": [2**40], "chunks": [2**40], "compressor": None}
    change(path / "layers.1.0" / ".zarray", lambda m: m.update(large))
    (path / "layers.1.0" / "0").unlink()
    with pytest.raises(LimitError, match="a chunk of 1099511627776 bytes that is not stored"):
        scanned(path)


def test_the_sharding_file_is_not_needed(tmp_path: Path) -> None:
    path = copied("v1", tmp_path)
    names = {base64.b64decode(key).decode() for key in json.loads((path / "_sharding").read_text())}
    assert KERNEL in names
    (path / "_sharding").unlink()
    assert cordwood.load(path)["step"] == 7
