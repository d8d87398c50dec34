"""Malformed Orbax checkpoints, of hand-made files: each small, each with its error.

None may hang or eat memory.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    PrefixError,
    TruncatedError,
    UnsupportedFormatError,
)
from tests.formats.hostile_files import (
    Case,
    changed,
    damaged,
    dumped,
    refused,
    require_tree_or_error,
    written,
)


def leaf(*keys: Any, value_type: Any = "jax.Array", kind: Any = 2) -> dict[str, Any]:
    return {
        "key_metadata": [{"key": key, "key_type": kind} for key in keys],
        "value_metadata": {"value_type": value_type, "skip_deserialize": False},
    }


TREE: dict[str, Any] = {
    "tree_metadata": {"('w',)": leaf("w")},
    "use_ocdbt": False,
    "use_zarr3": False,
    "store_array_data_equal_to_fill_value": True,
}
ZARR2: dict[str, Any] = {
    "zarr_format": 2,
    "shape": [3, 2],
    "chunks": [2, 2],
    "dtype": "<f4",
    "compressor": None,
    "fill_value": None,
    "filters": None,
    "order": "C",
    "dimension_separator": ".",
}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}
INNER = {"chunk_shape": [1, 2], "codecs": [BYTES], "index_codecs": [BYTES]}
ZARR3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [3, 2],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [BYTES],
    "fill_value": 0.0,
}
CHUNK = np.arange(4, dtype="<f4").tobytes()
GOOD2 = {"_METADATA": dumped(TREE), "w/.zarray": dumped(ZARR2), "w/0.0": CHUNK, "w/1.0": CHUNK}
GOOD3 = {
    "_METADATA": changed(TREE, use_zarr3=True),
    "w/zarr.json": dumped(ZARR3),
    "w/c/0/0": CHUNK,
    "w/c/1/0": CHUNK,
}


def tree(**leaves: Any) -> dict[str, bytes | None]:
    return {"_METADATA": changed(TREE, tree_metadata=leaves)}


def zarr2(**changes: Any) -> dict[str, bytes | None]:
    return {"w/.zarray": changed(ZARR2, **changes)}


def zarr3(**changes: Any) -> dict[str, bytes | None]:
    return {"w/zarr.json": changed(ZARR3, **changes)}


def index(*entries: int) -> bytes:
    """Return a shard of two chunks: their bytes, and what its index says of them."""
    return CHUNK + struct.pack(f"<{len(entries)}Q", *entries)


def shards(first: bytes, **inner: Any) -> dict[str, bytes | None]:
    codec = {"name": "sharding_indexed", "configuration": {**INNER, **inner}}
    return {"w/zarr.json": changed(ZARR3, codecs=[codec]), "w/c/0/0": first, "w/c/1/0": first}


ABSENT = (1 << 64) - 1
DEEP = tree(a=leaf(*["k"] * 2000))
TREES: dict[str, Case] = {
    "nothing": Case({"_METADATA": b""}, FormatError, "_METADATA is not JSON"),
    "cut": Case({"_METADATA": GOOD2["_METADATA"][:-9]}, FormatError, "_METADATA is not JSON"),
    "no text": Case({"_METADATA": b"\xff{}"}, FormatError, "_METADATA is not UTF-8 at byte 0"),
    "a number": Case({"_METADATA": b"1"}, FormatError, "expected a JSON object with tree_met"),
    "deep JSON": Case({"_METADATA": b"[" * 100_000}, FormatError, "_METADATA"),
    "a long number": Case({"_METADATA": b"1" * 100_000}, FormatError, "_METADATA"),
    "twice": Case({"_METADATA": b'{"a":1,"a":2}'}, FormatError, "'a' occurs twice"),
    "leaves in a list": Case(
        {"_METADATA": changed(TREE, tree_metadata=[])},
        FormatError,
        "_METADATA: expected a JSON object with tree_metadata",
    ),
    "a leaf that is none": Case(
        tree(w=1),
        FormatError,
        "_METADATA: tree_metadata: 'w': expected an object with key_metadata",
    ),
    "no keys": Case(
        tree(w={"value_metadata": {"value_type": "scalar"}}),
        FormatError,
        "_METADATA: tree_metadata: 'w': expected an object with key_metadata",
    ),
    "a key that is a number": Case(
        tree(w=leaf(3)),
        FormatError,
        "_METADATA: tree_metadata: 'w': key_metadata: expected a key and its",
    ),
    "another kind of key": Case(
        tree(w=leaf("w", kind=3)),
        FormatError,
        "_METADATA: tree_metadata: 'w': key_metadata: expected a key and its",
    ),
    "a class": Case(
        tree(w=leaf("w", value_type="os.system")),
        FormatError,
        "_METADATA: tree_metadata: 'w': value_type 'os.system' is unknown;",
    ),
    "a class that is no name": Case(
        tree(w=leaf("w", value_type=["x"])),
        FormatError,
        "_METADATA: tree_metadata: 'w': value_type ['x'] is unknown; expected",
    ),
    "deep": Case(
        DEEP, LimitError, "_METADATA: tree_metadata: 'a': 2000 keys; expected at most 1000"
    ),
    "a leaf in a leaf": Case(
        tree(w=leaf("w"), v=leaf("w", "v")),
        FormatError,
        "_METADATA: tree_metadata: 'v': it is inside 'w', which is a leaf",
    ),
    "a leaf twice": Case(
        tree(w=leaf("w"), v=leaf("w")),
        FormatError,
        "_METADATA: tree_metadata: 'v': it occurs twice, or other leaves are",
    ),
    "two of one name": Case(
        tree(w=leaf("a.b"), v=leaf("a", "b")),
        FormatError,
        "_METADATA: two leaves are called 'a.b': they were saved to one place,",
    ),
    "a name upwards": Case(
        tree(w=leaf("../w")), FormatError, "../w: '../w/.zarray' is not a path of plain names"
    ),
    "an absolute name": Case(
        tree(w=leaf("/etc")), FormatError, "/etc: '/etc/.zarray' is not a path of plain names"
    ),
    "a null character": Case(
        tree(w=leaf("w\0")), FormatError, "'w\\x00': 'w\\x00/.zarray' is not a path of plain names"
    ),
    "a lone surrogate": Case(
        {"_METADATA": GOOD2["_METADATA"].replace(b'"key": "w"', b'"key": "\\ud800"')},
        FormatError,
        "'\\ud800': '\\ud800/.zarray' holds a lone surrogate",
    ),
    "a long name": Case(
        tree(w=leaf("w" * 300)),
        FormatError,
        "'wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww",
    ),
    "a long path": Case(
        tree(w=leaf("w/" * 4000 + "w")),
        LimitError,
        "'w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w/w",
    ),
    "no such array": Case(
        tree(w=leaf("v")),
        CorruptionError,
        "v: .zarray is missing: the checkpoint is incomplete; copy it again, or",
    ),
    "no such string": Case(
        tree(w=leaf("w", value_type="string")),
        CorruptionError,
        "_strings.json is missing: the checkpoint is incomplete; copy or save",
    ),
    "a flag that is none": Case(
        {"_METADATA": changed(TREE, use_zarr3=3)},
        FormatError,
        "_METADATA: use_zarr3: expected true or false, found 3",
    ),
    "a database that is not there": Case(
        {"_METADATA": changed(TREE, use_ocdbt=True)},
        CorruptionError,
        "manifest.ocdbt is missing: the checkpoint is incomplete; copy or save",
    ),
    "rich types that are none": Case(
        {"_METADATA": changed(TREE, value_metadata_tree=[1])},
        FormatError,
        "_METADATA: value_metadata_tree: expected a string, found [1]",
    ),
    "rich types cut": Case(
        {"_METADATA": changed(TREE, value_metadata_tree='{"w"')},
        FormatError,
        "_METADATA: value_metadata_tree is not JSON: Expecting ':' delimiter",
    ),
    "keys that are none": Case(
        {"array_metadatas/process_0": b"3"},
        FormatError,
        "array_metadatas/process_0: expected an object with array_metadatas",
    ),
    "keys of nothing": Case(
        {"array_metadatas/process_0": dumped({"array_metadatas": [{}]})},
        FormatError,
        "array_metadatas/process_0: {} names no array",
    ),
    "a scalar with a shape": Case(
        tree(w=leaf("w", value_type="scalar")),
        FormatError,
        "w: an array of shape [3, 2] is not a scalar",
    ),
}
ARRAYS2: dict[str, Case] = {
    "no metadata": Case(
        {"w/.zarray": None},
        CorruptionError,
        "w: .zarray is missing: the checkpoint is incomplete; copy it again, or",
    ),
    "metadata of nothing": Case(
        {"w/.zarray": b""},
        FormatError,
        "w: .zarray: .zarray is not JSON: Expecting value (at character 0)",
    ),
    "another version": Case(
        zarr2(zarr_format=3),
        FormatError,
        "w: .zarray: expected a JSON object with zarr_format 2, found",
    ),
    "no shape": Case(
        zarr2(shape=...),
        FormatError,
        "w: .zarray: shape: expected integers of 0 or more, found None",
    ),
    "negative": Case(
        zarr2(shape=[-3, 2]),
        FormatError,
        "w: .zarray: shape: expected integers of 0 or more, found [-3, 2]",
    ),
    "a float": Case(
        zarr2(shape=[3.5, 2]),
        FormatError,
        "w: .zarray: shape: expected integers of 0 or more, found [3.5, 2]",
    ),
    "true": Case(
        zarr2(shape=[True, 2]),
        FormatError,
        "w: .zarray: shape: expected integers of 0 or more, found [True, 2]",
    ),
    "many axes": Case(
        zarr2(shape=[1] * 33, chunks=[1] * 33),
        LimitError,
        "w: .zarray: shape: 33 axes; expected at most 32 (MAX_DIMS)",
    ),
    "overflow": Case(
        zarr2(shape=[1 << 62, 4], chunks=[1 << 62, 4]),
        LimitError,
        "w: .zarray: shape: [4611686018427387904, 4] takes more than",
    ),
    "terabytes": Case(
        zarr2(shape=[1 << 40, 2]),
        CorruptionError,
        "w: 2.0 is missing: the checkpoint is incomplete; copy it again, or",
    ),
    "terabytes in one chunk": Case(
        zarr2(shape=[1 << 38, 2], chunks=[1 << 38, 2]),
        TruncatedError,
        "w: 0.0: expected 2199023255552 bytes, found 16: it is damaged, or",
    ),
    "chunks of nothing": Case(
        zarr2(chunks=[0, 2]),
        FormatError,
        "w: .zarray: chunks: expected integers of 1 or more, found [0, 2]",
    ),
    "an axis less": Case(zarr2(chunks=[2]), FormatError, "w: .zarray: shape has 2 axes, chunks 1"),
    "unknown dtype": Case(
        zarr2(dtype="<f3"),
        FormatError,
        "w: .zarray: dtype: '<f3' is unknown; expected one of b1, i1, i2, i4,",
    ),
    "objects": Case(
        zarr2(dtype="|O"),
        FormatError,
        "w: .zarray: dtype: '|O' is unknown; expected one of b1, i1, i2, i4,",
    ),
    "structured": Case(
        zarr2(dtype=[["a", "<f4"]]),
        FormatError,
        "w: .zarray: dtype: [['a', '<f4']] is unknown; expected one of b1, i1,",
    ),
    "unknown order": Case(zarr2(order="X"), FormatError, "w: .zarray: expected order"),
    "filters": Case(
        zarr2(filters=[{"id": "delta"}]),
        FormatError,
        "w: .zarray: filters: expected none, found [{'id': 'delta'}]",
    ),
    "unknown compressor": Case(
        zarr2(compressor={"id": "lzma"}),
        FormatError,
        "w: .zarray: compressor: expected null or one of blosc, bz2, gzip,",
    ),
    "a compressor that is none": Case(
        zarr2(compressor="zstd"),
        FormatError,
        "w: .zarray: compressor: expected null or one of blosc, bz2, gzip,",
    ),
    "unknown separator": Case(
        zarr2(dimension_separator="-"), FormatError, "w: .zarray: expected order"
    ),
    "a chunk missing": Case(
        {"w/1.0": None},
        CorruptionError,
        "w: 1.0 is missing: the checkpoint is incomplete; copy it again, or",
    ),
    "a chunk cut": Case(
        {"w/1.0": CHUNK[:-1]},
        TruncatedError,
        "w: 1.0: expected 16 bytes, found 15: it is damaged, or belongs to",
    ),
    "a chunk that is longer": Case(
        {"w/1.0": CHUNK + b"\0"},
        FormatError,
        "w: 1.0: expected 16 bytes, found 17: it is damaged, or belongs to",
    ),
    "a chunk too many": Case(
        {"w/2.0": CHUNK},
        CorruptionError,
        "w: 2.0 is not a chunk of an array of shape [3, 2] in chunks of [2, 2]: it",
    ),
}
ARRAYS3: dict[str, Case] = {
    "another version": Case(
        zarr3(zarr_format=2),
        FormatError,
        "w: zarr.json: expected a JSON object with zarr_format 3, found",
    ),
    "a group": Case(
        zarr3(node_type="group"),
        FormatError,
        "w: zarr.json: node_type: expected 'array', found 'group'",
    ),
    "many axes": Case(
        zarr3(shape=[1] * 40),
        LimitError,
        "w: zarr.json: shape: 40 axes; expected at most 32 (MAX_DIMS)",
    ),
    "an axis more": Case(
        zarr3(shape=[3, 2, 1]), FormatError, "w: zarr.json: shape has 3 axes, chunk_shape 2"
    ),
    "unknown dtype": Case(
        zarr3(data_type="string"),
        FormatError,
        "w: zarr.json: data_type: 'string' is unknown; expected a number's or",
    ),
    "an unknown grid": Case(
        zarr3(chunk_grid={"name": "rectangular"}),
        UnsupportedFormatError,
        "w: zarr.json: chunk_grid: expected 'regular', found {'name':",
    ),
    "unknown keys": Case(
        zarr3(chunk_key_encoding={"name": "morton"}),
        UnsupportedFormatError,
        "w: zarr.json: chunk_key_encoding: expected 'default', found {'name':",
    ),
    "no codecs": Case(
        zarr3(codecs=[]),
        UnsupportedFormatError,
        "w: zarr.json: codecs: expected bytes, and one of blosc, gzip, zstd or",
    ),
    "codecs that are none": Case(
        zarr3(codecs=[1]),
        FormatError,
        "w: zarr.json: codecs: expected a list of named codecs, found [1]",
    ),
    "transposed": Case(
        zarr3(codecs=[{"name": "transpose"}, BYTES]),
        UnsupportedFormatError,
        "w: zarr.json: codecs: expected bytes, and one of blosc, gzip, zstd or",
    ),
    "transformed": Case(
        zarr3(storage_transformers=[{"name": "x"}]),
        UnsupportedFormatError,
        "w: zarr.json: storage_transformers: expected none, found [{'name':",
    ),
    "a member that must be understood": Case(
        zarr3(extra={}),
        UnsupportedFormatError,
        "w: zarr.json: extra: a member that is not known here, and whose",
    ),
    "terabytes": Case(
        zarr3(shape=[1 << 40, 2]),
        CorruptionError,
        "w: c/2/0 is missing: the checkpoint is incomplete; copy it again, or",
    ),
    "a chunk cut": Case(
        {"w/c/1/0": CHUNK[:-1]},
        TruncatedError,
        "w: c/1/0: expected 16 bytes, found 15: it is damaged, or belongs to",
    ),
    "a shard of nothing": Case(
        shards(b""),
        TruncatedError,
        "w: c/0/0: expected an index of 32 bytes, found 0 in all; copy it",
    ),
    "chunks that do not fill a shard": Case(
        shards(CHUNK, chunk_shape=[3, 2]),
        FormatError,
        "w: zarr.json: chunks of [3, 2] do not fill [2, 2]",
    ),
    "very many chunks": Case(
        {
            **shards(CHUNK),
            **zarr3(
                shape=[1 << 50, 2],
                chunk_grid={"name": "regular", "configuration": {"chunk_shape": [1 << 50, 2]}},
                codecs=[{"name": "sharding_indexed", "configuration": INNER}],
            ),
        },
        TruncatedError,
        "w: c/0/0: expected an index of 18014398509481984 bytes, found 16 in",
    ),
    "beyond the shard": Case(
        shards(index(0, 8, 40, 16)),
        TruncatedError,
        "w: c/0/0: expected a chunk of 16 bytes at 40, but the value ends at 48; copy",
    ),
    "beyond 64 bits": Case(
        shards(index(0, 8, ABSENT - 1, 8)),
        TruncatedError,
        "w: c/0/0: expected a chunk of 8 bytes at 18446744073709551614, but the value",
    ),
    "another size": Case(
        shards(index(0, 8, 8, 7)),
        TruncatedError,
        "w: c/0/0: expected 8 bytes, found 7: it is damaged, or belongs to",
    ),
    "absent where all are stored": Case(
        shards(index(0, 8, ABSENT, ABSENT)),
        CorruptionError,
        "w: a chunk within c/0/0 is missing: the checkpoint is incomplete; copy",
    ),
    "another checksum": Case(
        shards(index(0, 8, 8, 8) + bytes(4), index_codecs=[BYTES, CRC]),
        CorruptionError,
        "w: c/0/0: the index of its chunks does not match its checksum: it is",
    ),
    "a shard in a shard": Case(
        shards(CHUNK, codecs=[{"name": "sharding_indexed", "configuration": INNER}]),
        UnsupportedFormatError,
        "w: zarr.json: codecs: expected bytes, and one of blosc, gzip, zstd or",
    ),
}


def test_the_unchanged_directories_load(tmp_path: Path) -> None:
    expected = [[0, 1], [2, 3], [0, 1]]
    shard = shards(index(0, 8, 8, 8))
    for name, good, other in (("2", GOOD2, {}), ("3", GOOD3, {}), ("s", GOOD3, shard)):
        path = written(tmp_path / name, good, other)
        assert cordwood.load(path)["w"].tolist() == expected


@pytest.mark.parametrize("case", TREES.values(), ids=TREES)
def test_a_malformed_tree_is_refused(tmp_path: Path, case: Case) -> None:
    refused(written(tmp_path / "c", GOOD2, case.files), case)


@pytest.mark.parametrize("case", ARRAYS2.values(), ids=ARRAYS2)
def test_a_malformed_array_of_zarr_2_is_refused(tmp_path: Path, case: Case) -> None:
    refused(written(tmp_path / "c", GOOD2, case.files), case)


@pytest.mark.parametrize("case", ARRAYS3.values(), ids=ARRAYS3)
def test_a_malformed_array_of_zarr_3_is_refused(tmp_path: Path, case: Case) -> None:
    refused(written(tmp_path / "c", GOOD3, case.files), case)


@pytest.mark.parametrize("compressor", ["zstd", "gzip", "zlib", "bz2", "blosc", "lz4"])
def test_a_chunk_that_is_not_compressed_is_refused(tmp_path: Path, compressor: str) -> None:
    """Damage that only a load detects."""
    path = written(tmp_path / "c", GOOD2, zarr2(compressor={"id": compressor}))
    with pytest.raises(CorruptionError, match=r"0\.0: the chunk at byte 0"):
        cordwood.load(path)


def items(**files: bytes) -> dict[str, bytes | None]:
    """Return a checkpoint of version 1: its tree is an item."""
    moved: dict[str, bytes | None] = {f"state/{name}": data for name, data in GOOD3.items()}
    return {"_CHECKPOINT_METADATA": b"{}", "orbax.checkpoint": b"", **moved, **files}


def test_a_prefix_outside_of_the_checkpoint_is_not_found(tmp_path: Path) -> None:
    path = written(tmp_path / "c", items(), {})
    assert cordwood.load(path)["w"].shape == (3, 2)
    for prefix in ("..", ".", "/etc", "state/..", "st\0ate", "x" * 300, "state/w"):
        with pytest.raises(PrefixError, match="not found"):
            cordwood.load(path, prefix=prefix)


@pytest.mark.parametrize("good", [GOOD2, GOOD3, {**GOOD3, **shards(index(0, 8, 8, 8))}])
def test_damage_in_metadata_gives_a_tree_or_an_error(
    tmp_path: Path, good: dict[str, bytes]
) -> None:
    path = written(tmp_path / "c", good, {})
    for name in {"_METADATA", "w/.zarray", "w/zarr.json", "w/c/0/0"} & set(good):
        require_tree_or_error(path, path / name, damaged(good[name], step=7))
