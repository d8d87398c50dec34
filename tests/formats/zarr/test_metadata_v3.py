"""The metadata of zarr version 3, as TensorStore and Orbax write it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tensorstore as ts

from cordwood.errors import FormatError, LimitError, UnsupportedFormatError
from cordwood.formats.zarr.array_metadata import ArrayMetadata, Shard
from cordwood.formats.zarr.metadata_v3 import parse_metadata3

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}


def sharded(*codecs: Any, shape: Any = (2, 4), **members: Any) -> dict[str, Any]:
    inner = {"chunk_shape": shape, "codecs": codecs, "index_codecs": [BYTES, CRC], **members}
    return {"name": "sharding_indexed", "configuration": inner}


def members(**changes: Any) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [8, 6],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [BYTES],
        "fill_value": 0.0,
        **changes,
    }


def parsed(**changes: Any) -> ArrayMetadata:
    return parse_metadata3(json.dumps(members(**changes)).encode())


def test_metadata_that_tensorstore_writes_are_parsed() -> None:
    codec = sharded(BYTES, ZSTD, shape=[2, 4])
    spec = {
        "driver": "zarr3",
        "kvstore": "memory://test_zarr_version3/",
        "metadata": {
            "shape": [8, 6],
            "data_type": "bfloat16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
            "codecs": [codec],
        },
    }
    store = ts.open(spec, create=True).result()
    assert store.kvstore is not None
    array = parse_metadata3(store.kvstore.read("zarr.json").result().value)
    assert (array.shape, array.chunks, array.dtype) == ((8, 6), (2, 4), "bfloat16")
    assert (array.compressor, array.separator, array.order) == ("zstd", "/", "C")
    assert array.shard == Shard((4, 4), index_first=False, index_checked=True)
    assert (array.key_prefix, array.zero_fill) == ("c", True)


def test_every_supported_variant_is_parsed() -> None:
    assert parsed().shard is None
    assert parsed(codecs=[{"name": "bytes", "configuration": {"endian": "big"}}]).big_endian
    one_byte = [{"name": "bytes"}]
    assert not parsed(codecs=one_byte, data_type="int8").big_endian
    first = sharded(BYTES, index_location="start", index_codecs=[BYTES])
    assert parsed(codecs=[first]).shard == Shard((4, 4), index_first=True, index_checked=False)
    assert parsed(codecs=[BYTES, {"name": "gzip"}]).compressor == "gzip"
    old = parsed(chunk_key_encoding={"name": "v2"})
    assert (old.key_prefix, old.separator) == ("", ".")
    dotted = {"name": "default", "configuration": {"separator": "."}}
    assert parsed(chunk_key_encoding=dotted).separator == "."
    assert not parsed(fill_value=1).zero_fill
    assert not parsed(fill_value="NaN").zero_fill
    assert parsed(fill_value=[0.0, 0.0], data_type="complex64").zero_fill


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "another version": ({"zarr_format": 2}, FormatError, "zarr_format 3, found"),
    "a group": ({"node_type": "group"}, FormatError, "node_type: expected 'array', found 'group'"),
    "a dtype": ({"data_type": "r16"}, FormatError, "data_type: 'r16' is unknown"),
    "a dtype that is a list": ({"data_type": []}, FormatError, r"data_type: \[\] is unknown"),
    "a platform's dtype": ({"data_type": "float128"}, FormatError, "'float128' is unknown"),
    "a shape": ({"shape": [-1, 2]}, FormatError, "shape: expected integers of 0 or more"),
    "many axes": ({"shape": [1] * 33}, LimitError, "33 axes"),
    "a large shape": ({"shape": [2**40, 2**40]}, LimitError, "shape: .* takes more than"),
    "axes": ({"shape": [8]}, FormatError, "shape has 1 axes, chunk_shape 2"),
    "no grid": ({"chunk_grid": None}, UnsupportedFormatError, "chunk_grid: expected 'regular'"),
    "another grid": (
        {"chunk_grid": {"name": "rectangular"}},
        UnsupportedFormatError,
        "chunk_grid: expected 'regular', found",
    ),
    "a grid of zeros": (
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 4]}}},
        FormatError,
        "chunk_shape: expected integers of 1 or more",
    ),
    "a grid of nothing": (
        {"chunk_grid": {"name": "regular", "configuration": 3}},
        FormatError,
        "chunk_grid: expected an object",
    ),
    "no codecs": ({"codecs": []}, UnsupportedFormatError, "codecs: .* found none at all"),
    "a codec": ({"codecs": [3]}, FormatError, "codecs: expected a list of named codecs"),
    "transposed": (
        {"codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, BYTES]},
        UnsupportedFormatError,
        "found transpose",
    ),
    "a checksum": ({"codecs": [BYTES, CRC]}, UnsupportedFormatError, "found crc32c"),
    "two compressors": ({"codecs": [BYTES, ZSTD, ZSTD]}, UnsupportedFormatError, "zstd, zstd"),
    "compressed shards": ({"codecs": [sharded(BYTES), ZSTD]}, UnsupportedFormatError, "found zstd"),
    "shards of shards": (
        {"codecs": [sharded(sharded(BYTES))]},
        UnsupportedFormatError,
        "found sharding_indexed",
    ),
    "chunks that do not fill a shard": (
        {"codecs": [sharded(BYTES, shape=[3, 4])]},
        FormatError,
        r"chunks of \[3, 4\] do not fill \[4, 4\]",
    ),
    "another number of axes": (
        {"codecs": [sharded(BYTES, shape=[2])]},
        FormatError,
        r"chunks of \[2\] do not fill",
    ),
    "a compressed index": (
        {"codecs": [sharded(BYTES, index_codecs=[BYTES, ZSTD])]},
        UnsupportedFormatError,
        "index_codecs: expected bytes and crc32c",
    ),
    "a big-endian index": (
        {"codecs": [sharded(BYTES, index_codecs=[{"name": "bytes"}])]},
        UnsupportedFormatError,
        "index_codecs: expected little-endian",
    ),
    "an index in the middle": (
        {"codecs": [sharded(BYTES, index_location="middle")]},
        FormatError,
        "index_location: expected start or end",
    ),
    "middle-endian": (
        {"codecs": [{"name": "bytes", "configuration": {"endian": "pdp"}}]},
        FormatError,
        "endian: expected little or big",
    ),
    "no keys": ({"chunk_key_encoding": None}, UnsupportedFormatError, "chunk_key_encoding: exp"),
    "a separator": (
        {"chunk_key_encoding": {"name": "default", "configuration": {"separator": ".."}}},
        FormatError,
        "separator: expected '/' or '.'",
    ),
}


@pytest.mark.parametrize(("change", "error", "message"), BAD.values(), ids=BAD.keys())
def test_unsupported_metadata_are_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        parsed(**change)


def test_invalid_json_is_refused() -> None:
    for data in (b"", b"\xff", b"[]", b"{}", b"null"):
        with pytest.raises(FormatError):
            parse_metadata3(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"storage_transformers": [{"name": "x"}]}, "storage_transformers: expected none, found"),
        ({"storage_transformers": {}}, "storage_transformers: expected none"),
        ({"order": "F"}, "order: a member that is not known here, and whose must_understand is"),
        ({"extra": {"name": "x"}}, "extra: a member that is not known here"),
        ({"extra": {"must_understand": True}}, "extra: a member that is not known here"),
        ({"extra": {"must_understand": 0}}, "extra: a member that is not known here"),
    ],
)
def test_what_must_be_understood(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=message):
        parsed(**changes)


def test_what_need_not_be_understood() -> None:
    plain = parsed()
    assert (
        parsed(storage_transformers=[], attributes={"a": 1}, dimension_names=["x", None]) == plain
    )
    assert parsed(extra={"must_understand": False, "name": "x"}) == plain
