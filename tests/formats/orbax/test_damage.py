"""Orbax checkpoints that are not whole, or not what they say: an error that names what is wrong."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint._src.serialization import tensorstore_utils

import cordwood
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.formats.orbax.tree_metadata import STORES_ZEROS
from cordwood.formats.zarr.array_reader import MAX_UNSTORED_CHUNKS
from cordwood.formats.zarr.unstored_chunks import MAX_FILL_BYTES, ZeroChunks
from cordwood.index import Codec, Inline
from cordwood.io.chunk_codecs import decode_chunk
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.plan.load_plan import EncodedChunk, Scatter
from cordwood.testing import assert_trees_equal
from tests.formats.orbax.orbax_trees import EVERY, change, copied, index_at
from tests.memory import traced_memory

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


def shape(path: Path, result: list[int]) -> None:
    change(path, lambda members: members.update(shape=result))


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
        r"4.0 is not a chunk of an array of shape \[64, 48\] in chunks of \[16, 24\]",
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
        r"c/3/0 is not a chunk of an array of shape \[48, 48\]",
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
        "is not a chunk of an array of shape",
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
        r"params.kernel: an array of shape \[64, 48\] is not a scalar",
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
        "'../../x/.zarray' is not a path of plain names",
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
def test_damage_is_refused_with_the_path(
    tmp_path: Path,
    layout: str,
    damage: Callable[[Path], object],
    error: type[CordwoodError],
    message: str,
) -> None:
    path = copied(layout, tmp_path)
    damage(path)
    with pytest.raises(error, match=message) as caught:
        index_at(path)
    assert str(path) in str(caught.value)
    with pytest.raises(error, match=message):
        cordwood.load(path)


@pytest.mark.parametrize("layout", EVERY)
def test_damaged_chunks_are_not_read_as_other_numbers(tmp_path: Path, layout: str) -> None:
    """Compressed chunks are checked; raw bytes carry no checksum, and `verify` says so."""
    path = copied(layout, tmp_path)
    expected = np.asarray(cordwood.load(path, to="numpy")["params"]["kernel"])
    index = index_at(path)
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
        result = cordwood.verify(path)
        assert result.leaves == 14
        assert result.unverified_bytes > 10_000
        assert (result.verified_bytes > 500) == ("files" not in layout)


def test_keys_without_their_metadata_are_numbers(tmp_path: Path) -> None:
    path = copied(FILES2, tmp_path)
    shutil.rmtree(path / "array_metadatas")
    assert cordwood.load(path)["key"].dtype == np.uint32


def say(path: Path, stores_zeros: bool | None) -> None:
    """Have a checkpoint say whether chunks of zeros are stored; None: say nothing, as old ones."""

    def edit(members: Any) -> None:
        members.pop(STORES_ZEROS)
        if stores_zeros is not None:
            members[STORES_ZEROS] = stores_zeros

    change(path / "_METADATA", edit)


def test_zeros_that_are_said_not_to_be_stored(tmp_path: Path) -> None:
    path = copied(FILES3, tmp_path)
    expected = np.array(cordwood.load(path)["params"]["kernel"])
    say(path, stores_zeros=False)
    (path / KERNEL / "c/1/1").unlink()
    (path / "rate/c").unlink()
    expected[16:32, 24:48] = 0
    result = cordwood.load(path)
    assert np.array_equal(result["params"]["kernel"], expected)
    assert result["rate"] == 0.0
    with cordwood.open(path) as checkpoint:
        assert np.array_equal(checkpoint["params/kernel"][20:, 20:30], expected[20:, 20:30])
    checked = cordwood.verify(path)
    assert (checked.unstored_chunks, checked.unstored_leaves) == (2, ("params/kernel", "rate"))
    change(path / KERNEL / "zarr.json", lambda m: m.update(fill_value=1))
    with pytest.raises(CorruptionError, match="c/1/1 is missing"):
        cordwood.load(path)


@pytest.mark.parametrize("stores_zeros", [True, False, None])
@pytest.mark.parametrize("layout", [FILES2, "v0-zarr2-ocdbt"])
def test_without_a_fill_value_all_chunks_are_stored(
    tmp_path: Path, layout: str, stores_zeros: bool | None
) -> None:
    """TensorStore leaves nothing out then, and Orbax never gave one to zarr of version 2."""
    path = copied(layout, tmp_path)
    say(path, stores_zeros)
    assert cordwood.verify(path).unstored_chunks == 0
    if layout == FILES2:
        shutil.copytree(path, tmp_path / "none")
        (path / KERNEL / "1.1").unlink()
        for file in ("0.0", "0.1", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1"):
            (tmp_path / "none" / KERNEL / file).unlink()
        with pytest.raises(CorruptionError, match=r"params.kernel: 1.1 is missing"):
            cordwood.verify(path)
        with pytest.raises(CorruptionError, match=r"params.kernel: 0.0 is missing"):
            cordwood.load(tmp_path / "none")


def test_some_chunks_are_missing_and_nothing_says_that_they_were_zeros(tmp_path: Path) -> None:
    path = copied(FILES3, tmp_path)
    say(path, None)
    (path / KERNEL / "c/2/1").unlink()
    for call in (cordwood.load, cordwood.open, cordwood.verify):
        with pytest.raises(CorruptionError, match=r"params.kernel: c/2/1 is missing, but other"):
            call(path)
    with pytest.raises(CorruptionError, match='"store_array_data_equal_to_fill_value": false in _'):
        cordwood.load(path)


def test_all_chunks_of_an_array_are_missing_and_nothing_says_why(tmp_path: Path) -> None:
    """So an older Orbax left a new optimizer state; it loads, with a warning."""
    path = copied(FILES3, tmp_path)
    say(path, None)
    shutil.rmtree(path / KERNEL / "c")
    (path / "step/c").unlink()
    message = "no chunk of params/kernel and 1 more is stored: zeros, which older versions of Orbax"
    with pytest.warns(RuntimeWarning, match=message):
        result = cordwood.load(path)
    assert not np.asarray(result["params"]["kernel"]).any()
    assert result["step"] == 0
    checked = cordwood.verify(path)
    assert (checked.unstored_chunks, checked.unstored_leaves) == (9, ("params/kernel", "step"))


SHARDING = {"x": jax.sharding.NamedSharding(jax.make_mesh((8,), ("x",)), jax.P("x"))}


@pytest.mark.parametrize("use_zarr3", [False, True])
@pytest.mark.parametrize("use_ocdbt", [False, True])
def test_zeros_that_the_real_library_leaves_out(
    tmp_path: Path, use_ocdbt: bool, use_zarr3: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orbax as it was before it said so: its own constant, and a flag that is not there."""
    monkeypatch.setattr(tensorstore_utils, STORES_ZEROS.upper(), False)
    some = np.zeros((16, 4), np.float32)
    some[3] = 1
    tree = {
        "none": jax.device_put(np.zeros((16, 4), np.float32), SHARDING["x"]),
        "some": jax.device_put(some, SHARDING["x"]),
        "host": np.zeros(5),
        "number": 0,
        "minus": jnp.full(3, -0.0),
    }
    path = tmp_path / "c"
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
    with ocp.AsyncCheckpointer(handler) as checkpointer:
        checkpointer.save(path, args=ocp.args.PyTreeSave(tree))
        checkpointer.wait_until_finished()
    members = json.loads((path / "_METADATA").read_text())
    assert members[STORES_ZEROS] is False
    expected = (17, ("host", "none", "number", "some")) if use_zarr3 else (0, ())
    for stores_zeros in (False, None):
        say(path, stores_zeros)
        if stores_zeros is None and use_zarr3 and not use_ocdbt:
            with pytest.raises(CorruptionError, match="some: c/0/0 is missing, but other"):
                cordwood.load(path)
            continue
        assert_trees_equal(cordwood.load(path, like=tree), tree)
        result = cordwood.verify(path)
        assert (result.unstored_chunks, result.unstored_leaves) == expected


