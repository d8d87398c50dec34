"""Compression of a chunk of an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Encoder: TypeAlias = Callable[[np.ndarray[Any, Any]], bytes]

_ZSTD_LEVEL = 1
# One unsigned type of each size: blosc shuffles the bytes of items of that size.
_CARRIERS = {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "<c16"}


def chunk_encoder(compression: str) -> Encoder:
    """Return a function that compresses the elements of C-contiguous arrays.

    It releases the GIL. "zstd" writes a content checksum, which every zstd reader verifies.
    "blosc" is lz4 after a bit shuffle.
    """
    return {"zstd": _zstd, "blosc": _blosc}[compression]


def _zstd(array: np.ndarray[Any, Any]) -> bytes:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
    data: bytes = compressor.compress(_bytes_of(array).data)
    return data


def _blosc(array: np.ndarray[Any, Any]) -> bytes:
    """Have TensorStore write a zarr array of one chunk to a memory store."""
    import tensorstore

    code = _CARRIERS.get(array.itemsize, "|u1")
    carried = _bytes_of(array).view(code)
    context = tensorstore.Context()
    metadata = {
        "zarr_format": 2,
        "shape": [carried.size],
        "chunks": [carried.size],
        "dtype": code,
        "order": "C",
        "fill_value": None,
        "filters": None,
        "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2, "blocksize": 0},
    }
    kvstore = {"driver": "memory"}
    spec = {"driver": "zarr", "kvstore": kvstore, "metadata": metadata, "create": True}
    tensorstore.open(spec, context=context).result().write(carried).result()
    store = tensorstore.KvStore.open(kvstore, context=context).result()
    data: bytes = store.read("0").result().value
    return data


def _bytes_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.reshape(-1).view(np.uint8)
