"""Malformed trees of zarr arrays without an index: each small, each with its error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
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

ZARR: dict[str, Any] = {
    "zarr_format": 2,
    "shape": [3, 2],
    "chunks": [2, 2],
    "dtype": "<f4",
    "compressor": None,
    "fill_value": None,
    "filters": None,
    "order": "C",
}
CHUNK = np.arange(4, dtype="<f4").tobytes()
GOOD = {
    "m/w/.zarray": dumped(ZARR),
    "m/w/0.0": CHUNK,
    "m/w/1.0": CHUNK,
    "step/.zarray": changed(ZARR, shape=[], chunks=[]),
    "step/0": CHUNK[:4],
    "metadata.json": b"{}",
}


def array(**changes: Any) -> dict[str, bytes | None]:
    return {"m/w/.zarray": changed(ZARR, **changes)}


CASES: dict[str, Case] = {
    "metadata of nothing": Case(
        {"m/w/.zarray": b""},
        FormatError,
        "m/w: .zarray is not JSON: Expecting value (at character 0)",
    ),
    "metadata cut": Case(
        {"m/w/.zarray": dumped(ZARR)[:-2]},
        FormatError,
        "m/w: .zarray is not JSON: Unterminated string starting at (at",
    ),
    "metadata that is no text": Case(
        {"m/w/.zarray": b"\xff"}, FormatError, "m/w: .zarray is not UTF-8 at byte 0"
    ),
    "large metadata": Case(
        {"m/w/.zarray": b" " * (2 << 20)},
        LimitError,
        "m/w/.zarray: 2097152 bytes; expected at most 1048576",
    ),
    "deep metadata": Case(
        {"m/w/.zarray": b"[" * 100_000}, FormatError, "m/w: .zarray nests too deeply"
    ),
    "a list": Case(
        {"m/w/.zarray": b"[]"},
        FormatError,
        "m/w: expected a JSON object with zarr_format 2, found []",
    ),
    "a member twice": Case(
        {"m/w/.zarray": b'{"shape":[],"shape":[1]}'},
        FormatError,
        "m/w: .zarray: the key 'shape' occurs twice (at character 12)",
    ),
    "another version": Case(
        array(zarr_format=1),
        FormatError,
        "m/w: expected a JSON object with zarr_format 2, found {'zarr_format':",
    ),
    "no shape": Case(
        array(shape=...), FormatError, "m/w: shape: expected integers of 0 or more, found None"
    ),
    "no chunks": Case(
        array(chunks=...), FormatError, "m/w: chunks: expected integers of 1 or more, found None"
    ),
    "negative": Case(
        array(shape=[-1, 2]),
        FormatError,
        "m/w: shape: expected integers of 0 or more, found [-1, 2]",
    ),
    "a string": Case(
        array(shape="32"), FormatError, "m/w: shape: expected integers of 0 or more, found '32'"
    ),
    "many axes": Case(
        array(shape=[1] * 40, chunks=[1] * 40),
        LimitError,
        "m/w: shape: 40 axes; expected at most 32 (MAX_DIMS)",
    ),
    "overflow": Case(
        array(shape=[1 << 61, 4]),
        LimitError,
        "m/w: shape: [2305843009213693952, 4] takes more than",
    ),
    "overflow of a chunk": Case(
        array(chunks=[1 << 61, 4]),
        LimitError,
        "m/w: chunks: [2305843009213693952, 4] takes more than",
    ),
    "very many chunks": Case(
        array(shape=[1 << 50, 2], chunks=[1, 1]),
        FormatError,
        "m/w: 0.0: expected 4 bytes, found 16: it is damaged, or belongs to",
    ),
    "very many chunks in directories": Case(
        array(shape=[1 << 50, 2], chunks=[1, 1], dimension_separator="/"),
        CorruptionError,
        "m/w: 0/0 is missing: the checkpoint is incomplete; copy or save it again",
    ),
    "a very large chunk": Case(
        array(shape=[1 << 50, 2], chunks=[1 << 50, 2]),
        TruncatedError,
        "m/w: 0.0: expected 9007199254740992 bytes, found 16: it is damaged",
    ),
    "chunks of nothing": Case(
        array(chunks=[0, 2]),
        FormatError,
        "m/w: chunks: expected integers of 1 or more, found [0, 2]",
    ),
    "a chunk missing": Case(
        {"m/w/0.0": None},
        CorruptionError,
        "m/w: 0.0 is missing: the checkpoint is incomplete; copy or save it",
    ),
    "very many chunks of the fill value": Case(
        array(shape=[1 << 50, 2], chunks=[1, 1], fill_value=1),
        LimitError,
        "m/w: 2251799813685246 chunks or more are missing; expected at most 1048576",
    ),
    "a very large chunk of the fill value": Case(
        {**array(shape=[4, 1 << 40], chunks=[2, 1 << 40], fill_value=1), "m/w/0.0": None},
        LimitError,
        "m/w: a chunk of 8796093022208 bytes that is not stored",
    ),
    "a fill value of another dtype": Case(
        {**array(fill_value="AAAA"), "m/w/0.0": None},
        FormatError,
        "m/w: fill_value: 'AAAA' is no value of float32",
    ),
    "a node of no known kind": Case(
        {"m/new/zarr.json": b'{"zarr_format": 3, "node_type": "link"}'},
        FormatError,
        "m/new/zarr.json: node_type: expected 'array' or 'group', found 'link'",
    ),
    "no node": Case(
        {"m/new/zarr.json": b""},
        FormatError,
        "m/new/zarr.json is not JSON: Expecting value (at character 0)",
    ),
    "a chunk too many": Case(
        {"m/w/5.0": CHUNK},
        CorruptionError,
        "m/w: 5.0 is no chunk of an array of shape [3, 2] in chunks of [2, 2]:",
    ),
    "a chunk cut": Case(
        {"m/w/0.0": CHUNK[1:]},
        TruncatedError,
        "m/w: 0.0: expected 16 bytes, found 15: it is damaged, or belongs to",
    ),
    "a chunk that is longer": Case(
        {"m/w/0.0": CHUNK * 2},
        FormatError,
        "m/w: 0.0: expected 16 bytes, found 32: it is damaged, or belongs to",
    ),
    "a number that is longer": Case(
        {"step/0": CHUNK},
        FormatError,
        "step: 0: expected 4 bytes, found 16: it is damaged, or belongs to",
    ),
    "a database": Case(
        {"m/manifest.ocdbt": b""},
        UnsupportedFormatError,
        "m: manifest.ocdbt says that this is OCDBT, a database of TensorStore's",
    ),
    "a mark of cordwood's": Case(
        array(cordwood=1),
        CorruptionError,
        "m/w: cordwood wrote this array, and its part of tensorstore_index.json",
    ),
    "a checkpoint within": Case(
        {"m/x/cordwood.json": b""},
        FormatError,
        "is no tree of arrays alone: cordwood.json says that",
    ),
    "deep directories": Case(
        {"/".join("d" * 80) + "/x": b""},
        LimitError,
        "d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_malformed_tree_is_refused(tmp_path: Path, case: Case) -> None:
    refused(written(tmp_path / "c", GOOD, case.files), case)


UNREADABLE: dict[str, dict[str, Any]] = {
    "dtype: '|O' is unknown": {"dtype": "|O"},
    "dtype: '<U4' is unknown": {"dtype": "<U4"},
    "dtype: [['a', '<f4']] is unknown": {"dtype": [["a", "<f4"]]},
    "filters": {"filters": [{"id": "pickle"}]},
    "compressor": {"compressor": {"id": "pickle"}},
}


@pytest.mark.parametrize(("reason", "changes"), UNREADABLE.items(), ids=UNREADABLE)
def test_arrays_of_other_kinds_alone_are_refused(
    tmp_path: Path, reason: str, changes: dict[str, Any]
) -> None:
    path = written(tmp_path / "c", GOOD, array(**changes))
    with pytest.raises(UnsupportedFormatError) as raised:
        cordwood.load(path)
    assert f"c: 1 leaf cannot be read:\n  m/w: .zarray: {reason}" in str(raised.value)
    advice = 'read it with zarr, and save numbers\nload the others with select=["**", "!m/w"]'
    assert str(raised.value).endswith(advice)
    assert list(cordwood.load(path, select=["**", "!m/w"])) == ["step"]
    cordwood.verify(path)


def test_the_unchanged_directory_loads(tmp_path: Path) -> None:
    assert cordwood.load(written(tmp_path / "c", GOOD, {}))["m"]["w"].shape == (3, 2)


def test_damage_in_metadata_gives_a_tree_or_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "c", GOOD, {})
    name = "m/w/.zarray"
    require_tree_or_error(path, path / name, damaged(GOOD[name], step=5))
