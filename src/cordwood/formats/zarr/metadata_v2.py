"""The `.zarray` of an array of zarr version 2: written, and read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cordwood.encoding.blosc_planes import BLOCK_BYTES
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError
from cordwood.formats.zarr.array_metadata import (
    ArrayMetadata,
    UnreadableElementsError,
    is_zero,
    parse_extents,
    parse_members,
    require_addressable,
)
from cordwood.formats.zarr.zarr_dtypes import parse_zarr_dtype, zarr_dtype

METADATA_NAME = ".zarray"
MARK = "cordwood"  # a member of every .zarray that cordwood's index covers
# What `compression=` means. blosc: the quickest that still helps. archive: the smallest, see
# encoding/blosc_planes.py.
COMPRESSORS: Mapping[str, Mapping[str, str | int]] = {
    "zstd": {"id": "zstd", "level": 1},
    "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2, "blocksize": 0},
    "archive": {
        "id": "blosc",
        "cname": "zstd",
        "clevel": 1,
        "shuffle": 1,
        "blocksize": BLOCK_BYTES,
    },
}
_COMPRESSOR_IDS = ("blosc", "bz2", "gzip", "lz4", "zlib", "zstd")


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
    """Read and check a `.zarray`.

    Raises, without naming the file:
        FormatError: it is none.
        UnreadableElementsError: its elements are of a kind that is not read here.
    """
    members = parse_members(data, METADATA_NAME, 2)
    shape = parse_extents(members, "shape", least=0)
    chunks = parse_extents(members, "chunks", least=1)
    if len(shape) != len(chunks):
        raise FormatError(f"shape has {len(shape)} axes, chunks {len(chunks)}")
    dtype, big_endian = parse_zarr_dtype(members.get("dtype"))
    require_addressable(dtype, shape=shape, chunks=chunks)
    order = members.get("order")
    separator = members.get("dimension_separator", ".")
    if order not in ("C", "F") or separator not in (".", "/"):
        raise FormatError(
            f"expected order C or F and dimension_separator '.' or '/', found {order!r:.40} and "
            f"{separator!r:.40}"
        )
    if members.get("filters") not in (None, []):
        raise UnreadableElementsError(f"filters: expected none, found {members['filters']!r:.80}")
    compressor = members.get("compressor")
    if compressor is not None:
        if type(compressor) is not dict or compressor.get("id") not in _COMPRESSOR_IDS:
            raise UnreadableElementsError(
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
        is_zero(members.get("fill_value")),  # if it is null, TensorStore stores every chunk
        fill_value=members.get("fill_value"),
    )
