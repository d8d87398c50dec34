"""The members of an item in cordwood's part of the index: the tree, and the digests of its files.

structure   what `cordwood.structure` is in a safetensors file: containers, kinds, values
order       the leaf that each array is, where that is not the order of the leaves
sizes       of every chunk file, in bytes, where the item is compressed
digests     of the blocks of every file: of each array its .zarray, then its chunks
metadata    the user's strings
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood.encoding.cordwood_metadata import decode_digests, encode_digests
from cordwood.encoding.cordwood_structure import LeafTable, parse_structure
from cordwood.encoding.digests import BLOCK_BYTES, DIGEST_BYTES, MAX_BLOCK_BYTES
from cordwood.errors import FormatError, LimitError
from cordwood.index import Digests

_MEMBERS = {"structure", "order", "sizes", "digests", "metadata"}


class ItemMembers(NamedTuple):
    """The members, checked against one another."""

    table: LeafTable
    order: Sequence[int]  # the leaf that each array is
    sizes: Sequence[int] | None
    digests: Digests  # of all files, one after another
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
    item["digests"] = encode_digests(Digests(0, BLOCK_BYTES, digests))
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
    table = parse_structure(structure, tensor_count=array_count)
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
    if type(item["digests"]) is not str:
        raise FormatError(f"digests: expected a string, found {item['digests']!r:.40}")
    digests = decode_digests(item["digests"], 0, name="digests")
    if digests.block_bytes > MAX_BLOCK_BYTES:
        raise LimitError(
            f"digests: blocks of {digests.block_bytes} bytes; expected 1 to {MAX_BLOCK_BYTES}"
        )
    if len(digests.values) % DIGEST_BYTES:
        raise FormatError(f"digests: {len(digests.values)} bytes are no whole number of digests")
    return ItemMembers(table, order, sizes, digests, metadata)
