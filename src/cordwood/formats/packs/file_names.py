"""The names of the files beside `cordwood.json` in a directory of packs."""

from __future__ import annotations

import re

from cordwood.storage.paths import POOL, SAVE_ID, pooled_name

HUGGING_FACE_NAME = "model.safetensors.index.json"
# In an object store the steps of a run share the data files of a pool beside them.
PACK_NAME = re.compile(
    rf"(?P<pool>\.\./{re.escape(POOL)}/{SAVE_ID.pattern}/)?"
    rf"data-(?P<save>{SAVE_ID.pattern})-(?P<process>[0-9]{{1,7}})-[0-9]{{1,3}}\.safetensors"
)


def is_pack_name(name: str) -> bool:
    """Return whether a file of that name is a data file."""
    return PACK_NAME.fullmatch(name) is not None


def pack_name(save_id: str, process: int, number: int, *, in_pool: bool = False) -> str:
    """Return the name of a data file, which no other save uses."""
    name = f"data-{save_id}-{process}-{number}.safetensors"
    return pooled_name(save_id, name) if in_pool else name
