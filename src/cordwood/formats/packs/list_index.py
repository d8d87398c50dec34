"""The leaves of an item by the index alone, without the positions of their bytes and numpy."""

from __future__ import annotations

from typing import Any

from cordwood.encoding.json_leaf_types import parse_runs
from cordwood.encoding.json_tree_structure import structure_from_json
from cordwood.errors import FormatError
from cordwood.formats.format_protocol import IndexListing
from cordwood.formats.packs.cordwood_json import INDEX_NAME, MAX_INDEX_BYTES, decode_index
from cordwood.formats.packs.leaf_types import PackedType, dtype_of, parse_type
from cordwood.formats.packs.select_item import select_item
from cordwood.index import LEAF, LeafRuns, LeafSpec, leaf_paths
from cordwood.io.open_files import LocalFile, naming, read_whole
from cordwood.storage.locations import LocalPath


def list_index(path: LocalPath, item: str | None) -> IndexListing:
    """Return the leaves of an item of a local directory, without the positions of their bytes.

    Only the listed members are checked. Raises as `open_item` for an index.
    """
    with LocalFile(f"{path}/{INDEX_NAME}") as file:
        data = read_whole(file, limit_bytes=MAX_INDEX_BYTES)
    with naming(f"{path}/{INDEX_NAME}"):
        items = {prefix: _listed(each, prefix) for prefix, each in decode_index(data).items()}
    return select_item(items, item, name=path.text)


def _listed(item: Any, prefix: str) -> IndexListing:
    where = f"items[{prefix!r:.80}]"
    members = ("types", "nodes", "leaves")
    if type(item) is not dict or not all(type(item.get(each)) is list for each in members):
        raise FormatError(f"{where}: expected an object of lists: {', '.join(members)}")
    types = [parse_type(each, where=f"{where}: types[{n}]") for n, each in enumerate(item["types"])]
    structure = structure_from_json(item["nodes"], max_leaves=len(item["leaves"]) + (1 << 24))
    runs = parse_runs(item["leaves"], len(types), structure.count(LEAF), where=f"{where}: leaves")
    cuts = tuple([() if each.grid is None else each.grid.counts for each in types])
    metadata = item.get("metadata")
    return IndexListing(
        LeafRuns(leaf_paths(structure), tuple(map(_spec, types)), cuts, runs),
        metadata if type(metadata) is dict else {},
    )


def _spec(packed: PackedType) -> LeafSpec:
    leaf_type, _, grid = packed
    if grid is None:
        return LeafSpec((), leaf_type.kind, (), "")
    dtype = dtype_of(leaf_type)
    return LeafSpec((), leaf_type.kind, grid.shape, dtype, leaf_type.weak_type, leaf_type.prng_impl)
