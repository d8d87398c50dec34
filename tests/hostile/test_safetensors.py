"""Malformed safetensors files: each small, each with its error. None may hang or eat memory."""

from __future__ import annotations

import json
import re
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cordwood.engine.files import MemoryFile
from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from cordwood.formats.safetensors import scan, seal
from tests.formats.assemble import file_bytes, header_of, with_header


def entry(
    dtype: Any = "U8", shape: Any = (1,), data_offsets: Any = (0, 1), **more: Any
) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": data_offsets, **more}


def one(data: bytes = b"\0", **kwargs: Any) -> bytes:
    """A file of one tensor called t."""
    return with_header({"t": entry(**kwargs)}, data)


def compact(header: Any, data: bytes = b"") -> bytes:
    """Written without spaces, so that the quick reading is tried."""
    return with_header(json.dumps(header, separators=(",", ":")), data)


GOOD = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
BIG = 1 << 62

FOREIGN: dict[str, tuple[bytes, type[Exception], str]] = {
    # The length and the frame.
    "empty": (b"", TruncatedError, "expected 8 bytes of header length at byte 0, found 0"),
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
    "a zip": (b"PK\3\4" + bytes(100), FormatError, "expected '{' at byte 8"),
    "a pickle": (b"\x80\4\x95\x10\0\0\0\0\0\0\0", LimitError, "no safetensors file"),
    "a web page": (b"<!DOCTYPE html><html>", LimitError, "no safetensors file"),
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


@pytest.mark.parametrize(("raw", "error", "message"), FOREIGN.values(), ids=FOREIGN)
def test_malformed_files(raw: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        scan(MemoryFile(raw, "bad.safetensors"))
    assert type(caught.value) is error
    assert str(caught.value).startswith("bad.safetensors: ")
    assert len(str(caught.value)) < 700


def forged(
    change: Callable[[dict[str, Any]], None],
    tree: Any = None,
    own: Callable[[dict[str, str]], None] | None = None,
) -> bytes:
    """A file of cordwood's whose structure was changed and whose header was sealed again."""
    raw = file_bytes({"a": np.ones(2), "b": 3} if tree is None else tree)
    start = 8 + int.from_bytes(raw[:8], "little")
    header = header_of(raw)
    metadata = header["__metadata__"]
    table = json.loads(metadata["cordwood.structure"])
    change(table)
    metadata["cordwood.structure"] = json.dumps(table)
    if own is not None:
        own(metadata)
    text = json.dumps(header, separators=(",", ":"))
    size = -(-(8 + len(text)) // 4096) * 4096
    return seal.seal_header(text, size) + raw[start:]


def put(member: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda table: table.__setitem__(member, value)


def nothing(_table: dict[str, Any]) -> None:
    pass


def own_key(key: str, value: str) -> bytes:
    return forged(nothing, own=lambda metadata: metadata.__setitem__(key, value))


NUMPY = {"kind": "numpy"}
INT = {"kind": "int"}

FORGED: dict[str, tuple[bytes, type[Exception], str]] = {
    "member missing": (
        forged(lambda table: table.__delitem__("names")),
        FormatError,
        "cordwood.structure: expected an object of nodes, types, leaves, names, values",
    ),
    "member unknown": (forged(put("code", "x")), FormatError, "expected an object of nodes"),
    "member no list": (forged(put("names", {})), FormatError, "names: expected a list"),
    "structure no object": (own_key("cordwood.structure", "[]"), FormatError, "expected an object"),
    "structure no JSON": (own_key("cordwood.structure", "{"), FormatError, "structure is not JSON"),
    "structure nested": (
        own_key("cordwood.structure", '{"nodes":' + "[" * 100_000),
        FormatError,
        "cordwood.structure nests too deeply",
    ),
    "structure with a key twice": (
        own_key("cordwood.structure", '{"nodes":[],"nodes":[]}'),
        FormatError,
        "the key 'nodes' occurs twice",
    ),
    "nodes missing": (
        forged(put("nodes", [["dict", ["a", "b"]], 1])),
        FormatError,
        "ends with 1 nodes missing",
    ),
    "a bomb of leaves": (
        forged(put("nodes", [["list", 10**12], 10**12])),
        LimitError,
        "1000000000000 leaves or more; expected at most 2",
    ),
    "a bomb of types": (
        forged(put("leaves", [0, 10**15])),
        FormatError,
        "expected types for 2 leaves, found 1000000000000000",
    ),
    "a type that is not there": (
        forged(put("leaves", [0, 1, 5, 1])),
        FormatError,
        "no run can be [5, 1]",
    ),
    "a negative type": (forged(put("leaves", [-1, 2])), FormatError, "no run can be [-1, 2]"),
    "runs of nothing": (forged(put("leaves", [0, 0])), FormatError, "no run can be [0, 0]"),
    "runs of an odd length": (
        forged(put("leaves", [0])),
        FormatError,
        "expected pairs of integers",
    ),
    "true as a run": (forged(put("leaves", [0, True])), FormatError, "expected pairs of integers"),
    "an unknown kind": (
        forged(put("types", [{"kind": "pickle"}, INT])),
        FormatError,
        "types[0]: unknown kind of leaf 'pickle'",
    ),
    "an opaque leaf": (
        forged(put("types", [{"kind": "opaque"}, INT])),
        FormatError,
        "unknown kind of leaf 'opaque'",
    ),
    "a type that is no object": (
        forged(put("types", [1, INT])),
        FormatError,
        "types[0]: expected an object with a kind, found 1",
    ),
    "a type with more": (
        forged(put("types", [{"kind": "numpy", "import": "os"}, INT])),
        FormatError,
        "types[0]: expected an object with a kind",
    ),
    "an unknown dtype": (
        forged(put("types", [{"kind": "numpy", "dtype": "object"}, INT])),
        FormatError,
        "types[0]: unknown dtype 'object'",
    ),
    "a PRNG key without an implementation": (
        forged(put("types", [{"kind": "prng_key"}, INT])),
        FormatError,
        "types[0]: no leaf can be stored so",
    ),
    "a weak numpy array": (
        forged(put("types", [{"kind": "numpy", "weak_type": True}, INT])),
        FormatError,
        "no leaf can be stored so",
    ),
    "an int in a tensor": (
        forged(put("types", [NUMPY, {"kind": "int", "tensor": True}])),
        FormatError,
        "no leaf can be stored so",
    ),
    "a tensor for a value": (
        forged(put("leaves", [0, 2])),
        FormatError,
        "expected 1 tensors and 1 values, found 2 and 0",
    ),
    "a dtype the tensor cannot be": (
        forged(put("types", [{"kind": "numpy", "dtype": "int4"}, INT])),
        FormatError,
        "tensor 'a': F64[2] cannot hold a leaf of type numpy int4",
    ),
    "a scalar with a shape": (
        forged(put("types", [{"kind": "numpy_scalar"}, INT])),
        FormatError,
        "cannot hold a leaf of type numpy_scalar",
    ),
    "a str of floats": (
        forged(put("types", [{"kind": "str", "tensor": True}, INT])),
        FormatError,
        "cannot hold a leaf of type str",
    ),
    "a key of floats": (
        forged(put("types", [{"kind": "prng_key", "prng_impl": "rbg"}, INT])),
        FormatError,
        "cannot hold a leaf of type prng_key",
    ),
    "a tensor of another name": (
        forged(put("names", [0, "c"])),
        FormatError,
        "leaf 0 is the tensor 'c', which the file lacks or another leaf has taken",
    ),
    "two leaves of one tensor": (
        forged(put("names", [1, "a"]), tree={"a": np.ones(2), "b": np.ones(2)}),
        FormatError,
        "leaf 1 is the tensor 'a', which the file lacks or another leaf has taken",
    ),
    "a name for a leaf that is not there": (
        forged(put("names", [2, "a"])),
        FormatError,
        "names: expected leaves below 2, each once, found 2",
    ),
    "two names for a leaf": (
        forged(put("names", [0, "a", 0, "a"])),
        FormatError,
        "each once, found 0",
    ),
    "a name that is a number": (
        forged(put("names", [0, 1])),
        FormatError,
        "expected a name for leaf 0, found 1",
    ),
    "names of an odd length": (forged(put("names", [0])), FormatError, "pairs of leaf and name"),
    "a str for an int": (
        forged(put("values", ["x"])),
        FormatError,
        "values[0]: expected a value of kind int, found 'x'",
    ),
    "a float for an int": (forged(put("values", [1.5])), FormatError, "kind int, found 1.5"),
    "true for an int": (forged(put("values", [True])), FormatError, "kind int, found True"),
    "values left over": (
        forged(put("values", [1, 2])),
        FormatError,
        "expected 1 tensors and 2 values, found 1 and 1",
    ),
    "values missing": (forged(put("values", [])), LimitError, "2 leaves or more; expected at most"),
    "nested nodes": (
        forged(put("nodes", [["list", 1]] * 50_000)),
        LimitError,
        "nested deeper than 1000 levels (MAX_DEPTH)",
    ),
    "a duplicate dict key": (
        forged(put("nodes", [["dict", ["a", "a"]], 2])),
        FormatError,
        "the key 'a' occurs twice",
    ),
    "digests of another scheme": (
        own_key("cordwood.digests", "md5:1048576:AAAA"),
        FormatError,
        "expected xxh3-128:BYTES:BASE64, found md5",
    ),
    "digests that are not base64": (
        own_key("cordwood.digests", "xxh3-128:1048576:???"),
        FormatError,
        "cordwood.digests: expected xxh3-128:BYTES:BASE64",
    ),
    "digests of no blocks": (
        own_key("cordwood.digests", "xxh3-128:0:"),
        FormatError,
        "expected xxh3-128:BYTES:BASE64",
    ),
    "digests of huge blocks": (
        own_key("cordwood.digests", f"xxh3-128:{2**40}:AAAAAAAAAAAAAAAAAAAAAA=="),
        LimitError,
        "digest blocks of 1099511627776 bytes",
    ),
    "too few digests": (
        own_key("cordwood.digests", "xxh3-128:1048576:"),
        CorruptionError,
        "expected 1 block digests",
    ),
    "a version that is no number": (
        own_key("cordwood.version", "one"),
        CorruptionError,
        "cordwood.version is 'one'",
    ),
    "version 0": (own_key("cordwood.version", "0"), CorruptionError, "cordwood.version is '0'"),
    "a later version": (
        own_key("cordwood.version", "12"),
        UnsupportedFormatError,
        "cordwood.version is 12, a newer version",
    ),
    "a marker of no version": (
        own_key("cordwood.secret", ""),
        CorruptionError,
        "unknown cordwood.secret",
    ),
}


@pytest.mark.parametrize(("raw", "error", "message"), FORGED.values(), ids=FORGED)
def test_forged_structures(raw: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        scan(MemoryFile(raw, "forged.safetensors"))
    assert type(caught.value) is error
    assert str(caught.value).startswith("forged.safetensors: ")
    assert len(str(caught.value)) < 700


def test_the_forgery_itself_is_read() -> None:
    assert len(scan(MemoryFile(forged(nothing))).leaves) == 2


@pytest.mark.parametrize(
    "raw",
    [
        with_header('{"a":' * 100_000),
        one(shape=[1] * 100_000),
        compact({f"t{i}": 1 for i in range(5_000)}),
        forged(put("nodes", [["list", 10**12], 10**12])),
        forged(put("leaves", [0, 10**15])),
        forged(put("nodes", [["list", 1]] * 50_000)),
        struct.pack("<Q", 100_000_000) + b"{}",
    ],
    ids=range(7),
)
def test_memory_stays_small(raw: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            scan(MemoryFile(raw))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(raw) + (16 << 20)
