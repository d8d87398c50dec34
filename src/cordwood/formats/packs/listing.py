"""What the leaves of a directory of packs are, without where they lie: needs no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from cordwood.errors import CorruptionError, FormatError, UnsupportedFormatError
from cordwood.formats.packs.index_file import decode_index
from cordwood.formats.packs.leaf_types import ParsedType, dtype_of, parse_type
from cordwood.formats.safetensors.leaf_table import parse_runs
from cordwood.index import LeafSpec
from cordwood.tree.structure import LEAF, leaf_paths, structure_from_json

__all__ = ["ListedItem", "list_items"]

_new = tuple.__new__  # without a call of Python for each of many leaves


class ListedItem(NamedTuple):
    """The leaves of one item."""

    specs: tuple[LeafSpec, ...]
    parts: tuple[int, ...]  # of each leaf: in how many it was cut
    metadata: Mapping[str, str]


def list_items(data: bytes, *, name: str) -> dict[str, ListedItem]:
    """The items of an index file by their prefixes; what is listed is checked, and no more.

    Raises CorruptionError, FormatError and UnsupportedFormatError, as `scan.parse_items`.
    """
    try:
        return {prefix: _listed(item, prefix) for prefix, item in decode_index(data).items()}
    except (FormatError, CorruptionError, UnsupportedFormatError) as e:
        raise type(e)(f"{name}: {e}") from e


def _listed(item: Any, prefix: str) -> ListedItem:
    where = f"items[{prefix!r:.80}]"
    members = ("types", "nodes", "leaves")
    if type(item) is not dict or not all(type(item.get(each)) is list for each in members):
        raise FormatError(f"{where}: expected an object of lists: {', '.join(members)}")
    types = [parse_type(each, where=f"{where}: types[{n}]") for n, each in enumerate(item["types"])]
    structure = structure_from_json(item["nodes"], max_leaves=len(item["leaves"]) + (1 << 24))
    runs = parse_runs(item["leaves"], len(types), structure.count(LEAF), where=f"{where}: leaves")
    paths = iter(leaf_paths(structure))
    specs: list[LeafSpec] = []
    parts: list[int] = []
    blanks = [(_spec(parsed)[1:], parsed.cells) for parsed in types]
    for number, length in runs:
        rest, cells = blanks[number]
        parts += [cells] * length
        specs += [_new(LeafSpec, (path, *rest)) for path in islice(paths, length)]
    metadata = item.get("metadata")
    return ListedItem(tuple(specs), tuple(parts), metadata if type(metadata) is dict else {})


def _spec(parsed: ParsedType) -> LeafSpec:
    leaf_type, _, axes = parsed
    if axes is None:
        return LeafSpec((), leaf_type.kind, (), "")
    shape = tuple([axis.size for axis in axes])
    return LeafSpec(
        (), leaf_type.kind, shape, dtype_of(leaf_type), leaf_type.weak_type, leaf_type.prng_impl
    )
