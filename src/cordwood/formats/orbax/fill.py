"""Chunks of zeros that were not stored.

Orbax used to leave them out (`store_array_data_equal_to_fill_value` false, or not there): a new
optimizer state is all zeros. They become bytes in memory, encoded as their neighbours are.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from cordwood.errors import LimitError, UnsupportedFormatError
from cordwood.formats.orbax.values import Place
from cordwood.index import Source

__all__ = ["Fill"]

MAX_FILL_BYTES = 1 << 33  # of one chunk
_BLOCK_BYTES = 1 << 20


class Fill:
    """Makes each kind of chunk once, as a source of its own.

    Attributes:
        memory: the bytes of those sources, by their numbers.
    """

    def __init__(self, sources: list[Source]) -> None:
        self.memory: dict[int, Any] = {}
        self._sources = sources
        self._places: dict[tuple[str | None, int], Place] = {}

    def place(self, compressor: str | None, size_bytes: int) -> Place:
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
            self._places[key] = Place(number, 0, len(data))
            self.memory[number] = data
        return self._places[key]


def _encoded(compressor: str | None, size_bytes: int) -> Any:
    if compressor is None:
        return np.zeros(size_bytes, np.uint8).data  # of which the system makes no pages yet
    encoder: Any
    if compressor == "zstd":
        import zstandard

        encoder = zstandard.ZstdCompressor().compressobj(size=size_bytes)
    elif compressor in ("gzip", "zlib"):
        encoder = zlib.compressobj(wbits=31)
    else:
        raise UnsupportedFormatError(
            f"a chunk of zeros that is not stored, where others are compressed with {compressor!r}"
        )
    return b"".join([*map(encoder.compress, _zeros(size_bytes)), encoder.flush()])


def _zeros(size_bytes: int) -> Iterator[bytes]:
    block = bytes(min(size_bytes, _BLOCK_BYTES))
    for start in range(0, size_bytes, _BLOCK_BYTES):
        yield block[: size_bytes - start]
