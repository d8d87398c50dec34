"""`tensorstore_index.json`: eFormer's members, and cordwood's own beside them.

    {"format": "tensorstore", "version": ..., "prefixes": {prefix: [entry, ...]},
     "arrays": [entry, ...], "cordwood": {"version": 1, "digest": ..., "items": {prefix: ...}}}

An entry is {"path", "shape", "dtype"}. `arrays` is the item that was saved without a prefix.
`cordwood` has a digest of itself and of the entries of its items (`item_members`). It is not the
only sign that cordwood wrote an item: every `.zarray` of it is marked too, so that an item whose
part of `cordwood` is missing does not become one that nobody verifies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

from cordwood.encoding.digests import digest_of
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import (
    CorruptionError,
    FormatError,
    PrefixError,
    absent_prefix_message,
    newer_version_error,
    no_prefix_message,
)
from cordwood.io.open_files import naming

INDEX_NAME = "tensorstore_index.json"
MAX_INDEX_BYTES = 1 << 29
VERSION = 1  # of cordwood's part
LAYOUT_VERSION = "2.0"  # eFormer's: an index with prefixes

_OWN = "cordwood"
_STEP = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
_PLAIN_PATHS = re.compile(rf"{_STEP}(?:[/\n]{_STEP})*")
_new = tuple.__new__
_OWN_MEMBERS = {"version", "digest", "items"}


class Entry(NamedTuple):
    """One array, as eFormer lists it."""

    path: str
    shape: tuple[int, ...] | None  # None: not said
    dtype: str | None


class IndexFile(NamedTuple):
    """The content of the file. The members that all items share are checked."""

    members: Mapping[str, Any]  # all but cordwood's, unknown ones included
    items: Mapping[str, Any]  # cordwood's, by prefix


def parse_index(data: bytes) -> IndexFile:
    """Read and check the file, without naming it in errors.

    Raises:
        FormatError: it is not such an index.
        CorruptionError: cordwood's part does not match its digest.
        UnsupportedFormatError: a newer cordwood wrote it.
    """
    members = parse_json(data, INDEX_NAME)
    if type(members) is not dict:
        raise FormatError(f"{INDEX_NAME}: expected a JSON object, found {members!r:.80}")
    if members.get("format") != "tensorstore":
        name = f"{members.get('format')!s:.80}"
        raise FormatError(f"Unsupported index format: {name} (in {INDEX_NAME})")
    prefixes = members.get("prefixes", {})
    if type(prefixes) is not dict or type(members.get("arrays", [])) is not list:
        raise FormatError(f"{INDEX_NAME}: expected prefixes to be an object and arrays a list")
    for prefix, entries in prefixes.items():
        if type(entries) is not list or not prefix:
            raise FormatError(f"{INDEX_NAME}: prefixes: {prefix!r:.80}: expected a list of arrays")
    items = _own_items(members)
    members.pop(_OWN, None)
    return IndexFile(members, items)


def _own_items(members: Mapping[str, Any]) -> Mapping[str, object]:
    if _OWN not in members:
        return {}
    section = members[_OWN]
    if type(section) is not dict or type(section.get("version")) is not int:
        raise CorruptionError(f"{INDEX_NAME}: {_OWN}: expected an object with a version")
    if section["version"] > VERSION:
        found = f"{INDEX_NAME}: {_OWN}.version is {section['version']!r:.20}, newer"
        raise newer_version_error(found, VERSION)
    items = section.get("items")
    if set(section) != _OWN_MEMBERS or type(items) is not dict or section["version"] != VERSION:
        raise CorruptionError(
            f"{INDEX_NAME}: {_OWN}: expected version {VERSION} with {', '.join(_OWN_MEMBERS)}"
        )
    if section["digest"] != _digest(members, items):
        raise CorruptionError(
            f"{INDEX_NAME} does not match its own digest: it is damaged, or another tool changed "
            "what cordwood wrote; restore a copy, or, if the other tool saved one of the items "
            f"{sorted(items)} again, save that with cordwood"
        )
    return items


def _digest(members: Mapping[str, Any], items: Mapping[str, object]) -> str:
    """Return the digest of the items, and of the entries of eFormer's members for them."""
    covered = {prefix: _raw_entries(members, prefix) for prefix in items}
    text = json.dumps([VERSION, items, covered], separators=(",", ":"), sort_keys=True)
    return digest_of(text.encode()).hex()


def _raw_entries(members: Mapping[str, Any], prefix: str) -> Any:
    return members.get("prefixes", {}).get(prefix) if prefix else members.get("arrays")


def prefixes_of(index: IndexFile) -> list[str]:
    """Return the prefixes of the items; '' for the one without."""
    names = [""] if "arrays" in index.members else []
    return [*names, *index.members.get("prefixes", {})]


def select_item(index: IndexFile, prefix: str | None) -> str:
    """Return the prefix of the item that is asked for; '' for the one without.

    Raises PrefixError where there is none such; the message lists those that are.
    """
    prefixes = index.members.get("prefixes")
    if prefixes is None:  # eFormer's first layout: one item, and no prefixes
        return ""
    if prefix:
        if prefix not in prefixes:
            raise PrefixError(absent_prefix_message(prefix, list(prefixes)))
        return prefix
    if "arrays" not in index.members:
        raise PrefixError(no_prefix_message(list(prefixes)))
    return ""


