"""Malformed directories of Hugging Face's shards: each small, each with its error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import cordwood
from cordwood.errors import (
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    LimitError,
    TruncatedError,
)
from tests.formats.hostile_files import (
    Case,
    damaged,
    dumped,
    refused,
    require_tree_or_error,
    written,
)

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def shard(**tensors: Any) -> bytes:
    data: bytes = safetensors.numpy.save(tensors)
    return data


def header(text: str, data: bytes = b"") -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(8, "little") + raw + data


ONE, TWO = shard(a=np.ones(2, np.float32)), shard(b=np.zeros((2, 3), np.int8))
GOOD = {
    INDEX: dumped({"metadata": {"total_size": 14}, "weight_map": {"a": FIRST, "b": SECOND}}),
    FIRST: ONE,
    SECOND: TWO,
}


def index(weight_map: Any) -> dict[str, bytes | None]:
    return {INDEX: dumped({"weight_map": weight_map})}


CASES: dict[str, Case] = {
    "an index of nothing": Case(
        {INDEX: b""},
        FormatError,
        "model.safetensors.index.json: the index is not JSON: Expecting value",
    ),
    "an index cut": Case(
        {INDEX: GOOD[INDEX][:-3]},
        FormatError,
        "model.safetensors.index.json: the index is not JSON: Unterminated",
    ),
    "an index that is no text": Case(
        {INDEX: b"\xff{}"}, FormatError, "model.safetensors.index.json: it is not UTF-8 at byte 0"
    ),
    "a deep index": Case(
        {INDEX: b"[" * 100_000},
        FormatError,
        "model.safetensors.index.json: the index nests too deeply",
    ),
    "a list": Case(
        {INDEX: b"[]"},
        FormatError,
        "model.safetensors.index.json: expected an object with a weight_map,",
    ),
    "no map": Case(
        {INDEX: b"{}"},
        FormatError,
        "model.safetensors.index.json: expected an object with a weight_map,",
    ),
    "a map that is a list": Case(
        index([]),
        FormatError,
        "model.safetensors.index.json: expected an object with a weight_map,",
    ),
    "a map of nothing": Case(
        index({}),
        FormatError,
        "model.safetensors.index.json: its weight_map is empty: expected the",
    ),
    "a map twice": Case(
        {INDEX: b'{"weight_map":{},"weight_map":{}}'},
        FormatError,
        "model.safetensors.index.json: the index: the key 'weight_map' occurs",
    ),
    "a tensor twice": Case(
        {INDEX: f'{{"weight_map":{{"a":"{FIRST}","a":"{SECOND}"}}}}'.encode()},
        FormatError,
        "model.safetensors.index.json: the index: the key 'a' occurs twice (at",
    ),
    "a file that is a number": Case(
        index({"a": 3}),
        FormatError,
        "model.safetensors.index.json: weight_map: 'a': expected the name of a",
    ),
    "a file without a name": Case(
        index({"a": ""}),
        FormatError,
        "model.safetensors.index.json: weight_map: 'a': expected the name of a",
    ),
    "a path upwards": Case(
        index({"a": "../x.safetensors"}),
        FormatError,
        "model.safetensors.index.json: weight_map: 'a': expected the name of a",
    ),
    "an absolute path": Case(
        index({"a": "/etc/passwd"}),
        FormatError,
        "model.safetensors.index.json: weight_map: 'a': expected the name of a",
    ),
    "a path downwards": Case(
        index({"a": "x/y.safetensors"}),
        FormatError,
        "model.safetensors.index.json: weight_map: 'a': expected the name of a",
    ),
    "a path of another system": Case(
        index({"a": "..\\x.safetensors"}),
        FormatError,
        "model.safetensors.index.json: weight_map: 'a': expected the name of a",
    ),
    "the directory": Case(
        index({"a": "."}),
        FormatError,
        "model.safetensors.index.json: weight_map: 'a': expected the name of a",
    ),
    "a null character": Case(
        index({"a": "x\0"}),
        FormatError,
        "model.safetensors.index.json: weight_map: 'a': expected the name of a",
    ),
    "a lone surrogate": Case(
        index({"a": "\ud800"}),
        FormatError,
        "model.safetensors.index.json: weight_map: 'a': expected the name of a",
    ),
    "a long name": Case(
        index({"a": "x" * 5000}),
        FormatError,
        "model.safetensors.index.json: weight_map: 'a': expected the name of a",
    ),
    "a file that is missing": Case(
        {SECOND: None},
        IncompleteCheckpointError,
        "has no model-00002-of-00002.safetensors, which",
    ),
    "a file of nothing": Case(
        {SECOND: b""},
        TruncatedError,
        "model-00002-of-00002.safetensors: expected a safetensors file, found an empty file",
    ),
    "a file cut": Case(
        {SECOND: TWO[:-1]},
        TruncatedError,
        "model-00002-of-00002.safetensors: the tensors end at byte 70, after",
    ),
    "a file with more": Case(
        {SECOND: TWO + b"\0"},
        FormatError,
        "model-00002-of-00002.safetensors: 1 bytes after the last tensor, from",
    ),
    "a file that is none": Case(
        {SECOND: b"PK\3\4" * 20},
        FormatError,
        "model-00002-of-00002.safetensors: expected a safetensors file, found a zip archive that",
    ),
    "a header of gigabytes": Case(
        {SECOND: (1 << 40).to_bytes(8, "little") + b"{}"},
        LimitError,
        "model-00002-of-00002.safetensors: the length of the header, at byte 0,",
    ),
    "a header that is no JSON": Case(
        {SECOND: header("{")},
        FormatError,
        "model-00002-of-00002.safetensors: the header is not JSON: Expecting",
    ),
    "a tensor of terabytes": Case(
        {
            SECOND: header(
                f'{{"b":{{"dtype":"U8","shape":[{1 << 40}],"data_offsets":[0,{1 << 40}]}}}}'
            )
        },
        TruncatedError,
        "model-00002-of-00002.safetensors: the tensors end at byte",
    ),
    "a tensor elsewhere": Case(
        index({"a": SECOND, "b": FIRST}), FormatError, "model.safetensors.index.json: 'a' is not in"
    ),
    "a tensor nowhere": Case(
        index({"a": FIRST, "c": SECOND}), FormatError, "model.safetensors.index.json: 'c' is not in"
    ),
    "a tensor in two files": Case(
        {SECOND: shard(a=np.ones(1), b=np.ones(1))},
        FormatError,
        "model.safetensors.index.json: 'a' is in",
    ),
    "a file of cordwood's": Case({}, CorruptionError, "cordwood wrote this file, but its cord"),
}


@pytest.fixture(scope="module")
def saved_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "x.safetensors"
    cordwood.save(path, {"b": np.ones(2)})
    return path.read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_malformed_shards_are_refused(tmp_path: Path, name: str, saved_file: bytes) -> None:
    case = CASES[name]
    files = {SECOND: saved_file} if name == "a file of cordwood's" else case.files
    refused(written(tmp_path / "c", GOOD, files), case)


def test_the_unchanged_directory_loads(tmp_path: Path) -> None:
    loaded = cordwood.load(written(tmp_path / "c", GOOD, {}))
    assert loaded["b"].shape == (2, 3)


@pytest.mark.parametrize("name", [INDEX, SECOND])
def test_every_cut_and_damaged_byte_gives_a_tree_or_an_error(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "c", GOOD, {})
    require_tree_or_error(path, path / name, damaged(GOOD[name]))
