"""`_sharding`: how the jax arrays of a tree lay when Orbax saved it. For people to read."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

SHARDINGS_NAME = "_sharding"
_MAX_SHOWN = 200  # characters


def parse_shardings(data: bytes) -> Mapping[str, str]:
    """The sharding of each array that has one told, by the array's name.

    Nothing is loaded by it, so that what cannot be read is passed over.
    """
    try:
        members = json.loads(data)
        items = list(members.items())
    except (ValueError, RecursionError, AttributeError):
        return {}
    known: dict[str, str] = {}
    found = {}
    for key, text in items:
        if type(text) is not str:
            continue
        if text not in known:
            known[text] = _told(text)
        try:
            name = base64.b64decode(key, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, ValueError):
            continue
        if known[text]:
            found[name] = known[text]
    return found


def _told(text: str) -> str:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if type(told) is not dict:
        return ""
    if told.get("sharding_type") != "NamedSharding":
        device = told.get("device_str")
        shown = device if type(device) is str else told.get("sharding_type")
        return _plain(shown) if type(shown) is str else ""
    columns: list[Any] = [told.get(key) for key in ("partition_spec", "axis_names", "shape")]
    if not all(type(column) is list for column in columns):
        return "NamedSharding"
    spec, names, sizes = columns
    axes = [f"{name}={size}" for name, size in zip(names, sizes, strict=False)]
    return _plain(f"P({', '.join(map(_axis, spec))}) on {', '.join(axes)}")


def _axis(entry: Any) -> str:
    """An entry of a PartitionSpec: None, an axis of the mesh, or several."""
    return f"({', '.join(map(repr, entry))})" if type(entry) is list else repr(entry)


def _plain(text: str) -> str:
    return text if text.isprintable() and len(text) <= _MAX_SHOWN else f"{text!r:.{_MAX_SHOWN}}"
