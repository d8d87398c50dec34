"""The members of an item in cordwood's part of the index: the tree, and the digests of its files.

structure   what `cordwood.structure` is in a safetensors file: containers, kinds, values
order       the leaf that each array is, where that is not the order of the leaves
sizes       of every chunk file, in bytes, where the item is compressed
digests     of the blocks of every file: of each array its .zarray, then its chunks
metadata    the user's strings
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood.encoding.digests import BLOCK_BYTES, DIGEST_BYTES, MAX_BLOCK_BYTES
from cordwood.encoding.leaf_table import LeafTable, parse_table
from cordwood.errors import FormatError, LimitError

_SCHEME = "xxh3-128"
_MEMBERS = {"structure", "order", "sizes", "digests", "metadata"}


class ItemMembers(NamedTuple):
    """The members, checked against one another."""

    table: LeafTable
    order: Sequence[int]  # the leaf that each array is
    sizes: Sequence[int] | None
    block_bytes: int
    digests: bytes
    metadata: Mapping[str, str]


def encode_item(
    structure: str,
    order: Sequence[int],
    sizes: Sequence[int] | None,
    digests: bytes,
    metadata: Mapping[str, str],
) -> dict[str, object]:
    """Return the JSON form. `structure` is the text of `cordwood.structure`."""
    item: dict[str, object] = {"structure": structure}
    if list(order) != sorted(order):
        item["order"] = list(order)
    if sizes is not None:
        item["sizes"] = list(sizes)
    item["digests"] = f"{_SCHEME}:{BLOCK_BYTES}:{base64.b64encode(digests).decode()}"
    if metadata:
        item["metadata"] = dict(metadata)
    return item


def parse_item(item: object, *, array_count: int) -> ItemMembers:
    """Read and check the part of an item that has `array_count` arrays. Raises FormatError."""
    if type(item) is not dict or not {"structure", "digests"} <= set(item) <= _MEMBERS:
        raise FormatError(f"expected an object of {', '.join(sorted(_MEMBERS))}")
    structure, metadata = item["structure"], item.get("metadata", {})
    if type(structure) is not str or type(metadata) is not dict:
        raise FormatError("expected structure to be a string and metadata an object")
    if not all(type(value) is str for value in metadata.values()):
        raise FormatError("metadata: expected strings")
    table = parse_table(structure, tensor_count=array_count)
    arrays = [leaf for leaf, leaf_type in enumerate(table.leaf_types()) if leaf_type.tensor]
    order = item.get("order", arrays)
    if type(order) is not list or not all(type(leaf) is int for leaf in order):
        raise FormatError("order: expected a list of integers")
    if sorted(order) != arrays:
        raise FormatError("order: expected each leaf that is an array, once")
    sizes = item.get("sizes")
    if sizes is not None and (
        type(sizes) is not list or not all(type(size) is int and size > 0 for size in sizes)
    ):
        raise FormatError("sizes: expected a list of positive integers")
    block_bytes, digests = _digests(item["digests"])
    return ItemMembers(table, order, sizes, block_bytes, digests, metadata)


def _digests(text: object) -> tuple[int, bytes]:
    parts = text.split(":", 2) if type(text) is str else []
    scheme, size, packed = parts if len(parts) == 3 else ("", "", "")
    if scheme != _SCHEME or not size.isdecimal() or len(size) > 15:
        raise FormatError(f"digests: expected {_SCHEME}:BYTES:BASE64, found {text!r:.40}")
    if not 0 < int(size) <= MAX_BLOCK_BYTES:
        raise LimitError(f"digests: blocks of {size} bytes; expected 1 to {MAX_BLOCK_BYTES}")
    try:
        digests = base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError) as e:
        raise FormatError(f"digests: not base64 ({e})") from e
    if len(digests) % DIGEST_BYTES:
        raise FormatError(f"digests: {len(digests)} bytes are no whole number of digests")
    return int(size), digests
