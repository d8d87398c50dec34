"""`_CHECKPOINT_METADATA`: what wrote each item of a checkpoint, and when it was committed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from cordwood.formats.orbax.json_files import as_float, read_object_if_any
from cordwood.storage.readable_directory import ReadableDirectory

CHECKPOINT_NAME = "_CHECKPOINT_METADATA"
# Orbax shows them, and chooses by them what reads an item for which it is told nothing.
TREE_HANDLER = (
    "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler"
)
JSON_HANDLER = "orbax.checkpoint._src.handlers.json_checkpoint_handler.JsonCheckpointHandler"
_MAX_BYTES = 1 << 24


class CheckpointMetadata(NamedTuple):
    """The members that cordwood uses. Those that are missing have the defaults."""

    item_handlers: Mapping[str, object] = {}  # by the names of the items
    tree_handler: object = None  # of a checkpoint that is one tree, instead
    is_begun: bool = False
    is_committed: bool = False
    commit_seconds: float = 0.0  # since 1970


def encode_checkpoint_metadata(
    handlers: str | Mapping[str, str],
    metrics: Mapping[str, float],
    *,
    seconds: float | None = None,
    strings: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Return the contents of the file.

    Args:
        handlers: the handler of a checkpoint that is one tree; or of each item, by name.
        metrics: the metrics by name.
        seconds: the time of the save, since 1970.
        strings: the custom metadata.
    """
    nanoseconds = None if seconds is None else int(seconds * 1e9)
    members = {
        "item_handlers": handlers,
        "metrics": metrics,
        "performance_metrics": {},
        "init_timestamp_nsecs": nanoseconds,
        "commit_timestamp_nsecs": nanoseconds,
        "custom_metadata": strings,
    }
    return json.dumps(members, default=dict).encode()


def read_checkpoint_metadata(checkpoint: ReadableDirectory) -> CheckpointMetadata:
    """Return the contents of the file; the defaults if it is missing, or cannot be read."""
    members = read_object_if_any(checkpoint, CHECKPOINT_NAME, limit_bytes=_MAX_BYTES)
    handlers = members.get("item_handlers")
    committed = members.get("commit_timestamp_nsecs")
    return CheckpointMetadata(
        item_handlers=handlers if isinstance(handlers, dict) else {},
        tree_handler=None if isinstance(handlers, dict) else handlers,
        is_begun=members.get("init_timestamp_nsecs") is not None,
        is_committed=committed is not None,
        commit_seconds=(as_float(committed) or 0.0) / 1e9,
    )