def test_too_many_unstored_chunks_are_refused(tmp_path: Path) -> None:
    path = copied(FILES3, tmp_path)
    say(path, stores_zeros=False)
    shape(path / KERNEL / "zarr.json", [2**40, 2**10])
    with pytest.raises(LimitError, match=f"expected at most {MAX_UNSTORED_CHUNKS} chunks of"):
        index_at(path)


def inner(members: Any, shape: list[int], shard: list[int], chunk: list[int]) -> None:
    """Another shape, in shards of another, in chunks of another."""
    members["shape"] = shape
    members["chunk_grid"]["configuration"]["chunk_shape"] = shard
    members["codecs"][0]["configuration"]["chunk_shape"] = chunk


HUGE: dict[str, tuple[list[int], list[int], list[int], bool, str]] = {
    "a shard that is not there": (
        [2**50, 48],
        [2**50, 48],
        [1, 48],
        False,
        f"{2**50} chunks or more are missing",
    ),
    "one of two": (
        [2**51, 48],
        [2**50, 48],
        [1, 48],
        True,
        "c/0/0: expected an index of 18014398509481988 bytes, found",
    ),
    "an index that the file could hold": (
        [2**21, 48],
        [2**21, 48],
        [1, 48],
        True,
        "c/0/0: an index of 33554436 bytes; expected at most 16777216",
    ),
}


