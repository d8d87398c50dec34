"""Every public name of `flax.serialization`: switch by changing one import."""

from __future__ import annotations

import sys

from cordwood.formats.flax_msgpack.chunk_size import ChunkSizeModule
from cordwood.msgpack import from_bytes, msgpack_restore, msgpack_serialize, to_bytes
from cordwood.state_dict.handlers import is_serializable, register_serialization_state
from cordwood.state_dict.state_dicts import from_state_dict, to_state_dict
from cordwood.state_dict.state_path import current_path

__all__ = [
    "MAX_CHUNK_SIZE",
    "current_path",
    "from_bytes",
    "from_state_dict",
    "is_serializable",
    "msgpack_restore",
    "msgpack_serialize",
    "register_serialization_state",
    "to_bytes",
    "to_state_dict",
]

MAX_CHUNK_SIZE: int
sys.modules[__name__].__class__ = ChunkSizeModule
