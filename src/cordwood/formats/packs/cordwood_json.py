"""`cordwood.json`: what a directory of packs holds, under a digest of its own. Needs no numpy.

The file begins with `{"digest":"`, then 32 characters: the xxh3-128 of the whole file with zeros
in their place; then `","version":1,"items":`.

No header of a data file is read to find a leaf, so the types of leaves are those of a safetensors
file, with shape, dtype and cuts.

A leaf is cut into cells: along each axis, there are positions where the parts begin. In JSON an
axis is a list of those starts, or, where the parts are as even as can be, their
number n: part i of an axis of size s begins at i * s // n.

One file, because listing a directory needs the file and the types, and no more.
"""

from __future__ import annotations

import json
import re
import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeVar

from cordwood import dtypes
from cordwood.encoding.digests import DIGEST_BYTES, has_own_digest, with_own_digest
from cordwood.encoding.json_structure import structure_from_json
from cordwood.encoding.json_values import VALUE_KINDS
from cordwood.encoding.leaf_table import (
    BYTE_KINDS,
    LeafType,
    parse_runs,
    type_from_json,
    type_to_json,
)
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    PrefixError,
    absent_prefix_message,
    newer_version_error,
    no_prefix_message,
)
from cordwood.formats.format_losses import unstorable_error
from cordwood.formats.format_protocol import IndexListing
from cordwood.formats.safetensors.dtype_codes import stored_dtype
from cordwood.formats.safetensors.plan_file import INLINE_BYTES, value_bytes
from cordwood.index import LEAF, MAX_ARRAY_BYTES, MAX_DIMS, Box, LeafRuns, LeafSpec, leaf_paths
from cordwood.io.open_files import LocalFile, naming, read_whole
from cordwood.sharding.boxes import Cuts, cell_box
from cordwood.storage.locations import LocalPath
from cordwood.storage.paths import POOL
from cordwood.storage.storage_protocol import NamingRules

INDEX_NAME = "cordwood.json"
HUGGING_FACE_NAME = "model.safetensors.index.json"
SAVE_ID = re.compile(r"[0-9a-f]{16}")
# In an object store the steps of a run share the data files of a pool beside them.
PACK_NAME = re.compile(
    rf"(?P<pool>\.\./{re.escape(POOL)}/{SAVE_ID.pattern}/)?"
    rf"data-(?P<save>{SAVE_ID.pattern})-(?P<process>[0-9]{{1,7}})-[0-9]{{1,3}}\.safetensors"
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
        found = repr(data[:20]) if data else "an empty file; restore a copy"
        raise FormatError(f"byte 0: expected {_START.decode()!r}, found {found}")
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


def data_bytes_of(items: Mapping[str, Any]) -> int | None:
    """Return the size of all data files that items of `decode_index` name; None if it is unknown.

    Each file counts once. The items are not checked.
    """
    sizes: dict[str, int] = {}
    for item in items.values():
        rows = item.get("files") if type(item) is dict else None
        for row in rows if type(rows) is list else [None]:
            match row:
                case [str(name), int(size), *_]:
                    sizes[name] = size
                case _:
                    return None
    return sum(sizes.values())


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
            f"prefix=. To load a part of it, pass its key path as select= (`cordwood ls "
            f"{shlex.quote(name)}` lists them)"
        )
    if prefix not in items:
        hint = ". '' is the tree that has no prefix: leave out prefix=" if "" in items else ""
        raise PrefixError(f"{name}: {absent_prefix_message(prefix, available)}{hint}")
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
    lambda index: frozenset() if index is None else names_in(decode_index(index)),
)


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


# Types of leaves


