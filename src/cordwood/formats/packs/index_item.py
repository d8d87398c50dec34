"""One item of `cordwood.json`: a tree, and which files hold which cells of its leaves.

One file, because an item is here from its JSON to all that is made of it: the Index, the cells of a
file, and `model.safetensors.index.json` for tools that read Hugging Face's layout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring as _quoted
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cordwood.encoding.digests import DIGEST_BYTES
from cordwood.encoding.leaf_table import parse_runs, parse_values, tensor_names
from cordwood.errors import FormatError, LimitError
from cordwood.formats.packs.cordwood_json import PACK_NAME, SAVE_ID, decode_index, naming_index
from cordwood.formats.packs.leaf_types import (
    Grid,
    PackedType,
    ParsedType,
    cell_counter,
    cells_meeting,
    dtype_of,
    parse_type,
)
from cordwood.formats.safetensors.header import MAX_HEADER_BYTES
from cordwood.index import Box, HeaderDigest, Index, Inline, Leaf, Piece, Pieces, Source, Span
from cordwood.io.threads import gc_paused
from cordwood.plan.choose_hard_links import StoredCell
from cordwood.tree.structure import LEAF, Structure, leaf_paths, structure_from_json

FORMAT = "packs"

MEMBERS = ("save_id", "metadata", "nodes", "types", "leaves", "values", "columns", "files")

# A few bytes can stand for very many leaves or cells: these limits bound the memory for them.
FREE_LEAVES = 1 << 18  # of all items, and one more for each byte of the index
MAX_CELLS = 1 << 26  # of all leaves: 16,384 devices with 4,000 leaves each
MAX_CUTS = 1 << 22  # along all axes of all types
_MAX_FILE_BYTES = (1 << 63) - 1

GAP = -1  # in place of a column: bytes that no leaf of the item uses, the second number of them
_new = tuple.__new__
_DIGEST = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}")

Leaves = np.ndarray[Any, np.dtype[np.int64]]
NeededBoxes: TypeAlias = Sequence[Sequence[Box] | None]  # of each leaf the boxes; None: all of it
_Found: TypeAlias = list[list[tuple[int, Piece]]]  # of each leaf: its cells with their pieces


class PackParts(NamedTuple):
    """A file: from the end of its header on, one cell of each leaf of a column, part by part."""

    source: Source
    parts: tuple[tuple[int, int], ...]  # column, cell; or GAP, bytes

    @property
    def has_gaps(self) -> bool:
        """True if some bytes of the file belong to no leaf."""
        return any(column == GAP for column, _ in self.parts)


class Item(NamedTuple):
    """The members, checked against one another: every cell of every leaf lies in one place."""

    save_id: str
    metadata: Mapping[str, str]
    structure: Structure
    types: tuple[PackedType, ...]
    leaf_types: Leaves  # of each leaf: position in `types`
    values: list[Any]  # decoded
    columns: tuple[Leaves, ...]  # leaves, ascending
    packs: tuple[PackParts, ...]
    cell_starts: Leaves  # of each leaf: how many cells the leaves before it have
    cell_count: int  # of all leaves


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
    parsed = [
        parse_type(value, where=f"{where}: types[{n}]") for n, value in enumerate(item["types"])
    ]
    most = min(max_leaves, MAX_CELLS + len(item["values"]))
    structure = structure_from_json(item["nodes"], max_leaves=most)
    leaves = structure.count(LEAF)
    runs = parse_runs(item["leaves"], len(parsed), leaves, where=f"{where}: leaves")
    kinds = [(parsed[number].leaf_type, length) for number, length in runs]
    values = sum([length for leaf_type, length in kinds if not leaf_type.tensor])
    if values != len(item["values"]):
        raise FormatError(
            f"{where}: values: expected {values} of them, found {len(item['values'])}"
        )
    packs = [_pack(row, where=f"{where}: files[{n}]") for n, row in enumerate(item["files"])]
    columns = [
        _spans(column, leaves, where=f"{where}: columns[{n}]")
        for n, column in enumerate(item["columns"])
    ]
    _check_counts(parsed, runs, columns, packs, where=where)
    types = tuple([each.finish() for each in parsed])
    leaf_types = np.repeat([number for number, _ in runs], [length for _, length in runs])
    counts = np.array([each.cells for each in parsed], np.int64)[leaf_types.astype(np.int64)]
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
    sealed = HeaderDigest(header_bytes, bytes.fromhex(digest))
    pairs = tuple(zip(parts[::2], parts[1::2], strict=True))
    _check_gaps(pairs, where=where)
    return PackParts(Source(name, size, None, sealed), pairs)


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


def _spans(column: Any, leaves: int, *, where: str) -> list[tuple[int, int]]:
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


def _expanded(spans: Sequence[tuple[int, int]]) -> Leaves:
    return np.concatenate([np.empty(0, np.int64), *[np.arange(a, b) for a, b in spans]])


def _check_counts(
    types: Sequence[ParsedType],
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
    starts = sum([axis.parts for each in types for axis in each.axes or ()])
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


def _check_coverage(item: Item, counts: Leaves, *, where: str) -> None:
    """Require each cell once, and files of the sizes that their cells make up."""
    taken = np.zeros(item.cell_count, np.bool_)
    fewest = [int(counts[column].min(initial=MAX_CELLS)) for column in item.columns]
    kinds = [
        np.stack(np.unique(item.leaf_types[column], return_counts=True), axis=1).tolist()
        for column in item.columns
    ]
    bytes_of = [cell_sizes(packed) for packed in item.types]
    for n, pack in enumerate(item.packs):
        end = pack.source.header_digest.header_bytes if pack.source.header_digest is not None else 0
        for number, cell in pack.parts:
            if number == GAP:
                end += cell
                continue
            if not 0 <= cell < fewest[number]:
                raise FormatError(
                    f"{where}: files[{n}]: a leaf of column {number} has no cell {cell!r:.40}"
                )
            cells = item.cell_starts[item.columns[number]] + cell
            if taken[cells].any():
                raise FormatError(f"{where}: files[{n}]: cell {cell} of a leaf is stored twice")
            taken[cells] = True
            end += sum([bytes_of[kind](cell) * count for kind, count in kinds[number]])
        if end != pack.source.size_bytes:
            raise FormatError(
                f"{where}: files[{n}]: expected {pack.source.size_bytes} bytes, but its header, "
                f"cells and gaps take {end}"
            )


def cell_sizes(packed: PackedType) -> Callable[[int], int]:
    """Return a function that gives the size of a cell of leaves of that type, in bytes."""
    if packed.grid is None:
        return lambda _: 0
    count, itemsize = cell_counter(packed.grid), packed.itemsize
    return lambda cell: count(cell) * itemsize


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
    with naming_index(name):
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


def read_index(item: Item, *, boxes: NeededBoxes | None = None) -> Index:
    """Return the index of an item.

    A leaf that was not cut is one span; otherwise each cell is a box.

    Args:
        item: a member of what `parse_items` returns.
        boxes: the boxes of each leaf that are needed; the index then has only the pieces that
            have elements of them, for a leaf may have millions. None: all of every leaf.
    """
    with gc_paused():
        flags = None if boxes is None else _flags(item, boxes)
        pieces = _pieces(item, flags)
        return Index(
            FORMAT,
            item.structure,
            tuple(_leaves(item, pieces)),
            tuple([pack.source for pack in item.packs]),
            "exact",
            item.metadata,
        )


def _flags(item: Item, boxes: NeededBoxes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a flag for each cell of all leaves: True if it is needed."""
    grids = [packed.grid for packed in item.types]
    kinds = item.leaf_types.tolist()
    flags = np.zeros(item.cell_count, np.bool_)
    for start, kind, needed in zip(item.cell_starts.tolist(), kinds, boxes, strict=True):
        grid = grids[kind]
        if grid is None:
            continue
        if needed is None:
            flags[start : start + grid.cell_count] = True
            continue
        for box in needed:
            for cell in cells_meeting(grid, box):
                flags[start + cell] = True
    return flags


