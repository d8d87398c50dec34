"""Streaming of an encoded chunk: its bytes are decoded a few MiB at a time.

Blosc and lz4 cannot be decoded in parts: of these, the whole chunk is in memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from cordwood.errors import CorruptionError
from cordwood.index import Codec
from cordwood.io.chunk_codecs import (
    BLOCK_HEADER_BYTES,
    STREAMS,
    decompress_chunk,
    parse_block_header,
    wrong_chunk_size,
)
from cordwood.io.memory.buffers import ScratchBuffer

_FEED_BYTES = 64 << 10  # given to a decoder at a time, which copies what it does not use yet


class ChunkStream:
    """The decoded bytes of a chunk, read from its start to its end.

    Args:
        stored: the stored bytes of the chunk, already checked against their digests if there are
            any.
        stored_bytes: how many they are.
        codec: how the chunk is encoded; order and byte order are left to the caller.
        size_bytes: the size of the decoded elements.
        where: the file and the chunk, for errors.
    """

    def __init__(
        self,
        stored: Iterator[memoryview],
        stored_bytes: int,
        codec: Codec,
        size_bytes: int,
        *,
        where: str,
    ) -> None:
        self._codec, self._where = codec, where
        self._size = size_bytes + codec.skip_bytes
        self._done = self._crc32 = 0
        self._decoder = _open_decoder(stored, stored_bytes, codec.compressor, self._size, where)
        self.read(codec.skip_bytes)

    def read(self, size_bytes: int) -> np.ndarray:
        """Return the next bytes of the elements, as uint8 in memory of its own.

        Raises CorruptionError if the chunk is damaged or has fewer.
        """
        result = np.empty(size_bytes, np.uint8)
        at = 0
        while at < size_bytes:
            part = self._decode(size_bytes - at)
            if not part:
                raise wrong_chunk_size(self._where, self._size, str(self._done))
            result[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
            self._done += len(part)
            if self._codec.crc32 is not None:
                self._crc32 = zlib.crc32(part, self._crc32)
        return result

    def finish(self) -> None:
        """Raise CorruptionError unless the chunk ends here and matches its CRC-32, if any."""
        if self._decode(1):
            raise wrong_chunk_size(self._where, self._size, "more")
        self._decoder.finish()
        if self._codec.crc32 is not None and self._crc32 != self._codec.crc32:
            raise CorruptionError(
                f"{self._where} does not match its CRC-32: it is damaged; load another copy"
            )

    def _decode(self, limit: int) -> Any:
        try:
            return self._decoder.decode(limit)
        except (zlib.error, OSError, ValueError, EOFError) as e:
            if isinstance(e, CorruptionError):
                raise
            raise CorruptionError(f"{self._where} is damaged: {e}") from e


class _Decoder(Protocol):
    """A decoder of a stream of stored bytes."""

    def decode(self, limit: int) -> bytes | memoryview:
        """Return the next decoded bytes, at most `limit`; none at the end."""

    def finish(self) -> None:
        """Raise CorruptionError unless the stored bytes end where the stream ends."""


def _open_decoder(
    stored: Iterator[memoryview], stored_bytes: int, compressor: str | None, size: int, where: str
) -> _Decoder:
    if compressor is None:
        return _Plain(stored)
    if compressor in STREAMS:
        return _Inflater(STREAMS[compressor](), stored, where)
    if compressor == "zstd":
        return _Zstd(stored, stored_bytes, size, where)
    data = memoryview(b"".join(stored))
    return _Plain(
        iter([memoryview(decompress_chunk(compressor, data, size, where, ScratchBuffer()))])
    )


class _Plain:
    """Bytes that need no decoder."""

    def __init__(self, stored: Iterator[memoryview]) -> None:
        self._stored = stored
        self._part = memoryview(b"")

    def decode(self, limit: int) -> memoryview:
        while not self._part:
            part = next(self._stored, None)
            if part is None:
                break
            self._part = part
        result, self._part = self._part[:limit], self._part[limit:]
        return result

    def finish(self) -> None:
        """Do nothing: the bytes are the stream."""


class _Inflater:
    """A decompressor of zlib or bz2."""

    def __init__(self, decoder: Any, stored: Iterator[memoryview], where: str) -> None:
        self._decoder, self._where = decoder, where
        self._stored = _slices(stored, _FEED_BYTES)

    def decode(self, limit: int) -> bytes:
        decoder = self._decoder
        while not decoder.eof:
            data: Any = getattr(decoder, "unconsumed_tail", b"")
            is_last = False
            if not data and getattr(decoder, "needs_input", True):
                data = next(self._stored, b"")
                is_last = not data
            part: bytes = decoder.decompress(data, limit)
            if part:
                return part
            if is_last and not decoder.eof:
                raise CorruptionError(f"{self._where} is damaged: its stream stops too early")
        return b""

    def finish(self) -> None:
        if self._decoder.unused_data or next(self._stored, b""):
            raise CorruptionError(f"{self._where} is damaged: bytes follow its stream")


class _Zstd:
    """One zstd frame."""

    def __init__(
        self, stored: Iterator[memoryview], stored_bytes: int, size: int, where: str
    ) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._where = where
        try:
            self._source = _ZstdFrame(stored)
            content_size = self._source.parameters.content_size
        except zstandard.ZstdError as e:
            raise CorruptionError(f"{where} is damaged: {e}") from e
        if content_size not in (size, zstandard.CONTENTSIZE_UNKNOWN):
            raise wrong_chunk_size(where, size, str(content_size))
        self._stored_bytes = stored_bytes
        source: Any = self._source  # which only needs a method `read`
        self._reader = zstandard.ZstdDecompressor().stream_reader(source, read_size=_FEED_BYTES)

    def decode(self, limit: int) -> bytes:
        try:
            part: bytes = self._reader.read(limit)
        except self._error as e:
            raise CorruptionError(f"{self._where} is damaged: {e}") from e
        return part

    def finish(self) -> None:
        while self._source.read(_FEED_BYTES):
            pass
        end = self._source.end
        if end != self._stored_bytes:
            ends = "is followed by more" if 0 <= end < self._stored_bytes else "stops too early"
            raise CorruptionError(f"{self._where} is damaged: its frame {ends}")


class _ZstdFrame:
    """The bytes of a zstd frame, whose block headers are read in passing.

    Attributes:
        parameters: those of the frame.
        end: the offset at which the frame ends; -1 before the last block header was read.
    """

    def __init__(self, stored: Iterator[memoryview]) -> None:
        import zstandard

        self._stored = _slices(stored, _FEED_BYTES)
        self._first: Any = next(self._stored, memoryview(b""))
        self.parameters = zstandard.get_frame_parameters(self._first)
        self.end = -1
        self._header = b""
        self._next = zstandard.frame_header_size(self._first)  # where a block header begins
        self._at = 0

    def read(self, size: int = -1) -> Any:
        """Return the next bytes of the chunk, a slice of at most `size`."""
        del size  # slices are as long as the decoder asks for
        part, self._first = self._first, None
        if part is None:
            part = next(self._stored, memoryview(b""))
        self._follow(part)
        return part

    def _follow(self, part: memoryview) -> None:
        """Find the block headers in the next bytes."""
        stop = self._at + len(part)
        while self.end < 0 and self._next + len(self._header) < stop:
            begin = self._next + len(self._header) - self._at
            self._header += part[begin : begin + BLOCK_HEADER_BYTES - len(self._header)]
            if len(self._header) < BLOCK_HEADER_BYTES:
                break
            size, is_last = parse_block_header(self._header)
            self._next += size
            self._header = b""
            if is_last:
                self.end = self._next + 4 * self.parameters.has_checksum
        self._at = stop


def _slices(stored: Iterator[memoryview], size_bytes: int) -> Iterator[memoryview]:
    """Yield the same bytes in slices of at most that size."""
    for part in stored:
        for start in range(0, len(part), size_bytes):
            yield part[start : start + size_bytes]
