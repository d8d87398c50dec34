"""The names of the files in a directory of packs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood.errors import FormatError
from cordwood.formats.packs.cordwood_json import INDEX_NAME, MAX_INDEX_BYTES, decode_index
from cordwood.formats.packs.hub_index import HUGGING_FACE_NAME
from cordwood.formats.packs.index_item import PACK_NAME
from cordwood.storage.storage_protocol import NamingRules


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


def _referenced(data: bytes) -> frozenset[str]:
    return names_in(decode_index(data))


RULES = NamingRules(INDEX_NAME, MAX_INDEX_BYTES, (HUGGING_FACE_NAME,), is_pack_name, _referenced)
