"""`cordwood.json`: what a directory of packs holds, under a digest of its own. Needs no numpy.

The file begins with `{"digest":"`, then 32 characters: the xxh3-128 of the whole file with zeros
in their place; then `","version":1,"items":`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cordwood.encoding.digests import DIGEST_BYTES, has_own_digest, with_own_digest
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CorruptionError, FormatError, LimitError, newer_version_error
from cordwood.formats.step_record import ORBAX_KEY

INDEX_NAME = "cordwood.json"
VERSION = 1
MAX_INDEX_BYTES = 100_000_000

_START = b'{"digest":"'
_HEAD = re.compile(rb'\{"digest":"[0-9a-f]{32}","version":([1-9][0-9]{0,8})[,}]')


def encode_index(items: Mapping[str, Any]) -> bytes:
    """Return the bytes of the index file of items in JSON form, given by their prefixes.

    Raises LimitError where it would pass MAX_INDEX_BYTES.
    """
    body = json.dumps(
        {"version": VERSION, "items": items},
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
    )
    data = _START + b"0" * 2 * DIGEST_BYTES + b'",' + body[1:].encode()
    if len(data) > MAX_INDEX_BYTES:
        raise LimitError(
            f"{INDEX_NAME} would take {len(data)} bytes; expected at most {MAX_INDEX_BYTES} "
            "(MAX_INDEX_BYTES): save fewer leaves or items into one directory"
        )
    return with_own_digest(data, len(_START))


def decode_index(data: bytes) -> dict[str, Any]:
    """Return the items by their prefixes; the content of an item is not checked yet.

    Raises:
        CorruptionError: the file is not what was written.
        UnsupportedFormatError: it is of a newer version.
        FormatError: it is no such file.
    """
    if not data.startswith(_START):
        found = repr(data[:20]) if data else "an empty file; restore a copy"
        raise FormatError(f"byte 0: expected {_START.decode()!r}, found {found}")
    head = _HEAD.match(data)
    if head is not None and int(head[1]) > VERSION:
        raise newer_version_error(f"version {head[1].decode()} is newer", VERSION)
    if not has_own_digest(data, len(_START)):
        raise CorruptionError(
            "the file does not match its own digest: it is damaged, or was edited after cordwood "
            "wrote it; restore a copy"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise FormatError(f"not UTF-8 at byte {e.start}") from e
    index = parse_json(text, "the index", start=0)
    if type(index) is not dict or list(index) != ["digest", "version", "items"]:
        raise FormatError("expected an object of digest, version and items")
    if index["version"] != VERSION or type(index["version"]) is not int:
        raise FormatError(f"expected version {VERSION}, found {index['version']!r:.40}")
    items = index["items"]
    if type(items) is not dict:
        raise FormatError("items: expected an object")
    return items


def data_bytes_of(items: Mapping[str, Any]) -> int | None:
    """Return the size of all data files that items of `decode_index` name; None if it is unknown.

    Each file counts once. The items are not checked.
    """
    sizes: dict[str, int] = {}
    for item in items.values():
        rows = item.get("files") if type(item) is dict else None
        for row in rows if type(rows) is list else [None]:
            match row:
                case [str(name), int(size), *_]:
                    sizes[name] = size
                case _:
                    return None
    return sum(sizes.values())


def asks_for_orbax(items: Mapping[str, Any]) -> bool:
    """Return True if items of `decode_index`, unchecked, are to have an index for Orbax too."""
    match items.get(""):
        case {"metadata": dict(metadata)}:
            return ORBAX_KEY in metadata
    return False


def names_in(items: Mapping[str, Any]) -> frozenset[str]:
    """Return the data files that the items of an index refer to. Raises FormatError."""
    names = []
    for prefix, item in items.items():
        files = item.get("files") if type(item) is dict else None
        if type(files) is not list:
            raise FormatError(f"items[{prefix!r:.80}]: files: expected a list")
        for row in files:
            if type(row) is not list or not row or type(row[0]) is not str:
                raise FormatError(f"items[{prefix!r:.80}]: files: expected names")
            names.append(row[0])
    return frozenset(names)
