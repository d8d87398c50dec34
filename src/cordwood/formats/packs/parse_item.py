"""Check the items of `cordwood.json`, which may be hostile, and return them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cordwood.encoding.digests import DIGEST_BYTES
from cordwood.encoding.json_leaf_types import parse_runs, parse_values
from cordwood.encoding.json_tree_structure import structure_from_json
from cordwood.errors import FormatError, LimitError
from cordwood.formats.packs.cordwood_json import INDEX_NAME, decode_index
from cordwood.formats.packs.file_names import PACK_NAME
from cordwood.formats.packs.item import GAP, Item, ItemLayout, LeafNumbers, PackParts
from cordwood.formats.packs.leaf_types import PackedType, parse_type
from cordwood.formats.safetensors.read_header import MAX_HEADER_BYTES
from cordwood.index import LEAF, HeaderDigest, Source
from cordwood.io.open_files import naming
from cordwood.storage.paths import SAVE_ID
from cordwood.threads.garbage_collector import gc_paused

MEMBERS = ("save_id", "metadata", "nodes", "types", "leaves", "values", "columns", "files")

# A few bytes can stand for very many leaves or cells: these limits bound the memory for them.
FREE_LEAVES = 1 << 18  # of all items, and one more for each byte of the index
MAX_CELLS = 1 << 26  # of all leaves: 16,384 devices with 4,000 leaves each
MAX_CUTS = 1 << 22  # along all axes of all types
_MAX_FILE_BYTES = (1 << 63) - 1
_DIGEST = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}")


def parse_items(data: bytes, *, name: str) -> dict[str, Item]:
    """Return the items of an index file, by their prefixes.

    Args:
        data: the whole file.
        name: the name of the directory, for errors.

    Raises:
        CorruptionError: the file is not what was written.
        FormatError: it is no index of packs, or its members contradict each other.
        UnsupportedFormatError: it is of a newer version.
    """
    with naming(f"{name}/{INDEX_NAME}"):
        return check_items(decode_index(data), index_bytes=len(data))


def check_items(items: Mapping[str, Any], *, index_bytes: int) -> dict[str, Item]:
    """Return the items of an index in JSON form, by their prefixes, as `parse_items` does.

    Args:
        items: the members of the index.
        index_bytes: the size of the index, which limits how many leaves it may have.
    """
    checked: dict[str, Item] = {}
    most = FREE_LEAVES + index_bytes
    with gc_paused():
        for prefix, item in items.items():
            checked[prefix] = parse_item(item, max_leaves=most, where=_where(prefix))
            most -= len(checked[prefix].leaf_types)
    return checked


def _where(prefix: str) -> str:
    try:
        prefix.encode()
    except UnicodeEncodeError as e:
        raise FormatError("items: a prefix holds a lone surrogate") from e
    return f"items[{prefix!r:.80}]"


def parse_item(item: Any, *, max_leaves: int, where: str) -> Item:
    """Check an item of an index, which may have `max_leaves`.

    Raises FormatError (LimitError among them) naming the member at fault, with `where` in front.
    """
    if type(item) is not dict or set(item) != set(MEMBERS):
        raise FormatError(f"{where}: expected an object of {', '.join(MEMBERS)}")
    for member in MEMBERS[2:]:
        if type(item[member]) is not list:
            raise FormatError(f"{where}: {member}: expected a list")
    save_id, metadata = item["save_id"], item["metadata"]
    if type(save_id) is not str or not SAVE_ID.fullmatch(save_id):
        raise FormatError(
            f"{where}: save_id: expected 16 hexadecimal digits, found {save_id!r:.80}"
        )
    _check_metadata(metadata, where=where)
    types = tuple(
        [parse_type(value, where=f"{where}: types[{n}]") for n, value in enumerate(item["types"])]
    )
    most = min(max_leaves, MAX_CELLS + len(item["values"]))
    structure = structure_from_json(item["nodes"], max_leaves=most)
    leaves = structure.count(LEAF)
    runs = parse_runs(item["leaves"], len(types), leaves, where=f"{where}: leaves")
    kinds = [(types[number].leaf_type, length) for number, length in runs]
    values = sum([length for leaf_type, length in kinds if not leaf_type.tensor])
    if values != len(item["values"]):
        raise FormatError(
            f"{where}: values: expected {values} of them, found {len(item['values'])}"
        )
    packs = [_pack(row, where=f"{where}: files[{n}]") for n, row in enumerate(item["files"])]
    columns = [
        _parse_spans(column, leaves, where=f"{where}: columns[{n}]")
        for n, column in enumerate(item["columns"])
    ]
    _check_counts(types, runs, columns, packs, where=where)
    leaf_types = np.repeat([number for number, _ in runs], [length for _, length in runs])
    counts = np.array([each.cells for each in types], np.int64)[leaf_types.astype(np.int64)]
    result = Item(
        save_id,
        metadata,
        structure,
        types,
        leaf_types.astype(np.int64),
        parse_values(item["values"], kinds, where=f"{where}: values"),
        tuple([_expanded(spans) for spans in columns]),
        tuple(packs),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)[:-1]])[:leaves],
        int(counts.sum()),
    )
    _check_coverage(result, counts, where=where)
    return result


def _check_metadata(metadata: Any, *, where: str) -> None:
    if type(metadata) is not dict or not all(type(value) is str for value in metadata.values()):
        raise FormatError(f"{where}: metadata: expected an object of strings")
    try:
        "".join([*metadata, *metadata.values()]).encode()
    except UnicodeEncodeError as e:
        raise FormatError(f"{where}: metadata: holds a lone surrogate") from e


def _pack(row: Any, *, where: str) -> PackParts:
    if type(row) is not list or len(row) != 5:
        raise FormatError(f"{where}: expected name, sizes, digest and parts, found {row!r:.80}")
    name, size, header_bytes, digest, parts = row
    if type(name) is not str or not PACK_NAME.fullmatch(name):
        raise FormatError(
            f"{where}: {name!r:.80} is no name of a data file: expected "
            "data-<save id>-<process>-<number>.safetensors"
        )
    if (
        type(size) is not int
        or type(header_bytes) is not int
        or not (8 <= header_bytes <= min(size, MAX_HEADER_BYTES + 8) and size <= _MAX_FILE_BYTES)
    ):
        raise FormatError(f"{where}: {size!r:.40} bytes with a header of {header_bytes!r:.40}")
    if type(digest) is not str or not _DIGEST.fullmatch(digest):
        raise FormatError(f"{where}: expected a digest of the header, found {digest!r:.80}")
    if type(parts) is not list or len(parts) % 2 or not set(map(type, parts)) <= {int}:
        raise FormatError(f"{where}: expected pairs of column and cell")
    header = HeaderDigest(header_bytes, bytes.fromhex(digest))
    pairs = tuple(zip(parts[::2], parts[1::2], strict=True))
    _check_gaps(pairs, where=where)
    return PackParts(Source(name, size, None, header), pairs)


def _check_gaps(parts: Sequence[tuple[int, int]], *, where: str) -> None:
    last = 0
    for column, count in parts:
        if column == GAP and count < 1:
            raise FormatError(f"{where}: a gap of {count!r:.40} bytes")
        if column == GAP == last:
            raise FormatError(f"{where}: two gaps in a row")
        last = column
    if parts and all(column == GAP for column, _ in parts):
        raise FormatError(f"{where}: holds no cell, only a gap")


def _parse_spans(column: Any, leaves: int, *, where: str) -> list[tuple[int, int]]:
    """Return the runs of a column of leaves, each as [start, stop)."""
    if type(column) is not list or len(column) % 2 or set(map(type, column)) != {int}:
        raise FormatError(f"{where}: expected pairs of first leaf and count")
    spans = []
    end = 0
    for first, count in zip(column[::2], column[1::2], strict=True):
        if first < end or count < 1 or first + count > leaves:
            raise FormatError(
                f"{where}: expected leaves below {leaves}, ascending, found {count!r:.40} from "
                f"{first!r:.40} on"
            )
        end = first + count
        spans.append((first, end))
    return spans


def _expanded(spans: Sequence[tuple[int, int]]) -> LeafNumbers:
    return np.concatenate([np.empty(0, np.int64), *[np.arange(a, b) for a, b in spans]])


def _check_counts(
    types: Sequence[PackedType],
    runs: Sequence[tuple[int, int]],
    columns: Sequence[Sequence[tuple[int, int]]],
    packs: Sequence[PackParts],
    *,
    where: str,
) -> None:
    """Require as many entries as cells, before memory is taken for any of them."""
    names = {pack.source.name for pack in packs}
    if len(names) != len(packs):
        raise FormatError(f"{where}: files: a name occurs twice")
    cells = sum([types[number].cells * length for number, length in runs])
    if cells > MAX_CELLS:
        raise LimitError(f"{where}: {cells} cells; expected at most {MAX_CELLS} (MAX_CELLS)")
    parts = [part for pack in packs for part in pack.parts if part[0] != GAP]
    if not {column for column, _ in parts} == set(range(len(columns))):
        raise FormatError(f"{where}: files: expected parts of columns 0 to {len(columns)}, all")
    starts = sum([sum(each.grid.counts) for each in types if each.grid is not None])
    if starts > MAX_CUTS:
        raise LimitError(f"{where}: types: {starts} cuts; expected at most {MAX_CUTS} (MAX_CUTS)")
    if most := max([each.cells for each in types if each.cells > len(parts)], default=0):
        raise FormatError(f"{where}: {most} cells of one leaf, but only {len(parts)} parts")
    lengths = [sum([b - a for a, b in spans]) for spans in columns]
    entries = sum([lengths[column] for column, _ in parts])
    if entries != cells:
        raise FormatError(
            f"{where}: files: expected the {cells} cells of all leaves, found {entries}"
        )


def _check_coverage(item: Item, counts: LeafNumbers, *, where: str) -> None:
    """Require each cell once, and files of the sizes that their cells make up."""
    is_stored = np.zeros(item.cell_count, np.bool_)
    fewest = [int(counts[column].min(initial=MAX_CELLS)) for column in item.columns]
    layout = ItemLayout(item)
    for n, pack in enumerate(item.packs):
        end = pack.header_bytes
        for column, cell, _, stop, _ in layout.parts_of(pack):
            end = stop
            if column == GAP:
                continue
            if not 0 <= cell < fewest[column]:
                raise FormatError(
                    f"{where}: files[{n}]: a leaf of column {column} has no cell {cell!r:.40}"
                )
            cells = item.cell_starts[item.columns[column]] + cell
            if is_stored[cells].any():
                raise FormatError(f"{where}: files[{n}]: cell {cell} of a leaf is stored twice")
            is_stored[cells] = True
        if end != pack.source.size_bytes:
            raise FormatError(
                f"{where}: files[{n}]: expected {pack.source.size_bytes} bytes, but its header, "
                f"cells and gaps take {end}"
            )
