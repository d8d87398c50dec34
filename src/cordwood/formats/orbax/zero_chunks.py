"""Chunks of zeros that were not stored.

TensorStore does not store chunks that equal the array's fill value, unless an option asks for it.
Orbax sets that option since it writes `store_array_data_equal_to_fill_value`. A new optimizer state
is all zeros. Such chunks become bytes in memory, encoded with the array's compressor.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from cordwood.errors import LimitError, UnsupportedFormatError
from cordwood.formats.orbax.key_values import ValueLocation
from cordwood.index import Source
from cordwood.storage.open_files import zero_bytes

MAX_FILL_BYTES = 1 << 33  # of one chunk
_BLOCK_BYTES = 1 << 20
_ADLER = 65521
# RFC 8878: the magic number, a frame header descriptor that announces a window descriptor and a
# content size of 8 bytes, and the window descriptor (128 KiB).
_ZSTD_HEADER = b"\x28\xb5\x2f\xfd\xc0\x38"
_RLE_BYTES = 1 << 17  # the largest block


class ZeroChunks:
    """Chunks of zeros in memory. Each kind of chunk is made once, as one source.

    Args:
        sources: the list to which these sources are appended.
        is_certain: whether the checkpoint itself says that zeros were not stored: by a flag, or by
            a database that lists all keys under checksums. Otherwise a missing file may be a lost
            one.

    Attributes:
        memory: the bytes of these sources, by the number of the source.
    """

    def __init__(self, sources: list[Source], *, is_certain: bool) -> None:
        self.is_certain = is_certain
        self.memory: dict[int, Any] = {}
        self._sources = sources
        self._locations: dict[tuple[str | None, int], ValueLocation] = {}

    def location(self, compressor: str | None, size_bytes: int) -> ValueLocation:
        """Return the location of a chunk of zeros that decodes to `size_bytes`.

        Raises LimitError for more than MAX_FILL_BYTES; UnsupportedFormatError for an unknown
        compressor.
        """
        key = compressor, size_bytes
        if key not in self._locations:
            if size_bytes > MAX_FILL_BYTES:
                raise LimitError(f"a chunk of {size_bytes} bytes that is not stored")
            data = _encoded(compressor, size_bytes)
            number = len(self._sources)
            self._sources.append(Source("zeros that were not stored", len(data)))
            self._locations[key] = ValueLocation(number, 0, len(data))
            self.memory[number] = data
        return self._locations[key]


def _encoded(compressor: str | None, size_bytes: int) -> Any:
    """Return encoded zeros, without a pass over the zeros themselves."""
    if compressor is None:
        return zero_bytes(size_bytes)
    if compressor == "zstd":
        return _zstd(size_bytes)
    if compressor in ("gzip", "zlib"):
        return _zlib(size_bytes)
    raise UnsupportedFormatError(
        f"a chunk of zeros that is not stored, where others are compressed with {compressor!r}"
    )


def _zstd(size_bytes: int) -> bytes:
    """Return a frame of run-length blocks."""
    whole, rest = divmod(size_bytes, _RLE_BYTES)
    repeat = _rle(_RLE_BYTES, last=False) * whole
    return _ZSTD_HEADER + struct.pack("<Q", size_bytes) + repeat + _rle(rest, last=True)


def _rle(size_bytes: int, *, last: bool) -> bytes:
    kind = 1 if size_bytes else 0  # an empty raw block, at the end
    return (last | kind << 1 | size_bytes << 3).to_bytes(3, "little") + bytes(kind)


def _zlib(size_bytes: int) -> bytes:
    """Return a stream of identical blocks, separated by full flushes. gzip decoders read it too."""
    block = zlib.compressobj(wbits=-15)
    repeated = block.compress(bytes(_BLOCK_BYTES)) + block.flush(zlib.Z_FULL_FLUSH)
    whole, rest = divmod(size_bytes, _BLOCK_BYTES)
    end = zlib.compressobj(wbits=-15)
    last = end.compress(bytes(rest)) + end.flush()
    checksum = size_bytes % _ADLER << 16 | 1  # Adler-32 of `size_bytes` zeros
    return b"\x78\x9c" + repeated * whole + last + checksum.to_bytes(4, "big")
