"""Malformed safetensors files: each small, each with its error. None may hang or eat memory."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from cordwood.errors import (
    FormatError,
    LimitError,
    TruncatedError,
)
from tests.formats.hostile_files import Row, refused_file
from tests.formats.safetensors.assemble import with_header


def entry(
    dtype: Any = "U8", shape: Any = (1,), data_offsets: Any = (0, 1), **more: Any
) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": data_offsets, **more}


def one(data: bytes = b"\0", **kwargs: Any) -> bytes:
    """Return a file of one tensor called t."""
    return with_header({"t": entry(**kwargs)}, data)


def compact(header: Any, data: bytes = b"") -> bytes:
    """Written without spaces, so that the quick reading is tried."""
    return with_header(json.dumps(header, separators=(",", ":")), data)


GOOD = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
BIG = 1 << 62

FOREIGN: dict[str, Row] = {
    # The length and the frame.
    "empty": (b"", TruncatedError, "expected a safetensors file, found an empty file"),
    "short length": (b"\1\0\0", TruncatedError, "found 3 bytes in all"),
    "no header": (struct.pack("<Q", 2), TruncatedError, "the header ends at byte 10, after"),
    "header cut": (with_header("{}")[:-1], TruncatedError, "ends at byte 10, after the end"),
    "length of zero": (struct.pack("<Q", 0), FormatError, "found a length of 0 for it"),
    "huge length": (b"\xff" * 16, LimitError, "at most 100000000 (MAX_HEADER_BYTES)"),
    "length past the limit": (
        struct.pack("<Q", 100_000_001) + b"{}",
        LimitError,
        "is 100000001; expected at most",
    ),
    "length of 100 MB, small file": (
        struct.pack("<Q", 100_000_000) + b"{}",
        TruncatedError,
        "the header ends at byte 100000008",
    ),
    "a zip": (b"PK\3\4" + bytes(100), FormatError, "found a zip archive that is cut short"),
    "a pickle": (b"\x80\4\x95\x10\0\0\0\0\0\0\0", FormatError, "found a Python pickle"),
    "a web page": (b"<!DOCTYPE html><html>", FormatError, "found an HTML page"),
    "text": (b"some text of no format", LimitError, "not a safetensors file"),
    "an LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\n",
        FormatError,
        "run `git lfs pull`",
    ),
    # The JSON.
    "leading space": (with_header(" {}"), FormatError, "expected '{' at byte 8, found b' '"),
    "a list": (with_header("[]"), FormatError, "expected '{' at byte 8, found b'['"),
    "byte order mark": (with_header("\ufeff{}"), FormatError, "expected '{' at byte 8"),
    "not JSON": (with_header("{nonsense}"), FormatError, "the header is not JSON"),
    "JSON error after non-ASCII": (
        with_header('{"é":1,}'),
        FormatError,
        "(at byte 16)",
    ),
    "not closed": (with_header('{"a":'), FormatError, "the header is not JSON"),
    "two values": (with_header("{}{}"), FormatError, "Extra data (at byte 10)"),
    "zeros as padding": (with_header(b"{}\0\0"), FormatError, "Extra data (at byte 10)"),
    "not UTF-8": (with_header(b'{"\xff":1}'), FormatError, "not UTF-8 at byte 10"),
    "cut UTF-8": (with_header(b'{"\xe2\x82"}'), FormatError, "not UTF-8 at byte 10"),
    "nested objects": (with_header('{"a":' * 100_000), FormatError, "nests too deeply"),
    "nested lists": (with_header('{"a":' + "[" * 100_000), FormatError, "nests too deeply"),
    "NaN": (with_header('{"a":NaN}'), FormatError, "expected a finite number, found NaN"),
    "Infinity": (with_header('{"a":-Infinity}'), FormatError, "found -Infinity"),
    "a number of 5000 digits": (
        with_header('{"a":' + "1" * 5000 + "}"),
        FormatError,
        "the header: Exceeds the limit",
    ),
    "control character": (with_header('{"a\n":1}'), FormatError, "Invalid control character"),
    "duplicate tensor": (
        with_header(f'{{"t":{GOOD},"t":{GOOD}}}', b"\0"),
        FormatError,
        "the key 't' occurs twice (at byte 61)",
    ),
    "duplicate tensor, contiguous": (
        with_header(f'{{"t":{GOOD},"t":{GOOD.replace("[0,1]", "[1,2]")}}}', b"\0\0"),
        FormatError,
        "the key 't' occurs twice",
    ),
    "duplicate metadata": (
        with_header('{"__metadata__":{},"__metadata__":{}}'),
        FormatError,
        "the key '__metadata__' occurs twice",
    ),
    "duplicate metadata key": (
        with_header('{"__metadata__":{"a":"1","a":"2"}}'),
        FormatError,
        "the key 'a' occurs twice",
    ),
    "duplicate member": (
        with_header('{"t":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"\0"),
        FormatError,
        "the key 'dtype' occurs twice",
    ),
    # __metadata__.
    "metadata is a list": (with_header('{"__metadata__":[]}'), FormatError, "expected an object"),
    "metadata is a tensor": (
        with_header(f'{{"__metadata__":{GOOD}}}', b"\0"),
        FormatError,
        "__metadata__: 'shape': expected a string",
    ),
    "metadata is a tensor, later": (
        with_header(f'{{"t":{GOOD},"__metadata__":{GOOD.replace("[0,1]", "[1,2]")}}}', b"\0\0"),
        FormatError,
        "__metadata__: 'shape': expected a string",
    ),
    "metadata value is a number": (
        with_header('{"__metadata__":{"a":1}}'),
        FormatError,
        "__metadata__: 'a': expected a string, found 1",
    ),
    "metadata value is null": (
        with_header('{"__metadata__":{"a":null}}'),
        FormatError,
        "'a': expected a string, found None",
    ),
    "surrogate in metadata": (
        with_header('{"__metadata__":{"a":"\\ud800"}}'),
        FormatError,
        "__metadata__: 'a': holds a lone surrogate",
    ),
    # A tensor's entry.
    "entry is a number": (with_header({"t": 1}), FormatError, "'t' (header byte 9): expected an"),
    "entry is null": (with_header({"t": None}), FormatError, "found None"),
    "entry is empty": (with_header({"t": {}}), FormatError, "found {}"),
    "no dtype": (
        with_header({"t": {"shape": [1], "data_offsets": [0, 1]}}, b"\0"),
        FormatError,
        "expected an object of dtype, shape and data_offsets",
    ),
    "unknown member": (one(strides=[1]), FormatError, "expected an object of dtype"),
    "unknown dtype": (one(dtype="F7"), FormatError, "(header byte 9): unknown dtype 'F7'"),
    "unknown dtype, compact": (
        compact({"t": entry(dtype="F7")}, b"\0"),
        FormatError,
        "unknown dtype 'F7'",
    ),
    "dtype in lower case": (one(dtype="u8"), FormatError, "unknown dtype 'u8'"),
    "dtype is a number": (one(dtype=8), FormatError, "expected a dtype, found 8"),
    "surrogate in a name": (
        with_header(f'{{"\\ud800":{GOOD}}}', b"\0"),
        FormatError,
        "a lone surrogate in its name",
    ),
    "shape is a number": (one(shape=1), FormatError, "shape: expected a list, found 1"),
    "shape is a string": (one(shape="1"), FormatError, "shape: expected a list"),
    "true in shape": (one(shape=[True]), FormatError, "0 or more, found True"),
    "float in shape": (one(shape=[1.0]), FormatError, "0 or more, found 1.0"),
    "null in shape": (one(shape=[None]), FormatError, "0 or more, found None"),
    "negative dimension": (one(shape=[-1]), FormatError, "0 or more, found -1"),
    "two negative dimensions": (one(shape=[-1, -1]), FormatError, "0 or more, found -1"),
    "leading zero": (
        with_header(GOOD.join(['{"t":', "}"]).replace("[1]", "[01]"), b"\0"),
        FormatError,
        "the header is not JSON",
    ),
    "overflowing shape": (one(shape=[BIG, BIG]), FormatError, "takes more than"),
    "overflowing shape of no elements": (
        one(b"", shape=[BIG, BIG, 0], data_offsets=[0, 0]),
        FormatError,
        "takes more than",
    ),
    "shape that wraps around": (
        one(shape=[1 << 32, 1 << 32], data_offsets=[0, 0], data=b""),
        FormatError,
        "takes more than",
    ),
    "65 dimensions": (
        one(shape=[1] * 65),
        LimitError,
        "65 dimensions; expected at most 64 (MAX_DIMS)",
    ),
    "a million dimensions": (one(shape=[1] * 1_000_000), LimitError, "1000000 dimensions"),
    "larger than said": (one(shape=[2]), FormatError, "U8[2] takes 2 bytes, found data_offsets"),
    "smaller than said": (
        one(b"\0\0", data_offsets=[0, 2]),
        FormatError,
        "takes 1 bytes, found data_offsets [0, 2]",
    ),
    "half a byte": (
        one(dtype="F4", shape=[3], data_offsets=[0, 2], data=b"\0\0"),
        FormatError,
        "3 elements of F4, 4 bits each, do not fill whole bytes",
    ),
    # Offsets.
    "one offset": (one(data_offsets=[0]), FormatError, "data_offsets: expected 2 of them, found 1"),
    "three offsets": (one(data_offsets=[0, 1, 2]), FormatError, "expected 2 of them, found 3"),
    "offsets are an object": (one(data_offsets={}), FormatError, "expected a list, found {}"),
    "negative offset": (one(data_offsets=[-1, 0]), FormatError, "0 or more, found -1"),
    "float offset": (one(data_offsets=[0.0, 1]), FormatError, "0 or more, found 0.0"),
    "true as offset": (one(data_offsets=[0, True]), FormatError, "0 or more, found True"),
    "offsets backwards": (one(data_offsets=[1, 0]), FormatError, "found data_offsets [1, 0]"),
    "offsets past the end": (
        one(data_offsets=[5, 6]),
        FormatError,
        "begins at byte 5 of the data and leaves a gap",
    ),
    "huge offsets": (
        one(data_offsets=[2**64, 2**64 + 1]),
        FormatError,
        f"begins at byte {2**64} of the data",
    ),
    "overlap": (
        with_header({"a": entry(), "b": entry()}, b"\0"),
        FormatError,
        "'b' (header byte 69): begins at byte 0 of the data and overlaps",
    ),
    "overlap in part": (
        with_header(
            {"a": entry(shape=[3], data_offsets=[0, 3]), "b": entry(data_offsets=[2, 3])}, b"abc"
        ),
        FormatError,
        "overlaps the one before it; expected byte 3",
    ),
    "hole": (
        with_header({"a": entry(), "b": entry(data_offsets=[2, 3])}, b"abc"),
        FormatError,
        "leaves a gap before it; expected byte 1",
    ),
    "hole, compact": (
        compact({"a": entry(), "b": entry(data_offsets=[2, 3])}, b"abc"),
        FormatError,
        "leaves a gap before it; expected byte 1",
    ),
    "hole at the start": (one(b"ab", data_offsets=[1, 2]), FormatError, "expected byte 0"),
    "data missing": (one(b""), TruncatedError, "after the end of the file"),
    "data of a terabyte missing": (
        one(shape=[1 << 40], data_offsets=[0, 1 << 40]),
        TruncatedError,
        "after the end of the file",
    ),
    "data left over": (one(b"ab"), FormatError, "1 bytes after the last tensor, from byte"),
    "data without tensors": (with_header("{}", b"a"), FormatError, "1 bytes after the last"),
    "a comma too many": (
        with_header(f'{{"t":{GOOD},}}', b"\0"),
        FormatError,
        "the header is not JSON",
    ),
    "junk between entries": (
        with_header(f'{{"t":{GOOD};"u":{GOOD}}}', b"\0"),
        FormatError,
        "the header is not JSON",
    ),
}


@pytest.mark.parametrize("row", FOREIGN.values(), ids=FOREIGN)
def test_a_malformed_file_is_refused(tmp_path: Path, row: Row) -> None:
    refused_file(tmp_path / "bad.safetensors", row)


def test_memory_of_many_entries_stays_small(tmp_path: Path) -> None:
    raw = compact({f"t{i}": 1 for i in range(5_000)})
    refused_file(tmp_path / "bad.safetensors", (raw, FormatError, "expected an object of dtype"))
