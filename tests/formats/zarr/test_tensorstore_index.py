"""The index file and the `.zarray`: what is written, what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tensorstore

from cordwood import dtypes
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    FormatError,
    LimitError,
    PrefixError,
    UnsupportedFormatError,
)
from cordwood.formats.zarr.array_metadata import codec_of
from cordwood.formats.zarr.metadata_v2 import encode_metadata, parse_metadata
from cordwood.formats.zarr.tensorstore_index import (
    Entry,
    IndexFile,
    drop_item,
    encode_index,
    entries_of,
    parse_index,
    prefixes_of,
    put_item,
    select_item,
)
from cordwood.formats.zarr.zarr_dtypes import parse_zarr_dtype, stored_as, zarr_dtype
from cordwood.index import Codec

ENTRY = Entry("m/w", (2, 3), "float32")
OTHER = Entry("w", (), "int32")
ITEM = {"structure": "...", "digests": "..."}


def index_of(**members: Any) -> IndexFile:
    return parse_index(json.dumps({"format": "tensorstore", **members}).encode())


def test_what_is_put_in_comes_back() -> None:
    index = put_item(put_item(None, "m", [ENTRY], ITEM), "", [OTHER], ITEM)
    data = encode_index(index)
    again = parse_index(data)
    assert again == index
    assert prefixes_of(again) == ["", "m"]
    assert entries_of(again, "m") == [ENTRY]
    assert entries_of(again, "") == [OTHER]
    assert json.loads(data)["prefixes"]["m"] == [
        {"path": "m/w", "shape": [2, 3], "dtype": "float32"}
    ]
    assert encode_index(again) == data


def test_other_items_and_unknown_members_stay() -> None:
    theirs = index_of(
        version="0.0.101", note={"x": [1.5]}, prefixes={"t": [{"path": "t/w", "more": 1}]}
    )
    index = parse_index(encode_index(put_item(theirs, "m", [ENTRY], ITEM)))
    assert index.members["note"] == {"x": [1.5]}
    assert index.members["version"] == "0.0.101"
    assert index.members["prefixes"]["t"] == [{"path": "t/w", "more": 1}]
    assert set(index.items) == {"m"}


def test_eformer_may_add_an_item_and_write_the_file_again() -> None:
    members = json.loads(encode_index(put_item(None, "m", [ENTRY], ITEM)))
    members["prefixes"]["opt"] = [{"path": "opt/w", "shape": [], "dtype": "int32"}]
    index = parse_index(json.dumps(members, indent=2).encode())
    assert set(index.items) == {"m"}
    assert prefixes_of(index) == ["m", "opt"]


def test_an_item_is_replaced_or_dropped() -> None:
    index = put_item(None, "m", [ENTRY], ITEM)
    replaced = put_item(index, "m", [OTHER], None)
    assert entries_of(replaced, "m") == [OTHER]
    assert not replaced.items
    dropped = drop_item(index, "m")
    assert entries_of(dropped, "m") == [ENTRY]
    assert not dropped.items
    assert b"cordwood" not in encode_index(dropped)


def test_the_first_layout_has_one_item() -> None:
    index = index_of(arrays=[{"path": "w"}])
    assert select_item(index, None) == select_item(index, "whatever") == ""
    assert entries_of(index, "") == [Entry("w", None, None)]
    both = put_item(index, "m", [ENTRY], ITEM)
    assert prefixes_of(both) == ["", "m"]


def test_the_item_is_chosen_by_prefix() -> None:
    index = index_of(prefixes={"a": [], "b": []})
    assert select_item(index, "a") == "a"
    with pytest.raises(PrefixError, match=r"^Prefix 'zz' not found. Available: \['a', 'b'\]"):
        select_item(index, "zz")
    named = index_of(prefixes={"ema": [], "params": []})
    with pytest.raises(PrefixError, match=r"'parms' not found; did you mean prefix='params'\? Ava"):
        select_item(named, "parms")
    for none in (None, ""):
        with pytest.raises(
            PrefixError, match=r"No prefix specified. Available prefixes: \['a', 'b'\]"
        ):
            select_item(index, none)
    assert select_item(index_of(prefixes={"a": []}, arrays=[]), None) == ""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not UTF-8 at byte 0"),
        (b"[]", "expected a JSON object"),
        (b"{}", "Unsupported index format: None"),
        (b'{"format": "x"}', "Unsupported index format: x"),
        (b'{"format": "tensorstore", "format": "x"}', "'format' occurs twice"),
        (b'{"format": "tensorstore", "prefixes": []}', "expected prefixes to be an object"),
        (b'{"format": "tensorstore", "arrays": {}}', "arrays a list"),
        (b'{"format": "tensorstore", "prefixes": {"a": 1}}', "expected a list of arrays"),
        (b'{"format": "tensorstore", "prefixes": {"": []}}', "expected a list of arrays"),
        (b"[" * 100_000, "nests too deeply"),
    ],
)
def test_a_file_that_is_no_index(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_index(data)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "expected an object with a path"),
        ({}, "expected an object with a path"),
        ({"path": 1}, "expected an object with a path"),
        ({"path": ""}, "leaves the checkpoint"),
        ({"path": ".."}, "leaves the checkpoint"),
        ({"path": "../x"}, "leaves the checkpoint"),
        ({"path": "a/../../x"}, "leaves the checkpoint"),
        ({"path": "/etc"}, "leaves the checkpoint"),
        ({"path": "a//b"}, "leaves the checkpoint"),
        ({"path": "a/."}, "leaves the checkpoint"),
        ({"path": "a\0"}, "null character"),
        ({"path": "\ud800"}, "lone surrogate"),
        ({"path": "a", "shape": 3}, "shape: expected a list of integers"),
        ({"path": "a", "shape": [-1]}, "shape: expected a list of integers"),
        ({"path": "a", "shape": [1.0]}, "shape: expected a list of integers"),
        ({"path": "a", "dtype": 3}, "dtype: expected a name"),
    ],
)
def test_entries_that_are_none(entry: Any, message: str) -> None:
    with pytest.raises(FormatError, match=rf"arrays\[1\]: .*{message}"):
        entries_of(index_of(arrays=[{"path": "ok"}, entry]), "")


def test_a_path_listed_twice() -> None:
    with pytest.raises(FormatError, match=r"prefixes\['p'\]\[1\]: 'a/b' is listed twice: two"):
        entries_of(index_of(prefixes={"p": [{"path": "a/b"}, {"path": "a/b"}]}), "p")


def test_every_flipped_bit_of_what_is_covered_is_noticed() -> None:
    index = put_item(put_item(None, "m", [ENTRY], ITEM), "", [OTHER], ITEM)
    data = encode_index(index)
    unnoticed = set()
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << (i % 8)
        try:
            result = parse_index(bytes(flipped))
        except CordwoodError:
            continue
        if (result.items, entries_of(result, "m"), entries_of(result, "")) != (
            index.items,
            [ENTRY],
            [OTHER],
        ):
            unnoticed.add(data[i // 8 - 12 : i // 8 + 12])
    # Renamed, cordwood's part is no part of cordwood's: then every .zarray says what is amiss.
    assert all(b"cordwood" in around for around in unnoticed)


@pytest.mark.parametrize("member", ["version", "digest", "items"])
def test_members_of_cordwoods_part_are_not_missing(member: str) -> None:
    members = json.loads(encode_index(put_item(None, "m", [ENTRY], ITEM)))
    del members["cordwood"][member]
    with pytest.raises(CorruptionError, match="cordwood: expected"):
        parse_index(json.dumps(members).encode())


def test_a_newer_version_is_refused() -> None:
    members = json.loads(encode_index(put_item(None, "m", [ENTRY], ITEM)))
    members["cordwood"]["version"] = 2
    with pytest.raises(UnsupportedFormatError, match="is 2, newer than this cordwood reads"):
        parse_index(json.dumps(members).encode())


def test_what_eformer_saved_over_it_is_not_taken_for_cordwoods() -> None:
    members = json.loads(encode_index(put_item(None, "m", [ENTRY], ITEM)))
    members["prefixes"]["m"][0]["shape"] = [3, 2]
    with pytest.raises(CorruptionError, match=r"one of the items \['m'\] again, save that with"):
        parse_index(json.dumps(members).encode())


@pytest.mark.parametrize("dtype", sorted(dtypes.DTYPES))
def test_tensorstore_takes_every_dtype_as_it_lies(dtype: str) -> None:
    stored = stored_as(dtype)
    code = zarr_dtype(stored.dtype)
    assert parse_zarr_dtype(code) == (stored.dtype, False)
    itemsize = dtypes.itemsize(stored.dtype) * int(np.prod(stored.extra))
    assert itemsize == dtypes.itemsize(dtype)
    shape = (2, *stored.extra)
    metadata = encode_metadata(shape, (1, *stored.extra), stored.dtype, None, marked=True)
    context = tensorstore.Context()
    memory = tensorstore.KvStore.open("memory://", context=context).result()
    memory[".zarray"] = metadata
    spec = {"driver": "zarr", "kvstore": "memory://"}
    store = tensorstore.open(spec, open=True, context=context).result()
    assert store.dtype.name == stored.dtype
    assert store.shape == (2, *stored.extra)


@pytest.mark.parametrize("compression", [None, "zstd", "blosc", "archive"])
def test_metadata_comes_back(compression: str | None) -> None:
    data = encode_metadata((4, 3), (2, 3), "bfloat16", compression, marked=False)
    metadata = parse_metadata(data)
    codec = "blosc" if compression == "archive" else compression  # of which it is a setting
    assert metadata[:6] == ((4, 3), (2, 3), "bfloat16", False, "C", codec)
    assert not metadata.marked
    assert parse_metadata(encode_metadata((), (), "bool", None, marked=True)).marked
    assert codec_of(metadata) == Codec(codec)


def test_what_other_writers_may_say() -> None:
    members = json.loads(encode_metadata((4, 3), (2, 3), "float32", None, marked=False))
    members |= {"dtype": ">f4", "order": "F", "dimension_separator": "/", "fill_value": 0.0}
    members |= {"compressor": {"id": "gzip", "level": 5}, "filters": []}
    result = parse_metadata(json.dumps(members).encode())
    assert result[2:7] == ("float32", True, "F", "gzip", "/")
    del members["dimension_separator"]
    members |= {"shape": [4], "chunks": [2], "dtype": "|u1"}
    assert parse_metadata(json.dumps(members).encode())[2:7] == ("uint8", False, "C", "gzip", ".")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zarr_format": 3}, "zarr_format 2"),
        ({"shape": None}, "shape: expected integers"),
        ({"shape": [-1, 3]}, "shape: expected integers of 0 or more"),
        ({"shape": [True, 3]}, "shape: expected integers"),
        ({"shape": [1.0, 3]}, "shape: expected integers"),
        ({"chunks": [0, 3]}, "chunks: expected integers of 1 or more"),
        ({"chunks": [2]}, "shape has 2 axes, chunks 1"),
        ({"shape": [2**62, 3]}, "takes more than"),
        ({"shape": [0, 2**62]}, "takes more than"),
        ({"chunks": [2**62, 2**62]}, "takes more than"),
        ({"shape": [1] * 33, "chunks": [1] * 33}, "33 axes; expected at most 32"),
        ({"dtype": "<f3"}, "dtype: '<f3' is unknown"),
        ({"dtype": "|f4"}, "is unknown"),
        ({"dtype": "|O"}, "is unknown"),
        ({"dtype": [["a", "<f4"]]}, "is unknown"),
        ({"order": "K"}, "expected order C or F"),
        ({"dimension_separator": "-"}, "dimension_separator"),
        ({"filters": [{"id": "delta"}]}, "filters: expected none"),
        ({"compressor": {"id": "pickle"}}, "compressor: expected null or one of"),
        ({"compressor": "zstd"}, "compressor: expected null or one of"),
    ],
)
def test_metadata_that_is_none(change: dict[str, Any], message: str) -> None:
    members = json.loads(encode_metadata((4, 3), (2, 3), "float32", None, marked=False))
    with pytest.raises(FormatError, match=message):
        parse_metadata(json.dumps(members | change).encode())


def test_limits_are_limit_errors() -> None:
    members = json.loads(encode_metadata((4, 3), (2, 3), "float32", None, marked=False))
    with pytest.raises(LimitError):
        parse_metadata(json.dumps(members | {"shape": [2**62, 3]}).encode())
