"""`_sharding`: the shardings of the jax arrays when Orbax saved them, which are shown to people."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cordwood.formats.orbax.json_files import MAX_FILE_BYTES
from cordwood.io.open_files import READ_ERRORS
from cordwood.storage.readable_directory import ReadableDirectory

SHARDINGS_NAME = "_sharding"
_MAX_SHOWN = 200  # characters of a sharding


def read_shardings(directory: ReadableDirectory) -> Mapping[str, str]:
    """Return a text for the sharding of each array, by the name of the array.

    Loading does not depend on it: what cannot be read is left out.
    """
    with suppress(*READ_ERRORS):
        if directory.has(SHARDINGS_NAME):
            return parse_shardings(directory.read(SHARDINGS_NAME, limit_bytes=MAX_FILE_BYTES))
    return {}


def parse_shardings(data: bytes) -> Mapping[str, str]:
    """Return a text for the sharding of each array, by the name of the array.

    Loading does not depend on it: an entry that cannot be read is skipped.
    """
    try:
        items = list(json.loads(data).items())
    except (ValueError, RecursionError, AttributeError):
        return {}
    texts: dict[str, str] = {}
    shardings = {}
    for key, text in items:
        if type(text) is not str:
            continue
        if text not in texts:
            texts[text] = _sharding_text(text)
        try:
            name = base64.b64decode(key, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, ValueError):
            continue
        if texts[text]:
            shardings[name] = texts[text]
    return shardings


def _sharding_text(text: str) -> str:
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if type(members) is not dict:
        return ""
    if members.get("sharding_type") != "NamedSharding":
        device = members.get("device_str")
        shown = device if type(device) is str else members.get("sharding_type")
        return _plain(shown) if type(shown) is str else ""
    columns: list[Any] = [members.get(key) for key in ("partition_spec", "axis_names", "shape")]
    if not all(type(column) is list for column in columns):
        return "NamedSharding"
    spec, names, sizes = columns
    axes = [f"{name}={size}" for name, size in zip(names, sizes, strict=False)]
    return _plain(f"P({', '.join(map(_axis, spec))}) on {', '.join(axes)}")


def _axis(entry: Any) -> str:
    """Return the text of an entry of a PartitionSpec: None, an axis of the mesh, or several."""
    return f"({', '.join(map(repr, entry))})" if type(entry) is list else repr(entry)


def _plain(text: str) -> str:
    return text if text.isprintable() and len(text) <= _MAX_SHOWN else f"{text!r:.{_MAX_SHOWN}}"