def entries_of(index: IndexFile, prefix: str) -> list[Entry]:
    """Return the arrays of an item, in the order of the index.

    Raises FormatError for an entry that is none, leaves the directory, or occurs twice.
    """
    where = f"prefixes[{prefix!r:.80}]" if prefix else "arrays"
    listed = _raw_entries(index.members, prefix) or []
    plain = _plain_entries(listed)
    if plain is not None:
        return plain
    entries = []
    seen = set()
    for i, raw in enumerate(listed):
        with naming(f"{INDEX_NAME}: {where}[{i}]"):
            entry = _entry(raw)
        if entry.path in seen:
            raise FormatError(
                f"{INDEX_NAME}: {where}[{i}]: {entry.path!r:.200} is listed twice: two leaves were "
                "saved to one place, and one of them is lost"
            )
        seen.add(entry.path)
        entries.append(entry)
    return entries


def _plain_entries(listed: Sequence[Any]) -> list[Entry] | None:
    """Return all entries in columns, without a call for each; None if one of them is unusual."""
    if set(map(type, listed)) != {dict}:
        return None
    paths = [raw.get("path") for raw in listed]
    shapes = [raw.get("shape") for raw in listed]
    names = [raw.get("dtype") for raw in listed]
    if [set(map(type, column)) for column in (paths, shapes, names)] != [{str}, {list}, {str}]:
        return None
    if _PLAIN_PATHS.fullmatch("\n".join(paths)) is None or len(set(paths)) < len(paths):
        return None
    axes = list(chain.from_iterable(shapes))
    if set(map(type, axes)) - {int} or min(axes, default=0) < 0:
        return None
    return list(map(_new, repeat(Entry), zip(paths, map(tuple, shapes), names, strict=True)))


def _entry(raw: object) -> Entry:
    if type(raw) is not dict or type(raw.get("path")) is not str:
        raise FormatError(f"expected an object with a path, found {raw!r:.80}")
    path = raw["path"]
    steps = path.split("/")
    if path != "." and not all(step and step not in (".", "..") for step in steps):
        raise FormatError(f"path {path!r:.200} leaves the checkpoint, or is no plain path")
    try:
        path.encode()
    except UnicodeEncodeError as e:
        raise FormatError(f"path {path!r:.200} holds a lone surrogate") from e
    if "\0" in path:
        raise FormatError(f"path {path!r:.200} holds a null character")
    shape, dtype = raw.get("shape"), raw.get("dtype")
    if shape is not None:
        if type(shape) is not list or not all(type(n) is int and n >= 0 for n in shape):
            raise FormatError(f"shape: expected a list of integers, found {shape!r:.80}")
        shape = tuple(shape)
    if dtype is not None and type(dtype) is not str:
        raise FormatError(f"dtype: expected a name, found {dtype!r:.80}")
    return Entry(path, shape, dtype)


def put_item(
    index: IndexFile | None,
    prefix: str,
    entries: Sequence[Entry],
    item: Mapping[str, object] | None,
) -> IndexFile:
    """Return the index with an item in place of the one of that prefix; the others are unchanged.

    Args:
        index: what is there; None for nothing.
        prefix: '' for none.
        entries: the item's arrays.
        item: cordwood's part; None for an item that it does not cover.
    """
    members: dict[str, Any] = {"format": "tensorstore", "version": LAYOUT_VERSION, "prefixes": {}}
    if index is not None:
        members.update(index.members)
    raw = [
        {"path": path, "shape": list(shape or ()), "dtype": dtype} for path, shape, dtype in entries
    ]
    if prefix:
        members["prefixes"] = {**members["prefixes"], prefix: raw}
    else:
        members["arrays"] = raw
    others = {} if index is None else drop_item(index, prefix).items
    return IndexFile(members, others if item is None else {**others, prefix: item})


def drop_item(index: IndexFile, prefix: str) -> IndexFile:
    """Return the index without cordwood's part of an item, which no longer fits its arrays."""
    return IndexFile(index.members, {p: item for p, item in index.items.items() if p != prefix})


def encode_index(index: IndexFile) -> bytes:
    """Return the bytes of the file: one entry on each line."""
    lines = []
    for name, value in index.members.items():
        if name == "prefixes":
            items = [f"{_json(prefix)}: {_list(entries, 4)}" for prefix, entries in value.items()]
            text = _block(items, 2, "{}")
        elif name == "arrays":
            text = _list(value, 2)
        else:
            text = _json(value)
        lines.append(f"{_json(name)}: {text}")
    if index.items:
        digest = _digest(index.members, index.items)
        members = {"version": VERSION, "digest": digest, "items": index.items}
        lines.append(f"{_json(_OWN)}: {_json(members)}")
    return f"{_block(lines, 0, '{}')}\n".encode()


def _list(entries: Iterable[object], indent: int) -> str:
    return _block(list(map(_json, entries)), indent, "[]")


def _block(lines: Sequence[str], indent: int, brackets: str) -> str:
    if not lines:
        return brackets
    margin = " " * indent
    body = f",\n{margin}  ".join(lines)
    return f"{brackets[0]}\n{margin}  {body}\n{margin}{brackets[1]}"


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False)
