"""Codecs of the chunks of arrays: decompression, byte order, order of elements; and compression."""

from __future__ import annotations

import bz2
import math
import threading
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from cordwood import dtypes
from cordwood.encoding.blosc_planes import BLOCK_BYTES, compress_planes
from cordwood.errors import CorruptionError, UnsupportedFormatError
from cordwood.io.memory.buffers import ScratchBuffer
from cordwood.plan.load_plan import EncodedChunk
from cordwood.threads.run_in_worker import run_in_worker

STREAMS: Mapping[str, Callable[[], Any]] = {
    "gzip": partial(zlib.decompressobj, 32 + zlib.MAX_WBITS),
    "zlib": partial(zlib.decompressobj, 32 + zlib.MAX_WBITS),
    "deflate": partial(zlib.decompressobj, -zlib.MAX_WBITS),
    "bz2": bz2.BZ2Decompressor,
}


def decode_chunk(
    chunk: EncodedChunk, data: memoryview, scratch: ScratchBuffer, *, name: str
) -> memoryview:
    """Return the elements of a chunk, little-endian and in C order.

    Nothing is decompressed beyond the size that the chunk's shape gives. Other threads can run
    meanwhile (the GIL is released).

    Args:
        chunk: the description of the chunk.
        data: its stored bytes, already checked against their digests if there are any.
        scratch: memory that the result may use.
        name: the name of the file, for errors.

    Raises:
        CorruptionError: the chunk cannot be decoded, or its size is not that of its shape.
        UnsupportedFormatError: its compressor is unknown.
    """
    spread, codec = chunk.scatter, chunk.codec
    size = math.prod(spread.shape) * spread.item_bytes + codec.skip_bytes
    where = f"{name}: the chunk at byte {chunk.offset}"
    try:
        decoded = decompress_chunk(codec.compressor, data, size, where, scratch)
    except (zlib.error, OSError, ValueError, EOFError) as e:
        if isinstance(e, CorruptionError | UnsupportedFormatError):
            raise
        raise CorruptionError(f"{where} is damaged: {e}") from e
    if len(decoded) != size:
        raise wrong_chunk_size(where, size, f"{len(decoded)}")
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


def wrong_chunk_size(where: str, expected: int, size: str) -> CorruptionError:
    """Return the error of a chunk that has another size, once decoded, than its shape gives."""
    return CorruptionError(
        f"{where}: expected {expected} bytes once decoded, found {size}: it is damaged, or "
        "belongs to another array"
    )


def decompress_chunk(
    compressor: str | None,
    data: memoryview,
    size: int,
    where: str,
    scratch: ScratchBuffer,
) -> Any:
    """Return the decompressed bytes of `data`, but at most one byte more than `size`."""
    if compressor is None:
        return data
    if compressor == "zstd":
        return _decompress_zstd(data, size, where, scratch)
    if compressor in STREAMS:
        return _stream(STREAMS[compressor](), data, size, where)
    if compressor == "blosc":
        return _decompress_blosc(data, size, where, scratch)
    if compressor == "lz4":
        return _decompress_lz4(data, size, where, scratch)
    raise UnsupportedFormatError(
        f"{where} is compressed with {compressor!r}; expected zstd, gzip, zlib, bz2, blosc or lz4"
    )


def _decompress_zstd(data: memoryview, size: int, where: str, scratch: ScratchBuffer) -> memoryview:
    import zstandard

    try:
        content_size = zstandard.get_frame_parameters(data).content_size
        if content_size not in (size, zstandard.CONTENTSIZE_UNKNOWN):
            raise wrong_chunk_size(where, size, str(content_size))
        end = _zstd_frame_end(data)
        if end != len(data):
            ends = "is followed by more" if 0 <= end < len(data) else "stops too early"
            raise CorruptionError(f"{where} is damaged: its frame {ends}")
        target = scratch.view(size)
        at = 0
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            while at < size and (count := reader.readinto(target[at:])):
                at += count
            if reader.read(1):  # this also verifies the checksum of the frame
                raise wrong_chunk_size(where, size, "more")
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


# The block headers of a zstd frame (RFC 8878, section 3.1.1.2)

BLOCK_HEADER_BYTES = 3
_RUN = 1  # block type RLE: one byte, repeated


def parse_block_header(header: bytes | memoryview) -> tuple[int, bool]:
    """Return the bytes of the block with its header, and if it is the last one of its frame.

    A checksum may follow the last one.
    """
    bits = int.from_bytes(header, "little")
    is_run = bits >> 1 & 3 == _RUN
    return BLOCK_HEADER_BYTES + (1 if is_run else bits >> 3), bool(bits & 1)


def _stream(decoder: Any, data: memoryview, size: int, where: str) -> bytes:
    decoded: bytes = decoder.decompress(data, size + 1)
    if len(decoded) == size and not decoder.eof:
        decoded += decoder.decompress(getattr(decoder, "unconsumed_tail", b""), 1)
    if len(decoded) > size:
        raise wrong_chunk_size(where, size, "more")
    if not decoder.eof or decoder.unused_data:
        ends = "bytes follow its stream" if decoder.eof else "its stream stops too early"
        raise CorruptionError(f"{where} is damaged: {ends}")
    return decoded


