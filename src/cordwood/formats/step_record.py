"""The record of a step beside its tree: one JSON string in the metadata of its checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, newer_version_error

KEY = "cordwood-step"  # in the checkpoint's metadata
PREFIX_KEY = "cordwood-prefix"  # the prefix by which the job restores the tree of its run
# In steps of roots that are not shared: how many processes saved, each into a root of its own.
UNSHARED_KEY = "cordwood-unshared"
# The item of Orbax's that the tree is too: the name of its directory, "" for the checkpoint itself.
ORBAX_KEY = "cordwood-orbax"
ORBAX_NODES_NAME = "cordwood.ocdbt"  # a file in that directory, which marks it
ORBAX_ITEM = "default"  # Orbax's name for the only tree of a step
_MEMBERS = ["version", "step", "time", "metrics", "extras", "items", "chain"]
_VERSION = 1
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Record(NamedTuple):
    """The data of a step beside its tree."""

    step: int
    time: float  # when its save began, in seconds since 1970
    metrics: Mapping[str, float]
    extras: Any  # JSON
    items: Mapping[str, Any]  # by name, the states of all processes
    chain: int = 0  # how many earlier steps may share files with it; 0: all files are its own


def encode_record(record: Record) -> str:
    """Return a record as one line of JSON; metrics that are NaN or infinite become strings."""
    metrics = {
        name: value if math.isfinite(value) else str(value)
        for name, value in record.metrics.items()
    }
    step, time, _, extras, items, chain = record
    values = (_VERSION, step, time, metrics, extras, items, chain)
    return json.dumps(
        dict(zip(_MEMBERS, values, strict=True)), allow_nan=False, separators=(",", ":")
    )


def is_unshared(metadata: object) -> bool:
    """Return True for a step that each process has saved into a root of its own."""
    return isinstance(metadata, Mapping) and UNSHARED_KEY in metadata


def record_text_in(metadata: object) -> str | None:
    """Return the encoded record in the metadata of a checkpoint; None if no manager saved it."""
    text = metadata.get(KEY) if isinstance(metadata, Mapping) else None
    return text if type(text) is str else None


def record_in(metadata: object) -> Record | None:
    """Return the record in the metadata of a checkpoint; None if no manager saved it.

    Raises as `decode_record`.
    """
    text = record_text_in(metadata)
    return None if text is None else decode_record(text, KEY)


def decode_record(text: str, where: str) -> Record:
    """Return the record that `encode_record` encoded.

    Args:
        text: the encoded record.
        where: its place, for errors.

    Raises FormatError, or UnsupportedFormatError for a newer version.
    """
    members = parse_json(text, where)
    newer = members.get("version") if type(members) is dict else None
    if type(newer) is int and newer > _VERSION:
        raise newer_version_error(f"{where}: version {newer} is newer", _VERSION)
    if type(members) is not dict or list(members) != _MEMBERS:
        raise FormatError(f"{where}: expected an object of {', '.join(_MEMBERS)}")
    version, step, time, metrics, extras, items, chain = members.values()
    if type(version) is not int or version != _VERSION:
        raise FormatError(f"{where}: expected version {_VERSION}, found {version!r:.40}")
    if type(step) is not int or step < 0:
        raise FormatError(f"{where}: step: expected an integer of at least 0, found {step!r:.40}")
    if type(time) not in (int, float):
        raise FormatError(f"{where}: time: expected a number, found {time!r:.40}")
    if type(metrics) is not dict:
        raise FormatError(f"{where}: metrics: expected an object")
    if type(items) is not dict:
        raise FormatError(f"{where}: items: expected an object")
    if type(chain) is not int or chain < 0:
        raise FormatError(f"{where}: chain: expected an integer of at least 0, found {chain!r:.40}")
    return Record(
        step,
        _number(time, f"{where}: time"),
        {name: _number(value, f"{where}: metrics: {name}") for name, value in metrics.items()},
        extras,
        items,
        chain,
    )


def _number(value: Any, where: str) -> float:
    if type(value) in (int, float):
        with suppress(OverflowError):
            return float(value)
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise FormatError(f"{where}: expected a number, found {value!r:.40}")


def wrong_step(record: Record, name: str) -> str:
    """Return the error text for a directory that is named as one step and holds another."""
    saved = record.step
    return (
        f"{name} holds step {saved}: it is a copy of that, was renamed, or was mixed up when a "
        f"disk was repaired; rename it to {saved} if that is meant, else remove it. "
        "cordwood.load reads it as it is"
    )
