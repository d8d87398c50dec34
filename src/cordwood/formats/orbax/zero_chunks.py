"""Chunks of zeros that were not stored.

TensorStore leaves out chunks that equal the array's fill value unless it is told to store them, as
Orbax tells it since `store_array_data_equal_to_fill_value`: a new optimizer state is all zeros.
They become bytes in memory, encoded as their neighbours are.
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
# RFC 8878: magic, a descriptor (8 bytes of size follow the window's, which is 128 KiB).
_ZSTD_HEADER = b"\x28\xb5\x2f\xfd\xc0\x38"
_RLE_BYTES = 1 << 17  # the most of a block


class ZeroChunks:
    """Makes each kind of chunk once, as a source of its own.

    Args:
        sources: which these are appended to.
        is_told: whether the checkpoint itself tells what was left out: by a flag, or by a database
            that lists all keys under checksums. Otherwise a missing file may as well be a lost one.

    Attributes:
        memory: the bytes of those sources, by their numbers.
    """

    def __init__(self, sources: list[Source], *, is_told: bool) -> None:
        self.is_told = is_told
        self.memory: dict[int, Any] = {}
        self._sources = sources
        self._places: dict[tuple[str | None, int], ValueLocation] = {}

    def place(self, compressor: str | None, size_bytes: int) -> ValueLocation:
        """A chunk of zeros that decodes to `size_bytes`.

        Raises LimitError for a very large one; UnsupportedFormatError for other compressors.
        """
        key = compressor, size_bytes
        if key not in self._places:
            if size_bytes > MAX_FILL_BYTES:
                raise LimitError(f"a chunk of {size_bytes} bytes that is not stored")
            data = _encoded(compressor, size_bytes)
            number = len(self._sources)
            self._sources.append(Source("zeros that were not stored", len(data)))
            self._places[key] = ValueLocation(number, 0, len(data))
            self.memory[number] = data
        return self._places[key]


def _encoded(compressor: str | None, size_bytes: int) -> Any:
    """Zeros, encoded without going through them."""
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
    """A frame of blocks that say how often a byte is repeated."""
    whole, rest = divmod(size_bytes, _RLE_BYTES)
    repeat = _rle(_RLE_BYTES, last=False) * whole
    return _ZSTD_HEADER + struct.pack("<Q", size_bytes) + repeat + _rle(rest, last=True)


def _rle(size_bytes: int, *, last: bool) -> bytes:
    kind = 1 if size_bytes else 0  # a raw block of nothing, at the end
    return (last | kind << 1 | size_bytes << 3).to_bytes(3, "little") + bytes(kind)


def _zlib(size_bytes: int) -> bytes:
    """A stream of blocks that are alike: each forgets what was before. gzip's decoders read it."""
    block = zlib.compressobj(wbits=-15)
    repeated = block.compress(bytes(_BLOCK_BYTES)) + block.flush(zlib.Z_FULL_FLUSH)
    whole, rest = divmod(size_bytes, _BLOCK_BYTES)
    end = zlib.compressobj(wbits=-15)
    last = end.compress(bytes(rest)) + end.flush()
    checksum = size_bytes % _ADLER << 16 | 1  # Adler-32 of so many zeros
    return b"\x78\x9c" + repeated * whole + last + checksum.to_bytes(4, "big")
