"""The `.zarray` file of an array: zarr version 2's metadata, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from cordwood import dtypes
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, LimitError
from cordwood.formats.zarr.dtype_names import parse_zarr_dtype, zarr_dtype
from cordwood.index import MAX_ARRAY_BYTES

METADATA_NAME = ".zarray"
MARK = "cordwood"  # a member of every .zarray that cordwood's index covers
MAX_METADATA_BYTES = 1 << 20
MAX_DIMS = 32  # TensorStore's limit

# What `compression=` means. blosc: the quickest that still helps.
COMPRESSORS: Mapping[str, Mapping[str, Any]] = {
    "zstd": {"id": "zstd", "level": 1},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2, "blocksize": 0},
}
_COMPRESSOR_IDS = ("blosc", "bz2", "gzip", "zlib", "zstd")


class ArrayMetadata(NamedTuple):
    """The content of a `.zarray`."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str  # a name of cordwood.dtypes
    big_endian: bool
    order: Literal["C", "F"]
    compressor: str | None  # its id
    separator: str
    marked: bool  # written by cordwood, as a part of what its index covers


def encode_metadata(
    shape: Sequence[int],
    chunks: Sequence[int],
    dtype: str,
    compression: str | None,
    *,
    marked: bool,
) -> bytes:
    """Return the bytes of a `.zarray`: raw, or compressed with one of COMPRESSORS."""
    members = {
        "chunks": list(chunks),
        "compressor": None if compression is None else dict(COMPRESSORS[compression]),
        "dimension_separator": ".",
        "dtype": zarr_dtype(dtype),
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": list(shape),
        "zarr_format": 2,
    }
    if marked:
        members[MARK] = 1
    return json.dumps(members, separators=(",", ":"), sort_keys=True).encode()


def marked_metadata(data: bytes) -> bytes:
    """Return a `.zarray` of another writer with cordwood's mark."""
    members = parse_json(data.decode(), METADATA_NAME)
    return json.dumps({**members, MARK: 1}, separators=(",", ":"), sort_keys=True).encode()


def parse_metadata(data: bytes) -> ArrayMetadata:
    """Read and check a `.zarray`. Raises FormatError, without naming the file."""
    try:
        members = parse_json(data.decode(), METADATA_NAME)
    except UnicodeDecodeError as e:
        raise FormatError(f"{METADATA_NAME} is not UTF-8 at byte {e.start}") from e
    if type(members) is not dict or members.get("zarr_format") != 2:
        raise FormatError(f"expected a JSON object with zarr_format 2, found {members!r:.80}")
    shape = parse_extents(members, "shape", least=0)
    chunks = parse_extents(members, "chunks", least=1)
    if len(shape) != len(chunks):
        raise FormatError(f"shape has {len(shape)} axes, chunks {len(chunks)}")
    dtype, big_endian = parse_zarr_dtype(members.get("dtype"))
    for name, extents in (("shape", shape), ("chunks", chunks)):
        if math.prod(filter(None, extents)) * dtypes.itemsize(dtype) > MAX_ARRAY_BYTES:
            raise LimitError(f"{name}: {list(extents)} takes more than {MAX_ARRAY_BYTES} bytes")
    order = members.get("order")
    separator = members.get("dimension_separator", ".")
    if order not in ("C", "F") or separator not in (".", "/"):
        raise FormatError(
            f"expected order C or F and dimension_separator '.' or '/', found {order!r:.40} and "
            f"{separator!r:.40}"
        )
    if members.get("filters") not in (None, []):
        raise FormatError(f"filters: expected none, found {members['filters']!r:.80}")
    compressor = members.get("compressor")
    if compressor is not None:
        if type(compressor) is not dict or compressor.get("id") not in _COMPRESSOR_IDS:
            raise FormatError(
                f"compressor: expected null or one of {', '.join(_COMPRESSOR_IDS)}, found "
                f"{compressor!r:.80}"
            )
        compressor = compressor["id"]
    return ArrayMetadata(
        shape,
        chunks,
        dtype,
        big_endian,
        "F" if order == "F" and len(shape) > 1 else "C",
        compressor,
        separator,
        MARK in members,
    )


def parse_extents(members: Mapping[str, Any], name: str, *, least: int) -> tuple[int, ...]:
    """Return a member of array metadata that is a list of integers, each at least `least`."""
    extents = members.get(name)
    if type(extents) is not list or not all(type(n) is int and n >= least for n in extents):
        raise FormatError(f"{name}: expected integers of {least} or more, found {extents!r:.80}")
    if len(extents) > MAX_DIMS:
        raise LimitError(f"{name}: {len(extents)} axes; expected at most {MAX_DIMS} (MAX_DIMS)")
    return tuple(extents)


def codec_of(metadata: ArrayMetadata) -> str:
    """Return the codec of the chunks, as JSON."""
    codec = {
        "compressor": metadata.compressor,
        "order": metadata.order,
        "swapped": metadata.big_endian,
    }
    return json.dumps(codec, separators=(",", ":"))
