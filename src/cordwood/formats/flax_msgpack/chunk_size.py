"""`MAX_CHUNK_SIZE`: arrays of more bytes are stored in chunks."""

from __future__ import annotations

from types import ModuleType

_chunk_size: int = 2**30


def max_chunk_size() -> int:
    """Return the size in bytes up to which an array is stored whole."""
    return _chunk_size


class ChunkSizeModule(ModuleType):
    """A module whose `MAX_CHUNK_SIZE` can be assigned with effect, as in Flax and eFormer.

    All such modules share one value. It is read at each save: arrays of more bytes are stored in
    pieces.
    """

    @property
    def MAX_CHUNK_SIZE(self) -> int:
        return _chunk_size

    @MAX_CHUNK_SIZE.setter
    def MAX_CHUNK_SIZE(self, size_bytes: int) -> None:
        global _chunk_size
        _chunk_size = size_bytes
