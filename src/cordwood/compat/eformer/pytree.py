"""Every public name of `eformer.pytree`'s serialization: switch by changing one import."""

from __future__ import annotations

import sys

from cordwood.compat import flax
from cordwood.compat.flax import *  # noqa: F403  (eFormer has all of Flax's names)
from cordwood.formats.flax_msgpack.plan_save import ChunkSizeModule
from cordwood.msgpack import (
    compress_bytes,
    decompress_bytes,
    from_compressed_bytes,
    get_serialization_info,
    load_from_file,
    save_to_file,
    to_compressed_bytes,
    validate_serializable,
)

__all__ = [
    "compress_bytes",
    "decompress_bytes",
    "from_compressed_bytes",
    "get_serialization_info",
    "load_from_file",
    "save_to_file",
    "to_compressed_bytes",
    "validate_serializable",
]
__all__ += flax.__all__

sys.modules[__name__].__class__ = ChunkSizeModule