@dataclass(frozen=True)
class Grid:
    """A shape and its cuts; cells are numbered in C order. Make one with `of`.

    Attributes:
        shape: the shape.
        axes: of each axis the starts of its parts, or their number if they are even. Check
            `counts` against the limits before you use `cuts`: a small file can demand many.
    """

    shape: tuple[int, ...]
    axes: tuple[int | tuple[int, ...], ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], cuts: Cuts) -> Grid:
        """Return a grid, equal to others of the same cuts."""
        return cls(shape, tuple(map(_axis, shape, cuts)))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of parts along each axis."""
        return tuple([axis if isinstance(axis, int) else len(axis) for axis in self.axes])

    @cached_property
    def cell_count(self) -> int:
        """The number of cells."""
        return prod(self.counts)

    @cached_property
    def cuts(self) -> Cuts:
        """The starts of the parts along each axis."""
        axes = zip(self.axes, self.shape, strict=True)
        return tuple([_even(axis, size) if isinstance(axis, int) else axis for axis, size in axes])

    def box(self, cell: int) -> Box:
        """Return the box of a cell."""
        return cell_box(self.shape, self.cuts, cell)


def _even(count: int, size: int) -> tuple[int, ...]:
    return tuple([i * size // count for i in range(count)])


def _axis(size: int, starts: tuple[int, ...]) -> int | tuple[int, ...]:
    return len(starts) if starts == _even(len(starts), size) else starts


def cell_sizes(grid: Grid | None, itemsize: int) -> Callable[[int], int]:
    """Return a function that gives the size of a cell in bytes; 0 where there is no grid."""
    if grid is None:
        return lambda _: 0
    widths = [
        [b - a for a, b in zip(starts, (*starts[1:], size), strict=True)]
        for starts, size in zip(grid.cuts, grid.shape, strict=True)
    ]
    if all(min(axis) == max(axis) for axis in widths):
        same = prod([axis[0] for axis in widths]) * itemsize
        return lambda _: same

    def size(cell: int) -> int:
        size_bytes = itemsize
        for axis in reversed(widths):
            cell, i = divmod(cell, len(axis))
            size_bytes *= axis[i]
        return size_bytes

    return size


def cells_meeting(grid: Grid, box: Box) -> Iterator[int]:
    """Return the cells that have elements in common with a box.

    >>> list(cells_meeting(Grid((8, 4), ((0, 4), (0, 2))), Box((1, 1), (3, 4))))
    [0, 1]
    """
    ranges = [
        range(bisect_right(starts, a) - 1, bisect_left(starts, b)) if a < b else range(0)
        for starts, a, b in zip(grid.cuts, box.start, box.stop, strict=True)
    ]
    for position in product(*ranges):
        cell = 0
        for i, count in zip(position, grid.counts, strict=True):
            cell = cell * count + i
        yield cell


def _parse_axis(size: int, item: Any, *, where: str) -> int | tuple[int, ...]:
    """Return an axis of a grid from its JSON form. Raises FormatError."""
    if type(item) is int:
        if not 1 <= item <= max(size, 1):
            raise FormatError(f"{where}: an axis of {size} cannot be cut into {item} parts")
        return item
    if type(item) is not list or not item or not set(map(type, item)) <= {int}:
        raise FormatError(
            f"{where}: expected a number of parts or their starts, found {item!r:.80}"
        )
    ascending = all(map(int.__lt__, item, item[1:]))
    if item[0] != 0 or not ascending or (item[-1] >= size and len(item) > 1):
        raise FormatError(
            f"{where}: expected starts from 0 on, ascending and below {size}, found {item!r:.80}"
        )
    return _axis(size, tuple(item))


class PackedType(NamedTuple):
    """A way in which leaves are stored. `grid` is None for values."""

    leaf_type: LeafType  # always with its dtype
    itemsize: int
    grid: Grid | None

    @property
    def cells(self) -> int:
        """The number of cells of each leaf of this type."""
        return 0 if self.grid is None else self.grid.cell_count


class Tensor(NamedTuple):
    """The array that holds a leaf in packs."""

    shape: tuple[int, ...]
    dtype: str
    itemsize: int


def tensor_of(spec: LeafSpec) -> Tensor | None:
    """Return the array that holds a leaf in packs; None for a small value, which the index holds.

    Raises UnsupportedLeafError for a leaf that cannot be stored.
    """
    if spec.kind in BYTE_KINDS:
        size = value_bytes(spec.value)
        return Tensor((size,), "uint8", 1) if size > INLINE_BYTES else None
    if spec.kind in VALUE_KINDS:
        return None
    if spec.kind == "opaque" or len(spec.shape) >= MAX_DIMS:
        raise unstorable_error(spec, MAX_DIMS, "packs take")
    return Tensor(spec.shape, spec.dtype, stored_dtype(spec.dtype).itemsize)


def type_of(spec: LeafSpec, tensor: Tensor | None, grid: Grid | None) -> PackedType:
    """Return the type of a leaf whose array is cut as `grid` says."""
    if tensor is None:
        return PackedType(LeafType(spec.kind, False), 0, None)
    dtype = spec.dtype if spec.kind in _KINDS_WITH_DTYPE else ""
    leaf_type = LeafType(spec.kind, True, dtype, spec.weak_type, spec.prng_impl)
    return PackedType(leaf_type, tensor.itemsize, grid)


_KINDS_WITH_DTYPE = ("jax", "numpy", "numpy_scalar")  # the others leave no choice
_IMPLIED_DTYPE = {"prng_key": "uint32", "str": "uint8", "bytes": "uint8"}


def dtype_of(leaf_type: LeafType) -> str:
    """Return the dtype of the array that holds a leaf in packs."""
    return leaf_type.dtype or _IMPLIED_DTYPE[leaf_type.kind]


def to_json(packed: PackedType) -> dict[str, Any]:
    """Return the JSON form of a type."""
    item = type_to_json(packed.leaf_type)
    if packed.grid is not None:
        item["shape"] = list(packed.grid.shape)
        if packed.grid.cell_count > 1:
            axes = packed.grid.axes
            item["cuts"] = [axis if isinstance(axis, int) else list(axis) for axis in axes]
    return item


def parse_type(item: Any, *, where: str) -> PackedType:
    """Return the type whose JSON form is `item`. Raises FormatError."""
    if type(item) is not dict:
        raise FormatError(f"{where}: expected an object with a kind, found {item!r:.80}")
    rest = {key: value for key, value in item.items() if key not in ("shape", "cuts")}
    leaf_type = type_from_json(rest, where=where)
    if not leaf_type.tensor:
        if rest != item:
            raise FormatError(f"{where}: a value has neither shape nor cuts: {item!r:.200}")
        return PackedType(leaf_type, 0, None)
    if (leaf_type.kind in _KINDS_WITH_DTYPE) != bool(leaf_type.dtype):
        raise FormatError(
            f"{where}: expected a dtype where the kind leaves one open: {item!r:.200}"
        )
    itemsize = dtypes.itemsize(dtype_of(leaf_type))
    shape = _shape(item.get("shape"), itemsize, where=where)
    fits = {
        "numpy_scalar": not shape,
        "prng_key": bool(shape),
        "str": len(shape) == 1,
        "bytes": len(shape) == 1,
    }
    if not fits.get(leaf_type.kind, True):
        raise FormatError(f"{where}: no {leaf_type.kind} has the shape {list(shape)}")
    cuts = item.get("cuts", [1] * len(shape))
    if type(cuts) is not list or len(cuts) != len(shape):
        raise FormatError(f"{where}: cuts: expected one for each axis of {list(shape)}")
    axes = [
        _parse_axis(size, cut, where=f"{where}: cuts[{n}]")
        for n, (size, cut) in enumerate(zip(shape, cuts, strict=True))
    ]
    return PackedType(leaf_type, itemsize, Grid(shape, tuple(axes)))


def _shape(shape: Any, itemsize: int, *, where: str) -> tuple[int, ...]:
    if type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        raise FormatError(f"{where}: shape: expected integers of 0 or more, found {shape!r:.80}")
    if len(shape) > MAX_DIMS:
        raise LimitError(f"{where}: {len(shape)} dimensions; expected at most {MAX_DIMS}")
    if prod(filter(None, shape)) * itemsize > MAX_ARRAY_BYTES:
        raise FormatError(f"{where}: the shape takes more than {MAX_ARRAY_BYTES} bytes")
    return tuple(shape)