def _pieces(item: Item, flags: np.ndarray[Any, np.dtype[np.bool_]] | None) -> _Found:
    pieces: _Found = [[] for _ in range(len(item.leaf_types))]
    boxes: dict[tuple[int, int], Box | Span] = {}
    bytes_of = [cell_sizes(packed) for packed in item.types]
    kinds_of = [item.leaf_types[column] for column in item.columns]
    counts_of = [
        np.stack(np.unique(kinds, return_counts=True), axis=1).tolist() for kinds in kinds_of
    ]
    starts_of = [item.cell_starts[column] for column in item.columns]
    sizes = np.zeros(len(item.types), np.int64)
    for number, pack in enumerate(item.packs):
        end = pack.source.header_digest.header_bytes if pack.source.header_digest is not None else 0
        for part, cell in pack.parts:
            if part == GAP:
                end += cell
                continue
            start, lengths = end, {kind: bytes_of[kind](cell) for kind, _ in counts_of[part]}
            end += sum([lengths[kind] * count for kind, count in counts_of[part]])
            picked: Any = slice(None)
            if flags is not None:
                picked = np.flatnonzero(flags[starts_of[part] + cell])
                if not len(picked):
                    continue
            for kind, length in lengths.items():
                sizes[kind] = length
            kinds = kinds_of[part]
            stops = start + np.cumsum(sizes[kinds])
            for leaf, kind, stop in zip(
                item.columns[part][picked].tolist(),
                kinds[picked].tolist(),
                stops[picked].tolist(),
                strict=True,
            ):
                where = boxes.get((kind, cell))
                if where is None:
                    where = boxes[kind, cell] = _place(item.types[kind].grid, cell)
                length = lengths[kind]
                pieces[leaf].append((cell, _new(Piece, (where, number, stop - length, length))))
    return pieces


