"""`MAX_CHUNK_SIZE` of a compat module: one value, read and set in cordwood.msgpack."""

from __future__ import annotations

from types import ModuleType

from cordwood import msgpack


class ChunkSizeModule(ModuleType):
    """A module whose `MAX_CHUNK_SIZE` can be assigned with effect, as in Flax and eFormer."""

    @property
    def MAX_CHUNK_SIZE(self) -> int:
        return msgpack.MAX_CHUNK_SIZE

    @MAX_CHUNK_SIZE.setter
    def MAX_CHUNK_SIZE(self, size_bytes: int) -> None:
        msgpack.MAX_CHUNK_SIZE = size_bytes
