"""The record of a version: one JSON string in the metadata of a delta, or of a published tree."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.encoding.digests import DIGEST_BYTES
from cordwood.encoding.json_values import HEX
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import FormatError, newer_version_error
from cordwood.sharding.boxes import Cuts

KEY = "cordwood-version"  # in the checkpoint's metadata
BESIDE = "delta"  # the prefix of a delta beside a whole version
_MEMBERS = ["version", "digest", "base", "whole", "cuts", "metadata"]
_BASE_MEMBERS = ["digest", "step"]
_VERSION = 1


class BaseVersion(NamedTuple):
    """The version that a delta changes."""

    digest: str
    step: int | None  # its number, if it was published


class VersionRecord(NamedTuple):
    """The data of a version beside its tree.

    Attributes:
        digest: the digest of the version, in hexadecimal digits: see `deltas/version_digest.py`.
        base: the version that the delta changes; None: there is no delta.
        is_whole: True if the checkpoint holds the tree, and the delta, if any, beside it.
        cuts: of leaves, by number: cuts that no tile crosses.
        metadata: the user's strings of the version.
    """

    digest: str
    base: BaseVersion | None
    is_whole: bool
    cuts: Mapping[int, Cuts]
    metadata: Mapping[str, str] = {}


def encode_version(record: VersionRecord) -> str:
    """Return a record as one line of JSON."""
    leaves_of: dict[Cuts, list[int]] = {}
    for leaf, cuts in sorted(record.cuts.items()):
        leaves_of.setdefault(cuts, []).append(leaf)
    base = None if record.base is None else record.base._asdict()
    cuts_and_leaves = [[cuts, leaves] for cuts, leaves in leaves_of.items()]
    strings = dict(record.metadata)
    values = (_VERSION, record.digest, base, record.is_whole, cuts_and_leaves, strings)
    return json.dumps(dict(zip(_MEMBERS, values, strict=True)), separators=(",", ":"))


def version_in(metadata: Mapping[str, str], where: str) -> VersionRecord | None:
    """Return the record in the metadata of a checkpoint; None if it has none.

    Raises FormatError, or UnsupportedFormatError for a newer version of records.
    """
    text = metadata.get(KEY)
    if text is None:
        return None
    where = f"{where}: {KEY}"
    members = parse_json(text, where)
    newer = members.get("version") if type(members) is dict else None
    if type(newer) is int and newer > _VERSION:
        raise newer_version_error(f"{where}: version {newer} is newer", _VERSION)
    _require(type(members) is dict and list(members) == _MEMBERS, where, "members", members)
    version, digest, base, is_whole, cuts, strings = members.values()
    _require(type(version) is int and version == _VERSION, where, "version", version)
    _require(type(is_whole) is bool and (is_whole or base is not None), where, "whole", is_whole)
    _require(
        type(strings) is dict and set(map(type, strings.values())) <= {str},
        where,
        "metadata",
        strings,
    )
    return VersionRecord(
        _digest(digest, where), _base(base, where), is_whole, _cuts(cuts, where), strings
    )


def _require(condition: bool, where: str, member: str, value: Any) -> None:
    if not condition:
        raise FormatError(f"{where}: {member}: found {value!r:.80}; docs/format.md specifies it")


def _digest(value: Any, where: str) -> str:
    is_digest = type(value) is str and len(value) == 2 * DIGEST_BYTES and HEX.fullmatch(value)
    _require(bool(is_digest), where, "digest", value)
    return str(value)


def _base(value: Any, where: str) -> BaseVersion | None:
    if value is None:
        return None
    _require(type(value) is dict and list(value) == _BASE_MEMBERS, where, "base", value)
    step = value["step"]
    _require(step is None or (type(step) is int and step >= 0), where, "base: step", step)
    return BaseVersion(_digest(value["digest"], where), step)


def _cuts(value: Any, where: str) -> Mapping[int, Cuts]:
    result: dict[int, Cuts] = {}
    _require(type(value) is list, where, "cuts", value)
    for each in value:
        _require(type(each) is list and len(each) == 2, where, "cuts", each)
        axes, leaves = each
        _require(type(axes) is list and all(map(_is_ints, axes)), where, "cuts", axes)
        _require(_is_ints(leaves), where, "cuts", leaves)
        result.update(dict.fromkeys(leaves, tuple(map(tuple, axes))))
    return result


def _is_ints(value: Sequence[Any]) -> bool:
    return type(value) is list and set(map(type, value)) <= {int}
