"""`cordwood.json`: what a directory of packs holds, under a digest of its own.

The file begins with `{"digest":"`, then 32 characters: the xxh3-128 of the whole file with zeros
in their place; then `","version":1,"items":`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import xxhash

from cordwood.encoding.digests import DIGEST_BYTES
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    PrefixError,
    UnsupportedFormatError,
    no_prefix_message,
)

INDEX_NAME = "cordwood.json"
VERSION = 1
MAX_INDEX_BYTES = 100_000_000

_T = TypeVar("_T")
_START = b'{"digest":"'
_DIGEST_STOP = len(_START) + 2 * DIGEST_BYTES
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
    return data[: len(_START)] + _digest(data) + data[_DIGEST_STOP:]


def decode_index(data: bytes) -> dict[str, Any]:
    """Return the items by their prefixes; the content of an item is not checked yet.

    Raises:
        CorruptionError: the file is not what was written.
        UnsupportedFormatError: it is of a newer version.
        FormatError: it is no such file.
    """
    if not data.startswith(_START):
        raise FormatError(f"byte 0: expected {_START.decode()!r}, found {data[:20]!r}")
    head = _HEAD.match(data)
    if head is not None and int(head[1]) > VERSION:
        raise UnsupportedFormatError(
            f"version {head[1].decode()} is newer than this cordwood reads ({VERSION}); upgrade "
            "cordwood"
        )
    if data[len(_START) : _DIGEST_STOP] != _digest(data):
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


def select_item(items: Mapping[str, _T], prefix: str | None, *, name: str) -> _T:
    """Return the item of a prefix; for None the one saved without a prefix, or the only one.

    Args:
        items: by their prefixes, whatever is known of each.
        prefix: the item's; None where none is asked for.
        name: the directory, for errors.

    Raises:
        PrefixError: there is no such item, or none is asked for and there are several.
        FormatError: there are no items at all.
    """
    available = sorted(items)
    if not available:
        raise FormatError(f"{name} holds no items")
    if prefix is None and ("" in items or len(items) == 1):
        return items["" if "" in items else available[0]]
    if prefix is None:
        raise PrefixError(f"{name}: {no_prefix_message(available)}")
    if available == [""] and prefix:
        raise PrefixError(
            f"{name}: Prefix {prefix!r} not found. It is one tree without a prefix: leave out "
            f"prefix=. To load a part of it, use select={prefix!r}"
        )
    if prefix not in items:
        raise PrefixError(f"{name}: Prefix {prefix!r} not found. Available: {available}")
    return items[prefix]


def _digest(data: bytes) -> bytes:
    state = xxhash.xxh3_128(data[: len(_START)])
    state.update(b"0" * 2 * DIGEST_BYTES)
    state.update(memoryview(data)[_DIGEST_STOP:])
    return state.hexdigest().encode()
