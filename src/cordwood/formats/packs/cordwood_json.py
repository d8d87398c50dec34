"""`cordwood.json`: what a directory of packs holds, under a digest of its own. Needs no numpy.

The file begins with `{"digest":"`, then 32 characters: the xxh3-128 of the whole file with zeros
in their place; then `","version":1,"items":`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from cordwood.encoding.digests import DIGEST_BYTES, has_own_digest, with_own_digest
from cordwood.encoding.leaf_table import parse_runs
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import (
    CordwoodError,
    CorruptionError,
    FormatError,
    LimitError,
    PrefixError,
    newer_version_error,
    no_prefix_message,
)
from cordwood.formats.format_protocol import IndexListing
from cordwood.formats.packs.leaf_types import ParsedType, dtype_of, parse_type
from cordwood.index import LeafRuns, LeafSpec
from cordwood.io.open_files import LocalFile, read_whole
from cordwood.storage.storage_protocol import NamingRules
from cordwood.tree.structure import LEAF, leaf_paths, structure_from_json

INDEX_NAME = "cordwood.json"
HUGGING_FACE_NAME = "model.safetensors.index.json"
SAVE_ID = re.compile(r"[0-9a-f]{16}")
PACK_NAME = re.compile(
    rf"data-({SAVE_ID.pattern})-(?P<process>[0-9]{{1,7}})-[0-9]{{1,3}}\.safetensors"
)
VERSION = 1
MAX_INDEX_BYTES = 100_000_000

_T = TypeVar("_T")
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
        raise FormatError(f"byte 0: expected {_START.decode()!r}, found {data[:20]!r}")
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


def is_pack_name(name: str) -> bool:
    """Return whether a file of that name is a data file."""
    return PACK_NAME.fullmatch(name) is not None


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


RULES = NamingRules(
    INDEX_NAME,
    MAX_INDEX_BYTES,
    (HUGGING_FACE_NAME,),
    is_pack_name,
    lambda data: names_in(decode_index(data)),
)


@contextmanager
def naming_index(name: str) -> Iterator[None]:
    """Put the path of an index in front of the errors about it.

    Args:
        name: the name of the directory.
    """
    try:
        yield
    except CordwoodError as e:
        raise type(e)(f"{name}/{INDEX_NAME}: {e}") from e


def list_index(path: str, item: str | None) -> IndexListing:
    """Return the leaves of an item of a local directory, without the positions of their bytes.

    Only the listed members are checked. Raises as `open_item` for an index.
    """
    with LocalFile(f"{path}/{INDEX_NAME}") as file:
        data = read_whole(file, limit_bytes=MAX_INDEX_BYTES)
    with naming_index(path):
        items = {prefix: _listed(each, prefix) for prefix, each in decode_index(data).items()}
    return select_item(items, item, name=path)


def _listed(item: Any, prefix: str) -> IndexListing:
    where = f"items[{prefix!r:.80}]"
    members = ("types", "nodes", "leaves")
    if type(item) is not dict or not all(type(item.get(each)) is list for each in members):
        raise FormatError(f"{where}: expected an object of lists: {', '.join(members)}")
    types = [parse_type(each, where=f"{where}: types[{n}]") for n, each in enumerate(item["types"])]
    structure = structure_from_json(item["nodes"], max_leaves=len(item["leaves"]) + (1 << 24))
    runs = parse_runs(item["leaves"], len(types), structure.count(LEAF), where=f"{where}: leaves")
    cuts = tuple([tuple([axis.parts for axis in parsed.axes or ()]) for parsed in types])
    metadata = item.get("metadata")
    return IndexListing(
        LeafRuns(leaf_paths(structure), tuple(map(_spec, types)), cuts, runs),
        metadata if type(metadata) is dict else {},
    )


def _spec(parsed: ParsedType) -> LeafSpec:
    leaf_type, _, axes = parsed
    if axes is None:
        return LeafSpec((), leaf_type.kind, (), "")
    shape = tuple([axis.size for axis in axes])
    return LeafSpec(
        (), leaf_type.kind, shape, dtype_of(leaf_type), leaf_type.weak_type, leaf_type.prng_impl
    )
