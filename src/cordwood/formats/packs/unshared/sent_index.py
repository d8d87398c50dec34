"""The index of a step as process 0 sends it to the others, each of which commits it."""

from __future__ import annotations

import base64
import zlib

from cordwood.formats.packs.cordwood_json import MAX_INDEX_BYTES


def index_to_text(index: bytes) -> str:
    """Return an index as text, compressed."""
    return base64.b64encode(zlib.compress(index, 1)).decode("ascii")


def index_from_text(text: str) -> bytes:
    """Return the index that `index_to_text` was given."""
    return zlib.decompressobj().decompress(base64.b64decode(text), MAX_INDEX_BYTES)
