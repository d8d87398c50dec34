"""Chunks that were not stored, because they equal the fill value of their array.

TensorStore does not store them, unless an option asks for it. Orbax sets that option since it
writes `store_array_data_equal_to_fill_value`. A new optimizer state is all zeros. Such chunks
become bytes in memory, encoded with the array's compressor.
"""

from __future__ import annotations

import struct
import zlib

from cordwood.encoding.digests import BytesLike
from cordwood.errors import LimitError, UnsupportedFormatError
from cordwood.formats.zarr.key_values import ValueLocation
from cordwood.index import Source
from cordwood.io.open_files import zero_bytes

MAX_FILL_BYTES = 1 << 33  # of one chunk
_BLOCK_BYTES = 1 << 20
_ADLER = 65521
# RFC 8878: the magic number, a frame header descriptor that announces a window descriptor and a
# content size of 8 bytes, and the window descriptor (128 KiB).
_ZSTD_HEADER = b"\x28\xb5\x2f\xfd\xc0\x38"
_RLE_BYTES = 1 << 17  # the largest block

MAX_PATTERN_BYTES = 1 << 30  # of one chunk that is not zeros, or not of a codec that skips them


class ZeroChunks:
    """Chunks of zeros, or of a fill value, in memory. Each kind of chunk is made once, as a source.

    Args:
        sources: the list to which these sources are appended.
        memory: the bytes of these sources, by the number of the source.
        is_certain: whether the checkpoint itself says that zeros were not stored: by a flag, or by
            a database that lists all keys under checksums. Otherwise a missing file may be a lost
            one.
        with_fill_values: whether chunks of any fill value may be missing, and not of zeros alone.
    """

    def __init__(
        self,
        sources: list[Source],
        memory: dict[int, BytesLike],
        *,
        is_certain: bool,
        with_fill_values: bool = False,
    ) -> None:
        self.is_certain = is_certain
        self.with_fill_values = with_fill_values
        self._memory = memory
        self._sources = sources
        self._locations: dict[tuple[str | None, int, bytes], ValueLocation] = {}

    def location(
        self, compressor: str | None, size_bytes: int, element: bytes = b""
    ) -> ValueLocation:
        """Return the location of a chunk that decodes to `size_bytes`.

        Args:
            compressor: the codec of the chunk; None: raw.
            size_bytes: a multiple of the size of an element.
            element: the bytes of each element; none or zeros: all are zero.

        Raises LimitError for more than MAX_FILL_BYTES, or MAX_PATTERN_BYTES;
        UnsupportedFormatError for an unknown compressor.
        """
        if not any(element):
            element = b""
        key = compressor, size_bytes, element
        if key not in self._locations:
            if size_bytes > MAX_FILL_BYTES:
                raise LimitError(f"a chunk of {size_bytes} bytes that is not stored")
            data = _encoded(compressor, size_bytes, element)
            number = len(self._sources)
            self._sources.append(Source("chunks that were not stored", len(data)))
            self._locations[key] = ValueLocation(number, 0, len(data))
            self._memory[number] = data
        return self._locations[key]


def _encoded(compressor: str | None, size_bytes: int, element: bytes) -> BytesLike:
    """Return an encoded chunk; of zeros without a pass over the zeros, where the codec allows."""
    if not element:
        if compressor is None:
            return zero_bytes(size_bytes)
        if compressor == "zstd":
            return _zstd(size_bytes)
        if compressor in ("gzip", "zlib"):
            return _zlib(size_bytes)
    if size_bytes > MAX_PATTERN_BYTES:
        raise LimitError(
            f"a chunk of {size_bytes} bytes that is not stored; expected at most "
            f"{MAX_PATTERN_BYTES} (MAX_PATTERN_BYTES)"
        )
    data = element * (size_bytes // len(element)) if element else bytes(size_bytes)
    if compressor is None:
        return data
    from cordwood.io.chunk_codecs import compress_chunk

    encoded = compress_chunk(compressor, data)
    if encoded is None:
        raise UnsupportedFormatError(
            f"a chunk that is not stored, where others are compressed with {compressor!r}"
        )
    return encoded


def _zstd(size_bytes: int) -> bytes:
    """Return a frame of run-length blocks."""
    whole, last_bytes = divmod(size_bytes, _RLE_BYTES)
    repeat = _rle(_RLE_BYTES, last=False) * whole
    return _ZSTD_HEADER + struct.pack("<Q", size_bytes) + repeat + _rle(last_bytes, last=True)


def _rle(size_bytes: int, *, last: bool) -> bytes:
    kind = 1 if size_bytes else 0  # an empty raw block, at the end
    return (last | kind << 1 | size_bytes << 3).to_bytes(3, "little") + bytes(kind)


def _zlib(size_bytes: int) -> bytes:
    """Return a stream of identical blocks, separated by full flushes. gzip decoders read it too."""
    block = zlib.compressobj(wbits=-15)
    repeated = block.compress(bytes(_BLOCK_BYTES)) + block.flush(zlib.Z_FULL_FLUSH)
    whole, last_bytes = divmod(size_bytes, _BLOCK_BYTES)
    end = zlib.compressobj(wbits=-15)
    last = end.compress(bytes(last_bytes)) + end.flush()
    checksum = size_bytes % _ADLER << 16 | 1  # Adler-32 of `size_bytes` zeros
    return b"\x78\x9c" + repeated * whole + last + checksum.to_bytes(4, "big")
