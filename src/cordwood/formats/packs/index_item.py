"""One item of `cordwood.json`: a tree, and which files hold which cells of its leaves.

One file, because both directions of an item are here: from a saved tree to its JSON, and from its
JSON to the Index and the cells of a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from cordwood.encoding.cordwood_metadata import DATA_DIGESTS, decode_digests
from cordwood.encoding.digests import DIGEST_BYTES, check_coverage, digest_of
from cordwood.encoding.json_structure import structure_from_json, structure_to_json
from cordwood.encoding.json_values import encode_value
from cordwood.encoding.leaf_table import encode_runs, parse_runs, parse_values
from cordwood.encoding.strict_json import parse_value
from cordwood.encoding.tensor_names import METADATA_KEY
from cordwood.errors import CorruptionError, FormatError, LimitError
from cordwood.formats.packs.cordwood_json import (
    INDEX_NAME,
    PACK_NAME,
    SAVE_ID,
    Grid,
    PackedType,
    Tensor,
    cell_sizes,
    cells_meeting,
    decode_index,
    dtype_of,
    parse_type,
    to_json,
    type_of,
)
from cordwood.formats.safetensors.fast_header import METADATA_FIRST
from cordwood.formats.safetensors.read_header import MAX_HEADER_BYTES
from cordwood.index import (
    LEAF,
    Box,
    Digests,
    HeaderDigest,
    Index,
    Inline,
    Leaf,
    Piece,
    Pieces,
    Source,
    Span,
    Structure,
    leaf_paths,
)
from cordwood.io.open_files import ReadableFile, naming
from cordwood.plan.cells import CellAssignment
from cordwood.plan.links import StoredCell
from cordwood.plan.packs import Gap, PackPart, packs_of_all
from cordwood.threads.garbage_collector import gc_paused

if TYPE_CHECKING:
    from cordwood.tree.flatten import DescribedTree

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
    def header_bytes(self) -> int:
        """The size of the header; the cells begin behind it."""
        assert self.source.header_digest is not None
        return self.source.header_digest.header_bytes

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


def _expanded(spans: Sequence[tuple[int, int]]) -> Leaves:
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


def _check_coverage(item: Item, counts: Leaves, *, where: str) -> None:
    """Require each cell once, and files of the sizes that their cells make up."""
    taken = np.zeros(item.cell_count, np.bool_)
    fewest = [int(counts[column].min(initial=MAX_CELLS)) for column in item.columns]
    layout = _Layout(item)
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
            if taken[cells].any():
                raise FormatError(f"{where}: files[{n}]: cell {cell} of a leaf is stored twice")
            taken[cells] = True
        if end != pack.source.size_bytes:
            raise FormatError(
                f"{where}: files[{n}]: expected {pack.source.size_bytes} bytes, but its header, "
                f"cells and gaps take {end}"
            )


class _Part(NamedTuple):
    """A part of a file: the same cell of each leaf of a column, or a gap."""

    column: int  # or GAP
    cell: int
    start: int  # in bytes, from the start of the file
    stop: int
    cell_bytes: Mapping[int, int]  # of one leaf, by its type


class _Layout:
    """The sizes of the cells of an item, from which follows where they lie in its files."""

    def __init__(self, item: Item) -> None:
        self._sizes = [cell_sizes(packed.grid, packed.itemsize) for packed in item.types]
        kinds_of = [item.leaf_types[column] for column in item.columns]
        self._counts = [
            np.stack(np.unique(kinds, return_counts=True), axis=1).tolist() for kinds in kinds_of
        ]

    def parts_of(self, pack: PackParts) -> Iterator[_Part]:
        """Yield the parts of a file, in order."""
        stop = pack.header_bytes
        for column, cell in pack.parts:
            start = stop
            if column == GAP:
                stop += cell  # the size of the gap
                yield _Part(GAP, 0, start, stop, {})
                continue
            counts = self._counts[column]
            cell_bytes = {kind: self._sizes[kind](cell) for kind, _ in counts}
            stop += sum([cell_bytes[kind] * count for kind, count in counts])
            yield _Part(column, cell, start, stop, cell_bytes)


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
    layout = _Layout(item)
    kinds_of = [item.leaf_types[column] for column in item.columns]
    starts_of = [item.cell_starts[column] for column in item.columns]
    sizes = np.zeros(len(item.types), np.int64)
    for number, pack in enumerate(item.packs):
        for column, cell, start, _, cell_bytes in layout.parts_of(pack):
            if column == GAP:
                continue
            picked: Any = slice(None)
            if flags is not None:
                picked = np.flatnonzero(flags[starts_of[column] + cell])
                if not len(picked):
                    continue
            for kind, length in cell_bytes.items():
                sizes[kind] = length
            kinds = kinds_of[column]
            stops = start + np.cumsum(sizes[kinds])
            for leaf, kind, stop in zip(
                item.columns[column][picked].tolist(),
                kinds[picked].tolist(),
                stops[picked].tolist(),
                strict=True,
            ):
                where = boxes.get((kind, cell))
                if where is None:
                    where = boxes[kind, cell] = _place(item.types[kind].grid, cell)
                length = cell_bytes[kind]
                pieces[leaf].append((cell, _new(Piece, (where, number, stop - length, length))))
    return pieces


def sealed_header(file: ReadableFile, sealed: HeaderDigest) -> bytes:
    """Read the header of a pack. Raises CorruptionError if it does not match its digest."""
    header = file.read(0, sealed.header_bytes)
    if digest_of(header) != sealed.digest:
        raise CorruptionError(
            f"{file.name}: bytes 0 to {sealed.header_bytes} (the header) do not match the digest "
            "in the index: the file is damaged, or was replaced by another one; restore a copy"
        )
    return header


def sealed_digests(
    file: ReadableFile, sealed: HeaderDigest, *, header: bytes | None = None
) -> Digests:
    """Read the digests of the data of a pack, from its header.

    Args:
        file: the pack.
        sealed: the digest of its header.
        header: its header, if it was read before.

    Raises:
        CorruptionError: the header does not match its digest.
        FormatError: the header has no digests for the data of this file.
    """
    if header is None:
        header = sealed_header(file, sealed)
    try:
        length = int.from_bytes(header[:8], "little")
        text = header[8:].decode()
        if length + 8 != len(header) or not text.startswith(METADATA_FIRST):
            raise FormatError(
                f"expected a header of {len(header)} bytes, found one of {length + 8}"
            )
        metadata, _ = parse_value(text, len(METADATA_FIRST))
        written = metadata.get(DATA_DIGESTS) if type(metadata) is dict else None
        if type(written) is not str:
            raise FormatError(f"{METADATA_KEY}: expected {DATA_DIGESTS}")
        digests = decode_digests(written, len(header))
    except (FormatError, UnicodeDecodeError) as e:
        raise FormatError(f"{file.name}: {e}") from e
    check_coverage(file.name, file.size_bytes, digests)
    return digests


def cells_of_file(item: Item, number: int) -> Iterator[StoredCell]:
    """Yield the cells in a file of an item, in order; a gap is a cell of no leaf."""
    for part, cell, offset, stop, cell_bytes in _Layout(item).parts_of(item.packs[number]):
        if part == GAP:
            yield StoredCell(None, 0, offset, stop - offset)
            continue
        column = item.columns[part]
        for leaf, kind in zip(column.tolist(), item.leaf_types[column].tolist(), strict=True):
            yield StoredCell(leaf, cell, offset, cell_bytes[kind])
            offset += cell_bytes[kind]


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


class PackedTree(NamedTuple):
    """A tree to save, and the process that writes each part of it; before a byte is written."""

    described: DescribedTree
    tensors: tuple[Tensor | None, ...]  # of each leaf; None: the index holds it
    grids: tuple[Grid | None, ...]
    shares: CellAssignment
    prefix: str
    metadata: Mapping[str, str]
    first_leaf: int  # the position of its first leaf among the leaves of the save


class WrittenPack(NamedTuple):
    """A file that was written or linked, as process 0 needs it for the index: JSON values."""

    name: str
    size_bytes: int
    header_bytes: int
    digest: str  # of the header, in hexadecimal digits
    # A part is its cell and the runs of its leaves, a gap its size; None: as `packs_of_all` has it.
    parts: Sequence[Sequence[int] | int] | None


def written_pack(
    name: str, size_bytes: int, sealed: HeaderDigest, parts: Sequence[PackPart | Gap] | None
) -> WrittenPack:
    """Return a file that was written or linked; for `parts` see `WrittenPack`."""
    rows = None if parts is None else list(map(_part_row, parts))
    return WrittenPack(name, size_bytes, sealed.header_bytes, sealed.digest.hex(), rows)


def _part_row(part: PackPart | Gap) -> list[int] | int:
    return part.size_bytes if isinstance(part, Gap) else [part.cell, *_leaf_runs(part.leaves)]


def encode_item(
    tree: PackedTree, written: Sequence[Sequence[WrittenPack]], *, save_id: str
) -> dict[str, Any]:
    """Return the item of the index, in JSON form.

    Args:
        tree: the tree.
        written: the files of each process.
        save_id: the id of the save.

    Raises ValueError where the files are not those that the tree asks for.
    """
    numbers: dict[PackedType, int] = {}
    number_of_type: dict[tuple[Any, ...], int] = {}
    leaf_types = []
    values = []
    for spec, tensor, grid in zip(tree.described.specs, tree.tensors, tree.grids, strict=True):
        alike = (*spec[1:6], id(grid))  # all but the path and the value
        if tensor is None or alike not in number_of_type:
            packed = type_of(spec, tensor, grid)
            number_of_type[alike] = numbers.setdefault(packed, len(numbers))
        leaf_types.append(number_of_type[alike])
        if tensor is None:
            values.append(encode_value(spec.kind, spec.value))
    columns: dict[tuple[int, ...], int] = {}
    files = []
    for process, (packs, done) in enumerate(zip(packs_of_all(tree.shares), written, strict=True)):
        rows = [parts for *_, parts in done]
        if None in rows or not rows:
            if len(packs) != len(done):
                raise ValueError(f"process {process} wrote {len(done)} files, not {len(packs)}")
            rows = [list(map(_part_row, pack.parts)) for pack in packs]
        for row, (name, size_bytes, header_bytes, digest, _) in zip(rows, done, strict=True):
            parts: list[int] = []
            for part in row or ():
                if isinstance(part, int):
                    parts += (GAP, part)
                else:
                    cell, *spans = part
                    parts += (columns.setdefault(tuple(spans), len(columns)), cell)
            files.append([name, size_bytes, header_bytes, digest, parts])
    return {
        "save_id": save_id,
        "metadata": dict(tree.metadata),
        "nodes": structure_to_json(tree.described.structure),
        "types": [to_json(packed) for packed in numbers],
        "leaves": encode_runs(leaf_types),
        "values": values,
        "columns": list(map(list, columns)),
        "files": files,
    }


def _leaf_runs(column: Sequence[int]) -> list[int]:
    """Return the runs of consecutive leaves: [first, count, first, count, ...]."""
    spans: list[int] = []
    end = -1
    for leaf in column:
        if leaf == end:
            spans[-1] += 1
        else:
            spans += (leaf, 1)
        end = leaf + 1
    return spans
