"""A compressed stream of one frame: gzip or zstd.

Equal input gives equal output: the gzip header has no time and no system.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

from cordwood.encoding.digests import BytesLike

_STEP_BYTES = 1 << 20  # of the bytes to compress at a time

GZIP_LEVEL = 6
ZSTD_LEVEL = 3
# Deflate, no flags, no time, no extra flags, unknown system.
_GZIP_HEADER = struct.pack("<BBBBIBB", 0x1F, 0x8B, 8, 0, 0, 0, 255)


def compress(
    chunks: Iterable[BytesLike], kind: str, *, size_bytes: int | None = None
) -> Iterator[bytes]:
    """Compress `chunks`, one after another, as one frame.

    Args:
        chunks: the bytes to compress.
        kind: "gz" or "zst".
        size_bytes: the size of all chunks together, if known; the zstd header then contains it.
    """
    if kind == "gz":
        return _gzip(_blocks(chunks))
    if kind == "zst":
        return _zstd(_blocks(chunks), size_bytes)
    raise ValueError(f'expected "gz" or "zst", found {kind!r}')


def _blocks(chunks: Iterable[BytesLike]) -> Iterator[memoryview]:
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), _STEP_BYTES):
            yield view[start : start + _STEP_BYTES]


def _gzip(blocks: Iterable[memoryview]) -> Iterator[bytes]:
    yield _GZIP_HEADER
    deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    checksum, size = 0, 0
    for block in blocks:
        checksum = zlib.crc32(block, checksum)
        size += len(block)
        if data := deflate.compress(block):
            yield data
    yield deflate.flush()
    yield struct.pack("<II", checksum, size & 0xFFFFFFFF)


def _zstd(blocks: Iterable[memoryview], size_bytes: int | None) -> Iterator[bytes]:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
    stream = compressor.compressobj(size=-1 if size_bytes is None else size_bytes)
    for block in blocks:
        if data := stream.compress(block):
            yield data
    yield stream.flush()
