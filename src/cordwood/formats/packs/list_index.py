"""The leaves of a directory of packs, without the positions of their bytes: needs no numpy."""

from __future__ import annotations

from typing import Any

from cordwood.encoding.leaf_table import parse_runs
from cordwood.errors import CorruptionError, FormatError, UnsupportedFormatError
from cordwood.formats.format_protocol import IndexListing
from cordwood.formats.packs.cordwood_json import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    decode_index,
    select_item,
)
from cordwood.formats.packs.leaf_types import ParsedType, dtype_of, parse_type
from cordwood.index import LeafRuns, LeafSpec
from cordwood.storage.open_files import LocalFile, read_whole
from cordwood.tree.structure import LEAF, leaf_paths, structure_from_json


def list_index(path: str, item: str | None) -> IndexListing:
    """Return the leaves of an item of a local directory. Raises as `open_item` for an index."""
    with LocalFile(f"{path}/{INDEX_NAME}") as file:
        data = read_whole(file, limit_bytes=MAX_INDEX_BYTES)
    return select_item(list_items(data, name=f"{path}/{INDEX_NAME}"), item, name=path)


def list_items(data: bytes, *, name: str) -> dict[str, IndexListing]:
    """Return the items of an index file by their prefixes. Only the listed members are checked.

    Raises CorruptionError, FormatError and UnsupportedFormatError, as `parse_items`.
    """
    try:
        return {prefix: _listed(item, prefix) for prefix, item in decode_index(data).items()}
    except (FormatError, CorruptionError, UnsupportedFormatError) as e:
        raise type(e)(f"{name}: {e}") from e


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
