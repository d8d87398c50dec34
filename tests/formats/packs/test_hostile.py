"""Indexes of packs that lie: each with its error, none with a crash, a hang or much memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from cordwood.errors import CorruptionError, FormatError, LimitError, UnsupportedFormatError
from cordwood.formats.packs import parse_item
from cordwood.formats.packs.cordwood_json import decode_index, encode_index
from cordwood.formats.packs.parse_item import parse_items
from cordwood.formats.packs.read_index import read_index
from cordwood.sharding.boxes import ShardGrid
from tests.formats.hostile_files import refused_call
from tests.formats.packs.packed import SAVE_ID, directory_of
from tests.formats.sealed_json import sealed
from tests.memory import traced_memory

HALVES = ShardGrid((4,), ((0, 2),), ((0,), (1,)))
TREE = {"a": np.arange(4.0), "b": {"c": np.arange(6.0), "n": 5}, "t": "x" * 5000}
NAME = f"data-{SAVE_ID}-0-0.safetensors"


def base() -> Any:
    """Return an item of two files with leaves 0, 1, 2 (a value) and 3; leaf 0 has two cells."""
    data = directory_of(TREE, shards={0: HALVES}, process_count=2).data
    return decode_index(data)[""]


def reading(item: Any, prefix: str = "") -> None:
    read_index(parse_items(encode_index({prefix: item}), name="x")[prefix])


def test_the_base_is_good() -> None:
    reading(base())
    item = base()
    assert item["types"][0] == {"kind": "numpy", "dtype": "float64", "shape": [4], "cuts": [2]}
    assert item["leaves"] == [0, 1, 1, 1, 2, 1, 3, 1]
    assert item["columns"] == [[0, 2], [3, 1], [0, 1]]
    assert [file[4] for file in item["files"]] == [[0, 0, 1, 0], [2, 1]]


def setting(*path: Any, to: Any) -> Callable[[Any], None]:
    """Replace what lies at a path of keys."""

    def change(item: Any) -> None:
        for key in path[:-1]:
            item = item[key]
        item[path[-1]] = to

    return change


def removing(*path: Any) -> Callable[[Any], None]:
    def change(item: Any) -> None:
        for key in path[:-1]:
            item = item[key]
        del item[path[-1]]

    return change


def both(*changes: Callable[[Any], None]) -> Callable[[Any], None]:
    def change(item: Any) -> None:
        for each in changes:
            each(item)

    return change


BIG = 1 << 62
ESCAPES = (
    "/etc/passwd",
    "../data.safetensors",
    "a/b.safetensors",
    "..",
    ".",
    "",
    "data.safetensors",
    f"{NAME}\0",
    f"{NAME}\n",
    f"./{NAME}",
    f"data-{SAVE_ID}-0-0.safetensors/../x",
    f"data-{SAVE_ID.upper()}-0-0.safetensors",
    f"data-{SAVE_ID}-٣-0.safetensors",
    "cordwood.json",
    7,
    None,
    ["data"],
)

ITEMS: dict[str, tuple[Callable[[Any], None], type[Exception], str]] = {
    # Members.
    "no values": (removing("values"), FormatError, "items['']: expected an object of save_id"),
    "another member": (setting("more", to=1), FormatError, "expected an object of save_id"),
    "files an object": (setting("files", to={}), FormatError, "files: expected a list"),
    "nodes a string": (setting("nodes", to="x"), FormatError, "nodes: expected a list"),
    "save id short": (setting("save_id", to="12"), FormatError, "expected 16 hexadecimal digits"),
    "save id a number": (setting("save_id", to=12), FormatError, "expected 16 hexadecimal"),
    "save id a path": (setting("save_id", to="../../../../../.."), FormatError, "save_id"),
    "metadata a list": (setting("metadata", to=[]), FormatError, "metadata: expected an object"),
    "metadata of numbers": (setting("metadata", to={"a": 1}), FormatError, "metadata: expected"),
    "metadata surrogates": (
        setting("metadata", to={"a": "\\ud800"}),
        FormatError,
        "metadata: holds a lone surrogate",
    ),
    # Types.
    "type a number": (setting("types", 0, to=3), FormatError, "types[0]: expected an object"),
    "type unknown": (setting("types", 0, "kind", to="x"), FormatError, "unknown kind of leaf 'x'"),
    "type with more": (setting("types", 0, "codec", to="x"), FormatError, "types[0]: expected"),
    "dtype unknown": (setting("types", 0, "dtype", to="float7"), FormatError, "unknown dtype"),
    "dtype object": (setting("types", 0, "dtype", to="object"), FormatError, "unknown dtype"),
    "no dtype": (removing("types", 0, "dtype"), FormatError, "types[0]: expected a dtype"),
    "no shape": (removing("types", 0, "shape"), FormatError, "types[0]: shape: expected"),
    "shape negative": (setting("types", 0, "shape", to=[-4]), FormatError, "integers of 0 or more"),
    "shape of floats": (setting("types", 0, "shape", to=[4.0]), FormatError, "integers of 0"),
    "shape of bools": (setting("types", 0, "shape", to=[True]), FormatError, "integers of 0"),
    "shape huge": (setting("types", 1, "shape", to=[BIG, 4]), FormatError, "takes more than"),
    "shape huge but empty": (
        setting("types", 1, "shape", to=[BIG, 0, 4]),
        FormatError,
        "takes more than",
    ),
    "too many axes": (setting("types", 1, "shape", to=[1] * 65), LimitError, "65 dimensions"),
    "a value with a shape": (setting("types", 2, "shape", to=[]), FormatError, "a value has neit"),
    "a string of two axes": (setting("types", 3, "shape", to=[50, 100]), FormatError, "no str has"),
    "a scalar of one axis": (
        setting("types", 0, "kind", to="numpy_scalar"),
        FormatError,
        "no numpy_scalar has the shape [4]",
    ),
    "a key of no axes": (
        setting("types", 0, to={"kind": "prng_key", "prng_impl": "x", "shape": []}),
        FormatError,
        "no prng_key has the shape []",
    ),
    # Cuts.
    "cuts of another rank": (setting("types", 0, "cuts", to=[2, 1]), FormatError, "cuts: expected"),
    "cuts a number": (setting("types", 0, "cuts", to=2), FormatError, "cuts: expected one for"),
    "no parts": (setting("types", 0, "cuts", to=[0]), FormatError, "cannot be cut into 0 parts"),
    "more parts than rows": (setting("types", 0, "cuts", to=[5]), FormatError, "into 5 parts"),
    "starts empty": (setting("types", 0, "cuts", to=[[]]), FormatError, "expected a number of"),
    "starts late": (setting("types", 0, "cuts", to=[[1, 2]]), FormatError, "expected starts from"),
    "starts twice": (setting("types", 0, "cuts", to=[[0, 0]]), FormatError, "expected starts from"),
    "starts beyond": (setting("types", 0, "cuts", to=[[0, 4]]), FormatError, "ascending and below"),
    "starts of floats": (setting("types", 0, "cuts", to=[[0, 2.0]]), FormatError, "expected a num"),
    "many cells": (
        both(setting("types", 0, "shape", to=[1 << 30]), setting("types", 0, "cuts", to=[1 << 30])),
        LimitError,
        "at most 67108864 (MAX_CELLS)",
    ),
    "more cells than parts": (
        both(setting("types", 0, "shape", to=[1 << 20]), setting("types", 0, "cuts", to=[1 << 20])),
        FormatError,
        "1048576 cells of one leaf, but only",
    ),
    # Leaves and values.
    "too few types": (setting("leaves", to=[0, 1]), FormatError, "leaves: expected types for 4"),
    "a type beyond": (setting("leaves", 0, to=9), FormatError, "leaves: no run can be [9, 1]"),
    "a negative type": (setting("leaves", 0, to=-1), FormatError, "no run can be [-1, 1]"),
    "a run of nothing": (setting("leaves", 1, to=0), FormatError, "no run can be [0, 0]"),
    "runs of strings": (setting("leaves", 0, to="0"), FormatError, "expected pairs of integers"),
    "no value": (setting("values", to=[]), FormatError, "values: expected 1 of them, found 0"),
    "a value too much": (setting("values", to=[5, 5]), FormatError, "expected 1 of them, found 2"),
    "a value of another kind": (setting("values", to=["x"]), FormatError, "values[0]: expected a"),
    "many leaves": (
        both(setting("nodes", to=[["list", 1 << 40], 1 << 40])),
        LimitError,
        "leaves or more; expected at most",
    ),
    "an unfinished tree": (setting("nodes", to=[["list", 2], 1]), FormatError, "1 nodes missing"),
    # Columns.
    "a column of one number": (setting("columns", 0, to=[0]), FormatError, "pairs of first leaf"),
    "a column of nothing": (setting("columns", 0, to=[]), FormatError, "pairs of first leaf"),
    "a column of strings": (setting("columns", 0, to=["0", 1]), FormatError, "pairs of first leaf"),
    "a column beyond": (setting("columns", 0, to=[0, 99]), FormatError, "expected leaves below 4"),
    "a column that goes back": (
        setting("columns", 0, to=[1, 1, 0, 1]),
        FormatError,
        "ascending, found 1 from 0 on",
    ),
    "a column of a value": (setting("columns", 0, to=[2, 1]), FormatError, "expected"),
    "a column that is not used": (
        lambda item: item["columns"].append([0, 1]),
        FormatError,
        "expected parts of columns 0 to",
    ),
    # Files.
    "a file twice": (
        lambda item: item["files"].append(item["files"][0]),
        FormatError,
        "files: a name occurs twice",
    ),
    "a file less": (removing("files", 1), FormatError, "files: expected"),
    "no files": (setting("files", to=[]), FormatError, "files: expected parts of columns"),
    "a row short": (removing("files", 0, 4), FormatError, "files[0]: expected name, sizes"),
    "a row of a string": (setting("files", 0, to="abcde"), FormatError, "files[0]: expected name"),
    "a size negative": (setting("files", 0, 1, to=-1), FormatError, "files[0]: -1 bytes with a"),
    "a size that differs": (setting("files", 0, 1, to=4096), FormatError, "expected 4096 bytes"),
    "a size that is huge": (setting("files", 0, 1, to=1 << 80), FormatError, "bytes with a header"),
    "a size that is a float": (setting("files", 0, 1, to=1e3), FormatError, "1000.0 bytes with"),
    "a header of nothing": (setting("files", 0, 2, to=0), FormatError, "with a header of 0"),
    "a header past the end": (setting("files", 0, 2, to=1 << 20), FormatError, "with a header of"),
    "a header past the limit": (
        both(setting("files", 0, 1, to=1 << 60), setting("files", 0, 2, to=1 << 40)),
        FormatError,
        "with a header of 1099511627776",
    ),
    "a digest short": (setting("files", 0, 3, to="00"), FormatError, "expected a digest of the"),
    "a digest not hexadecimal": (setting("files", 0, 3, to="x" * 32), FormatError, "a digest of"),
    "parts of one number": (setting("files", 0, 4, to=[0]), FormatError, "pairs of column and"),
    "parts of strings": (setting("files", 0, 4, to=["0", "0"]), FormatError, "pairs of column"),
    "a part of no column": (setting("files", 0, 4, to=[9, 0]), FormatError, "expected parts of"),
    "a part twice": (
        lambda item: item["files"][0][4].extend(item["files"][0][4][:2]),
        FormatError,
        "expected the 4 cells of all leaves, found",
    ),
    # Gaps.
    "a gap of nothing": (
        lambda item: item["files"][0][4].extend([-1, 0]),
        FormatError,
        "files[0]: a gap of 0 bytes",
    ),
    "a gap that is negative": (
        both(
            lambda item: item["files"][0][4].extend([-1, -8]),
            lambda item: item["files"][0].__setitem__(1, item["files"][0][1] - 8),
        ),
        FormatError,
        "files[0]: a gap of -8 bytes",
    ),
    "a gap that is not there": (
        lambda item: item["files"][0][4].extend([-1, 8]),
        FormatError,
        "files[0]: expected 9160 bytes, but its header, cells and gaps take 9168",
    ),
    "a gap that is huge": (
        lambda item: item["files"][0][4].extend([-1, BIG * 8]),
        FormatError,
        "its header, cells and gaps take",
    ),
    "two gaps in a row": (
        lambda item: item["files"][0][4].extend([-1, 4, -1, 4]),
        FormatError,
        "files[0]: two gaps in a row",
    ),
    "a file that is a gap": (
        lambda item: item["files"].append(
            [NAME.replace("-0-0", "-0-1"), 100, 8, "0" * 32, [-1, 92]]
        ),
        FormatError,
        "files[2]: holds no cell, only a gap",
    ),
    "a gap in place of a cell": (setting("files", 1, 4, to=[-1, 16]), FormatError, "no cell, only"),
    "another negative column": (
        lambda item: item["files"][0][4].extend([-2, 8]),
        FormatError,
        "expected parts of columns 0 to 3, all",
    ),
    "a cell beyond": (setting("files", 1, 4, 1, to=2), FormatError, "has no cell 2"),
    "a cell negative": (setting("files", 1, 4, 1, to=-1), FormatError, "has no cell -1"),
    "a cell twice": (setting("files", 1, 4, 1, to=0), FormatError, "cell 0 of a leaf is stored tw"),
    "a cell huge": (setting("files", 1, 4, 1, to=BIG * 8), FormatError, "has no cell"),
}


@pytest.mark.parametrize("name", ITEMS)
def test_a_forged_item_is_refused(name: str) -> None:
    change, error, message = ITEMS[name]
    item = json.loads(json.dumps(base()))
    change(item)
    text = json.dumps(item).replace("\\\\ud800", "\\ud800")
    read = partial(_reading_text, text) if "\\ud800" in text else partial(reading, json.loads(text))
    raised = refused_call(read, "x/cordwood.json", 0, error, message, room_bytes=8 << 20)
    assert str(raised).startswith("x/cordwood.json: ")


def _reading_text(text: str) -> None:
    """Return the JSON of an item that holds what the encoder would refuse."""
    parse_items(sealed(f'{{"digest":"{"0" * 32}","version":1,"items":{{"":{text}}}}}'), name="x")


@pytest.mark.parametrize("name", ESCAPES, ids=repr)
def test_names_that_are_not_data_files(name: Any) -> None:
    item = base()
    item["files"][0][0] = name
    with pytest.raises(FormatError, match="is no name of a data file: expected data-<save id>"):
        reading(item)


def test_a_billion_cells_of_a_few_bytes() -> None:
    """Columns and parts multiply: what they claim is counted before memory is taken for it."""
    item = base()
    leaves = 1 << 17
    item["nodes"] = [["list", leaves], leaves]
    item["types"] = [{"kind": "numpy", "dtype": "uint8", "shape": [100_000], "cuts": [100_000]}]
    item["leaves"] = [0, leaves]
    item["values"] = []
    item["columns"] = [[0, leaves]]
    item["files"] = [
        [NAME, 1 << 40, 4096, "0" * 32, [part for i in range(1000) for part in (0, i)]]
    ]
    with traced_memory() as memory, pytest.raises(LimitError, match="13107200000 cells"):
        reading(item)
    assert memory.peak_bytes < 32 << 20


def test_limits_are_not_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse_item, "FREE_LEAVES", 10)
    reading(base())
    item = base()
    item["nodes"] = [["list", 5000], 5000]
    with pytest.raises(LimitError, match="5000 leaves or more; expected at most"):
        reading(item)


def test_many_items_share_the_limit_of_leaves() -> None:
    def item(number: int) -> Any:
        row = [NAME.replace("-0-", f"-{number}-"), 4096, 4096, "0" * 32, [0, 0]]
        kind = {"kind": "numpy", "dtype": "int8", "shape": [0]}
        return {
            **base(),
            "nodes": [["list", 200_000], 200_000],
            "types": [kind],
            "leaves": [0, 200_000],
            "values": [],
            "columns": [[0, 200_000]],
            "files": [row],
        }

    data = encode_index({str(number): item(number) for number in range(50)})
    assert len(data) < 20_000
    with traced_memory() as memory, pytest.raises(LimitError):
        parse_items(data, name="index")
    assert memory.peak_bytes < 64 << 20


GOOD = encode_index({})


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", FormatError, "byte 0: expected"),
        (b"{}", FormatError, "byte 0: expected"),
        (b'{"digest": "', FormatError, "byte 0: expected"),
        (GOOD[:-1], CorruptionError, "does not match its own digest"),
        (GOOD + b"\n", CorruptionError, "does not match its own digest"),
        (GOOD[:30], CorruptionError, "does not match its own digest"),
        (GOOD.replace(b'"items"', b'"itemS"'), CorruptionError, "edited after cordwood wrote it"),
        (
            GOOD.replace(b'"version":1', b'"version":2'),
            UnsupportedFormatError,
            "version 2 is newer",
        ),
        (GOOD.replace(b'"version":1', b'"version":999999999'), UnsupportedFormatError, "upgrade"),
        (GOOD.replace(b'"version":1', b'"version":0'), CorruptionError, "its own digest"),
    ],
)
def test_files_that_are_no_index(data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^x/cordwood.json: .*{message}"):
        parse_items(data, name="x")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('"version":1', "expected an object of digest, version and items"),
        ('"version":1,"items":{},"more":1', "expected an object of digest, version and items"),
        ('"version":1,"items":[]', "items: expected an object"),
        ('"version":1,"items":{"a":1}', "items['a']: expected an object of save_id"),
        ('"version":1,"items":{"a":1,"a":2}', "the key 'a' occurs twice"),
        ('"version":1,"items":{"\\ud800":1}', "a prefix holds a lone surrogate"),
        ('"version":1.0,"items":{}', "expected version 1, found 1.0"),
        ('"version":true,"items":{}', "expected version 1, found True"),
        ('"version":"1","items":{}', "expected version 1, found '1'"),
        ('"version":1,"items":{"a":NaN}', "expected a finite number, found NaN"),
        ('"version":1,"items":' + "[" * 100_000, "the index nests too deeply"),
        ('"version":1,"items":{"a":' + "9" * 5000 + "}", "the index: "),
    ],
)
def test_sealed_files_that_are_no_index(body: str, message: str) -> None:
    with pytest.raises(FormatError, match=f"^x/cordwood.json: .*{re.escape(message)}"):
        parse_items(sealed(f'{{"digest":"{"0" * 32}",{body}}}'), name="x")


def test_an_index_that_is_not_utf8() -> None:
    data = sealed(b'{"digest":"' + b"0" * 32 + b'","version":1,"items":{"\xff":1}}')
    with pytest.raises(FormatError, match=r"x/cordwood.json: not UTF-8 at byte 67"):
        parse_items(data, name="x")


def test_too_many_items_for_one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordwood.formats.packs.cordwood_json.MAX_INDEX_BYTES", 100)
    with pytest.raises(LimitError, match="save fewer leaves or items into one directory"):
        encode_index({"": base()})