def cells_of_file(item: Item, number: int) -> Iterator[StoredCell]:
    """Return the cells in a file of an item, in order; bytes in gaps are left out."""
    pack = item.packs[number]
    bytes_of = [cell_sizes(packed) for packed in item.types]
    end = pack.source.header_digest.header_bytes if pack.source.header_digest is not None else 0
    for part, cell in pack.parts:
        if part == GAP:
            end += cell
            continue
        column = item.columns[part]
        for leaf, kind in zip(column.tolist(), item.leaf_types[column].tolist(), strict=True):
            length = bytes_of[kind](cell)
            yield StoredCell(leaf, cell, end, length)
            end += length


def _place(grid: Grid | None, cell: int) -> Box | Span:
    assert grid is not None
    return Span(0, prod(grid.shape)) if grid.cell_count == 1 else grid.box(cell)


def _leaves(item: Item, pieces: _Found) -> Iterator[Leaf]:
    values = iter(item.values)
    paths = leaf_paths(item.structure)
    for path, kind, cells in zip(paths, item.leaf_types.tolist(), pieces, strict=True):
        leaf_type, _, grid = item.types[kind]
        if grid is None:
            yield Leaf(path, leaf_type.kind, (), "", Inline(next(values)))
            continue
        if len(cells) > 1:
            cells.sort()
        yield Leaf(
            path,
            leaf_type.kind,
            grid.shape,
            dtype_of(leaf_type),
            Pieces(tuple([piece for _, piece in cells])),
            leaf_type.weak_type,
            leaf_type.prng_impl,
        )


def hugging_face_index(items: Mapping[str, Item]) -> bytes | None:
    """Return the index that names the file of each tensor; None if it could not describe all.

    It could not if a leaf is cut into several tensors, if leaves of two items have one name, if
    files hold tensors that belong to no leaf, or if there are no arrays.
    """
    weight_map: dict[str, str] = {}
    total = count = 0
    for item in items.values():
        if any(packed.grid is not None and packed.grid.cell_count > 1 for packed in item.types):
            return None
        if any(pack.has_gaps for pack in item.packs):
            return None
        files = {}
        for pack in item.packs:
            assert pack.source.header_digest is not None
            total += pack.source.size_bytes - pack.source.header_digest.header_bytes
            for column, _ in pack.parts:
                files.update(dict.fromkeys(item.columns[column].tolist(), pack.source.name))
        paths = leaf_paths(item.structure)
        leaves = sorted(files)
        names = tensor_names([paths[leaf] for leaf in leaves]).names
        weight_map.update({name: files[leaf] for name, leaf in zip(names, leaves, strict=True)})
        count += len(leaves)
    if not weight_map or len(weight_map) != count:
        return None
    # As json.dumps would with an indent, in a tenth of the time.
    lines = [f"    {_quoted(name)}: {_quoted(file)}" for name, file in weight_map.items()]
    head = f'{{\n  "metadata": {{\n    "total_size": {total}\n  }},\n  "weight_map": {{\n'
    return "".join([head, ",\n".join(lines), "\n  }\n}\n"]).encode()
