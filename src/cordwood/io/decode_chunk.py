"""Decoding of one chunk of an array: decompression, byte order, order of elements."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.errors import CorruptionError, UnsupportedFormatError
from cordwood.io.zstd_block_header import BLOCK_HEADER_BYTES, parse_block_header
from cordwood.plan.load_plan import EncodedChunk

_BLOSC_HEADER_BYTES = 16


def decode_chunk(
    chunk: EncodedChunk, data: memoryview, scratch: Callable[[int], memoryview], *, name: str
) -> memoryview:
    """Return the elements of a chunk, little-endian and in C order.

    Nothing is decompressed beyond the size that the chunk's shape gives. Other threads can run
    meanwhile (the GIL is released).

    Args:
        chunk: the description of the chunk.
        data: its stored bytes, already checked against their digests if there are any.
        scratch: returns memory of a given size, which the result may use.
        name: the name of the file, for errors.

    Raises:
        CorruptionError: the chunk cannot be decoded, or its size is not that of its shape.
        UnsupportedFormatError: its compressor is unknown.
    """
    spread, codec = chunk.scatter, chunk.codec
    size = spread.item_bytes
    for extent in spread.shape:
        size *= extent
    size += codec.skip_bytes
    where = f"{name}: the chunk at byte {chunk.offset}"
    try:
        decoded = _decompress(codec.compressor, data, size, where, scratch)
    except (zlib.error, OSError, ValueError, EOFError) as e:
        if isinstance(e, CorruptionError | UnsupportedFormatError):
            raise
        raise CorruptionError(f"{where} is damaged: {e}") from e
    if len(decoded) != size:
        raise _wrong_size(where, size, f"{len(decoded)}")
    if codec.crc32 is not None and zlib.crc32(decoded) != codec.crc32:
        raise CorruptionError(
            f"{where} does not match its CRC-32: it is damaged; load another copy"
        )
    if codec.skip_bytes:
        decoded = memoryview(decoded)[codec.skip_bytes :]
    if codec.order == "C" and not codec.swapped:
        return memoryview(decoded).cast("B")
    elements: Any = np.frombuffer(decoded, dtypes.to_numpy(chunk.dtype))
    if codec.swapped:
        elements = elements.byteswap()
    if codec.order == "F":
        elements = np.ascontiguousarray(elements.reshape(spread.shape[::-1]).T)
    view: memoryview = elements.reshape(-1).view(np.uint8).data
    return view


def _wrong_size(where: str, expected: int, size: str) -> CorruptionError:
    return CorruptionError(
        f"{where}: expected {expected} bytes once decoded, found {size}: it is damaged, or "
        "belongs to another array"
    )


def _decompress(
    compressor: str | None,
    data: memoryview,
    size: int,
    where: str,
    scratch: Callable[[int], memoryview],
) -> Any:
    """Return the decompressed bytes of `data`, but at most one byte more than `size`."""
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
        content_size = zstandard.get_frame_parameters(data).content_size
        if content_size not in (size, zstandard.CONTENTSIZE_UNKNOWN):
            raise _wrong_size(where, size, str(content_size))
        end = _zstd_frame_end(data)
        if end != len(data):
            ends = "is followed by more" if 0 <= end < len(data) else "stops too early"
            raise CorruptionError(f"{where} is damaged: its frame {ends}")
        target = scratch(size)
        at = 0
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            while at < size and (count := reader.readinto(target[at:])):
                at += count
            if reader.read(1):  # this also verifies the checksum of the frame
                raise _wrong_size(where, size, "more")
    except zstandard.ZstdError as e:
        raise CorruptionError(f"{where} is damaged: {e}") from e
    return target[:at]


def _zstd_frame_end(data: memoryview) -> int:
    """Return the end of the first zstd frame, from the headers of its blocks.

    Returns -1 if the frame ends beyond the data.
    """
    import zstandard

    at = zstandard.frame_header_size(data)
    is_last = False
    while not is_last and at + BLOCK_HEADER_BYTES <= len(data):
        size, is_last = parse_block_header(data[at : at + BLOCK_HEADER_BYTES])
        at += size
    return at + 4 * zstandard.get_frame_parameters(data).has_checksum if is_last else -1


def _stream(decoder: Any, data: memoryview, size: int, where: str) -> bytes:
    decoded: bytes = decoder.decompress(data, size + 1)
    if len(decoded) == size and not decoder.eof:
        decoded += decoder.decompress(getattr(decoder, "unconsumed_tail", b""), 1)
    if len(decoded) > size:
        raise _wrong_size(where, size, "more")
    if not decoder.eof or decoder.unused_data:
        raise CorruptionError(
            f"{where} is damaged: its stream {'goes on' if decoder.eof else 'stops'} too early"
        )
    return decoded


def _blosc(data: memoryview, size: int, where: str) -> Any:
    import tensorstore as ts

    content_size = int.from_bytes(data[4:8], "little")
    if len(data) < _BLOSC_HEADER_BYTES or content_size != size:
        raise _wrong_size(where, size, str(content_size))
    context = ts.Context()  # its memory:// store is shared with nobody
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
