"""Decode one chunk of an array: decompress it, and put its elements in order."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.errors import CorruptionError, UnsupportedFormatError
from cordwood.io.zstd_blocks import BLOCK_HEADER_BYTES, parse_block_header
from cordwood.plan.scatter import EncodedChunk

_BLOSC_HEADER_BYTES = 16


def decode_chunk(
    chunk: EncodedChunk, data: memoryview, scratch: Callable[[int], memoryview], *, name: str
) -> memoryview:
    """The elements of a chunk, little-endian in C order, from its bytes as they are stored.

    Nothing is decompressed beyond the size that the chunk's shape gives. Other threads run
    meanwhile.

    Args:
        chunk: what it is.
        data: the bytes, checked against their digests where there are any.
        scratch: gives memory of some size, which the elements may lie in.
        name: the file's, for errors.

    Raises:
        CorruptionError: it cannot be decoded, or to another size than its shape gives.
        UnsupportedFormatError: its compressor is unknown.
    """
    spread, codec = chunk.scatter, chunk.codec
    size = spread.item_bytes
    for extent in spread.shape:
        size *= extent
    size += codec.skip_bytes
    where = f"{name}: the chunk at byte {chunk.offset}"
    try:
        found = _decompress(codec.compressor, data, size, where, scratch)
    except (zlib.error, OSError, ValueError, EOFError) as e:
        if isinstance(e, CorruptionError | UnsupportedFormatError):
            raise
        raise CorruptionError(f"{where} is damaged: {e}") from e
    if len(found) != size:
        raise _wrong_size(where, size, f"{len(found)}")
    if codec.crc32 is not None and zlib.crc32(found) != codec.crc32:
        raise CorruptionError(
            f"{where} does not match its CRC-32: it is damaged; load another copy"
        )
    if codec.skip_bytes:
        found = memoryview(found)[codec.skip_bytes :]
    if codec.order == "C" and not codec.swapped:
        return memoryview(found).cast("B")
    elements: Any = np.frombuffer(found, dtypes.to_numpy(chunk.dtype))
    if codec.swapped:
        elements = elements.byteswap()
    if codec.order == "F":
        elements = np.ascontiguousarray(elements.reshape(spread.shape[::-1]).T)
    view: memoryview = elements.reshape(-1).view(np.uint8).data
    return view


def _wrong_size(where: str, expected: int, found: str) -> CorruptionError:
    return CorruptionError(
        f"{where}: expected {expected} bytes once decoded, found {found}: it is damaged, or "
        "belongs to another array"
    )


def _decompress(
    compressor: str | None,
    data: memoryview,
    size: int,
    where: str,
    scratch: Callable[[int], memoryview],
) -> Any:
    """What is compressed in `data`; at most a byte more than `size`, however much there is."""
    if compressor is None:
        return data
    if compressor == "zstd":
        return _zstd(data, size, where, scratch)
    if compressor in ("gzip", "zlib"):
        return _stream(zlib.decompressobj(32 + zlib.MAX_WBITS), data, size, where)
    if compressor == "deflate":
        return _stream(zlib.decompressobj(-zlib.MAX_WBITS), data, size, where)
    if compressor == "bz2":
        return _stream(bz2.BZ2Decompressor(), data, size, where)
    if compressor == "blosc":
        return _blosc(data, size, where)
    raise UnsupportedFormatError(
        f"{where} is compressed with {compressor!r}; expected zstd, gzip, zlib, bz2 or blosc"
    )


def _zstd(
    data: memoryview, size: int, where: str, scratch: Callable[[int], memoryview]
) -> memoryview:
    import zstandard

    try:
        told = zstandard.get_frame_parameters(data).content_size
        if told not in (size, zstandard.CONTENTSIZE_UNKNOWN):
            raise _wrong_size(where, size, str(told))
        end = _zstd_frame_end(data)
        if end != len(data):
            ends = "is followed by more" if 0 <= end < len(data) else "stops too early"
            raise CorruptionError(f"{where} is damaged: its frame {ends}")
        found = scratch(size)
        at = 0
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            while at < size and (count := reader.readinto(found[at:])):
                at += count
            if reader.read(1):  # which also checks the checksum
                raise _wrong_size(where, size, "more")
    except zstandard.ZstdError as e:
        raise CorruptionError(f"{where} is damaged: {e}") from e
    return found[:at]


def _zstd_frame_end(data: memoryview) -> int:
    """Where the first frame of zstd ends, by the heads of its blocks; -1: after the data."""
    import zstandard

    at = zstandard.frame_header_size(data)
    is_last = False
    while not is_last and at + BLOCK_HEADER_BYTES <= len(data):
        size, is_last = parse_block_header(data[at : at + BLOCK_HEADER_BYTES])
        at += size
    return at + 4 * zstandard.get_frame_parameters(data).has_checksum if is_last else -1


def _stream(decoder: Any, data: memoryview, size: int, where: str) -> bytes:
    found: bytes = decoder.decompress(data, size + 1)
    if len(found) == size and not decoder.eof:
        found += decoder.decompress(getattr(decoder, "unconsumed_tail", b""), 1)
    if len(found) > size:
        raise _wrong_size(where, size, "more")
    if not decoder.eof or decoder.unused_data:
        raise CorruptionError(
            f"{where} is damaged: its stream {'goes on' if decoder.eof else 'stops'} too early"
        )
    return found


def _blosc(data: memoryview, size: int, where: str) -> Any:
    import tensorstore as ts

    told = int.from_bytes(data[4:8], "little")
    if len(data) < _BLOSC_HEADER_BYTES or told != size:
        raise _wrong_size(where, size, str(told))
    context = ts.Context()  # of its own, and with it a memory of its own
    store = ts.KvStore.open({"driver": "memory"}, context=context).result()
    store.write("0", bytes(data)).result()
    metadata = {
        "zarr_format": 2,
        "shape": [size],
        "chunks": [size],
        "dtype": "|u1",
        "order": "C",
        "fill_value": None,
        "filters": None,
        "compressor": {"id": "blosc"},
    }
    spec = {"driver": "zarr", "kvstore": {"driver": "memory"}, "metadata": metadata}
    array = ts.open({**spec, "open": True, "create": True}, context=context).result()
    return array.read().result().data