# A chunk of blosc begins with a header: its format's version, that of its compressor, flags, the
# size of an item; then three 32-bit sizes: decompressed, of a block, of the chunk with this header.
# https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst
_BLOSC_HEADER_BYTES = 16
_BLOSC_COMPRESSORS = ("blosclz", "lz4", "snappy", "zlib", "zstd")  # bits 5 to 7 of the flags


def _decompress_blosc(data: memoryview, size: int, where: str, scratch: ScratchBuffer) -> Any:
    content_size = int.from_bytes(data[4:8], "little")
    if len(data) < _BLOSC_HEADER_BYTES or content_size != size:
        raise wrong_chunk_size(where, size, str(content_size))
    # blosc reads as many bytes as the header says, without knowing how many there are.
    stored_size = int.from_bytes(data[12:16], "little")
    if stored_size != len(data):
        raise CorruptionError(
            f"{where} is damaged: it has {len(data)} bytes, and {stored_size} by its header"
        )
    target = scratch.view(size)
    try:
        _call_blosc("decompress", data, target)
    except RuntimeError as e:
        if data[2] >> 5 == _BLOSC_COMPRESSORS.index("snappy"):
            raise UnsupportedFormatError(
                f"{where} is compressed with snappy within blosc; expected one of "
                f"{', '.join(name for name in _BLOSC_COMPRESSORS if name != 'snappy')}"
            ) from e
        raise CorruptionError(f"{where} is damaged: {e}") from e
    return target


def _call_blosc(name: str, *args: Any) -> Any:
    """Call a function of numcodecs.blosc in the calling thread alone, without a lock.

    In the main thread numcodecs would let blosc use threads of its own, which store the blocks of
    a chunk in the order in which they end: not the same bytes each time.
    """
    from numcodecs import blosc

    if not getattr(blosc, "_MUTEX_IS_INIT", True):
        # At its first call numcodecs makes this lock with `multiprocessing`, which chooses the
        # start method of processes: a later `multiprocessing.set_start_method` would fail.
        blosc._MUTEX = threading.Lock()
        blosc._MUTEX_IS_INIT = True
    return run_in_worker(partial(getattr(blosc, name), *args))


_LZ4_HEADER_BYTES = 4


def _decompress_lz4(data: memoryview, size: int, where: str, scratch: ScratchBuffer) -> Any:
    """Return the content of a block of lz4 after its decompressed size, as numcodecs writes it."""
    from numcodecs import lz4

    content_size = int.from_bytes(data[:_LZ4_HEADER_BYTES], "little")
    if len(data) <= _LZ4_HEADER_BYTES or content_size != size:
        raise wrong_chunk_size(where, size, str(content_size))
    target = scratch.view(size)
    try:
        lz4.decompress(data, target)
    except RuntimeError as e:
        raise CorruptionError(f"{where} is damaged: {e}") from e
    return target


# Compression

Encoder: TypeAlias = Callable[[np.ndarray], bytes]

_ZSTD_LEVEL = 1
# Compressor, level, shuffle (1: of bytes, 2: of bits) and block size (0: blosc chooses) of blosc.
_BLOSC = (b"lz4", 5, 2, 0)
_BLOSC_ARCHIVE = (b"zstd", 1, 1, BLOCK_BYTES)  # of chunks that do not become smaller
_BLOSC_ITEM_SIZES = (1, 2, 4, 8, 16)


def chunk_encoder(compression: str) -> Encoder:
    """Return a function that compresses the elements of C-contiguous arrays.

    It releases the GIL. "zstd" writes a content checksum, which every zstd reader verifies.
    "blosc" is lz4 after a bit shuffle, "archive" zstd after a byte shuffle, each byte by itself.
    """
    if compression == "zstd":
        return _compress_zstd
    return {"blosc": _compress_blosc, "archive": _compress_archive}[compression]


def compress_chunk(compressor: str, data: bytes) -> bytes | None:
    """Return bytes compressed as a chunk of any compressor that is read; None for another one."""
    if compressor in ("gzip", "zlib"):
        return zlib.compress(data)
    if compressor == "bz2":
        return bz2.compress(data)
    if compressor == "lz4":
        from numcodecs import lz4

        return bytes(lz4.compress(data))
    if compressor in ("blosc", "zstd"):
        return chunk_encoder(compressor)(np.frombuffer(data, np.uint8))
    return None


def _compress_zstd(array: np.ndarray) -> bytes:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
    data: bytes = compressor.compress(_bytes_of(array).data)
    return data


def _compress_blosc(array: np.ndarray) -> bytes:
    data: bytes = _call_blosc("compress", _bytes_of(array), *_BLOSC, _blosc_item_size(array))
    return data


def _compress_archive(array: np.ndarray) -> bytes:
    elements, item_size = _bytes_of(array), _blosc_item_size(array)
    data = compress_planes(elements, item_size)
    if data is None:
        data = bytes(_call_blosc("compress", elements, *_BLOSC_ARCHIVE, item_size))
    return data


def _blosc_item_size(array: np.ndarray) -> int:
    return array.itemsize if array.itemsize in _BLOSC_ITEM_SIZES else 1


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
