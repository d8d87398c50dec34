"""Every public name of `eformer.pytree`'s serialization: switch by changing one import."""

from __future__ import annotations

import sys

from cordwood.formats.flax_msgpack.chunk_size import ChunkSizeModule
from cordwood.msgpack import (
    compress_bytes,
    decompress_bytes,
    from_bytes,
    from_compressed_bytes,
    get_serialization_info,
    load_from_file,
    msgpack_restore,
    msgpack_serialize,
    save_to_file,
    to_bytes,
    to_compressed_bytes,
    validate_serializable,
)
from cordwood.state_dict.handlers import is_serializable, register_serialization_state
from cordwood.state_dict.state_dicts import from_state_dict, to_state_dict
from cordwood.state_dict.state_path import current_path

__all__ = [
    "MAX_CHUNK_SIZE",
    "compress_bytes",
    "current_path",
    "decompress_bytes",
    "from_bytes",
    "from_compressed_bytes",
    "from_state_dict",
    "get_serialization_info",
    "is_serializable",
    "load_from_file",
    "msgpack_restore",
    "msgpack_serialize",
    "register_serialization_state",
    "save_to_file",
    "to_bytes",
    "to_compressed_bytes",
    "to_state_dict",
    "validate_serializable",
]

MAX_CHUNK_SIZE: int
sys.modules[__name__].__class__ = ChunkSizeModule