@pytest.mark.parametrize(("whole", "shard", "chunk", "keep", "message"), HUGE.values(), ids=HUGE)
def test_shards_of_very_many_chunks(
    tmp_path: Path, whole: list[int], shard: list[int], chunk: list[int], keep: bool, message: str
) -> None:
    path = copied(FILES3, tmp_path)
    say(path, stores_zeros=False)
    change(path / KERNEL / "zarr.json", lambda m: inner(m, whole, shard, chunk))
    data = (path / KERNEL / "c/0/0").read_bytes()
    shutil.rmtree(path / KERNEL / "c")
    if keep:
        (path / KERNEL / "c/0").mkdir(parents=True)
        (path / KERNEL / "c/0/0").write_bytes(data)
        if "index that the file could hold" in message or "33554436" in message:
            os.truncate(path / KERNEL / "c/0/0", 1 << 26)
    with pytest.raises(FormatError, match=message):
        index_at(path)


def test_a_shard_larger_than_its_array(tmp_path: Path) -> None:
    """Only the chunks that begin within the array are looked at."""
    path = copied(FILES3, tmp_path)
    say(path, stores_zeros=False)
    shutil.rmtree(path / KERNEL / "c")
    change(path / KERNEL / "zarr.json", lambda m: inner(m, [3, 48], [2**50, 48], [2, 24]))
    (result,) = [each for each in index_at(path).leaves if each.key_path[-1] == "kernel"]
    assert not isinstance(result.storage, Inline)
    assert len(result.storage.pieces) == 4


def test_a_chunk_of_zeros_that_is_too_large(tmp_path: Path) -> None:
    path = copied(FILES2, tmp_path)
    say(path, stores_zeros=False)
    large = {"shape": [2**40], "chunks": [2**40], "compressor": None, "fill_value": 0}
    change(path / "layers.1.0" / ".zarray", lambda m: m.update(large))
    (path / "layers.1.0" / "0").unlink()
    with pytest.raises(LimitError, match="a chunk of 1099511627776 bytes that is not stored"):
        index_at(path)


@pytest.mark.parametrize("compressor", [None, "zstd", "gzip", "zlib"])
def test_zeros_are_encoded_without_going_through_them(compressor: str | None) -> None:
    """The most that is accepted takes a few MiB; smaller ones decode to what they should."""
    with traced_memory() as memory:
        ZeroChunks([], {}, is_certain=True).location(compressor, MAX_FILL_BYTES)
    assert memory.peak_bytes < 20 << 20
    for size in (1, 131071, 131072, 131073, 1 << 20, (3 << 20) + 5):
        encoded: dict[int, Any] = {}
        location = ZeroChunks([], encoded, is_certain=True).location(compressor, size)
        codec = Codec(compressor, "C", False)
        chunk = EncodedChunk(0, 0, location.length, codec, "uint8", Scatter((size,), 1, ()))
        assert decode_chunk(chunk, memoryview(encoded[0]), ScratchBuffer(), name="") == bytes(size)


def test_a_number_in_a_very_large_chunk(tmp_path: Path) -> None:
    path = copied(FILES2, tmp_path)
    os.truncate(path / "step" / "0", 1 << 40)
    with pytest.raises(LimitError, match="step: a number in 1099511627776 bytes; expected at most"):
        index_at(path)


def test_the_sharding_file_is_not_needed(tmp_path: Path) -> None:
    path = copied("v1", tmp_path)
    names = {base64.b64decode(key).decode() for key in json.loads((path / "_sharding").read_text())}
    assert KERNEL in names
    (path / "_sharding").unlink()
    assert cordwood.load(path)["step"] == 7
