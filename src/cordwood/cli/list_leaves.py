"""The leaves of a checkpoint as a list, from its index only where that is faster."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.formats.format_protocol import IndexListing
from cordwood.formats.load_format import index_lister_of
from cordwood.formats.suffixes import by_suffix
from cordwood.formats.table import Format, directory_formats
from cordwood.index import (
    ARRAY_KINDS,
    Box,
    Index,
    Inline,
    Leaf,
    LeafRuns,
    LeafSpec,
    Piece,
    leaf_text,
)
from cordwood.keypath import KeyPath, format_paths
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.plan.path_patterns import Select, match_patterns, pattern_name
from cordwood.storage.locations import LocalPath, Location, Url, parse_location
from cordwood.storage.paths import is_link, kind_at
from cordwood.threads.garbage_collector import gc_paused

_new = tuple.__new__

# The columns of a row after its key path.
_Look = tuple[str, int, int, int, tuple[int, ...], str]


class LeafRow(NamedTuple):
    """One leaf, or a container with the sum of its leaves."""

    key_path: str
    what: str  # float32[4,8], the kind of a value; of a container: 12 leaves
    size_bytes: int
    parts: int = 1  # the number of pieces of an array
    leaves: int = 0  # of a container
    cuts: tuple[int, ...] = ()  # of an array in several boxes: the number of boxes along each axis
    sharding: str = ""  # as the writer recorded it


class LeafListing(NamedTuple):
    """All leaves of a checkpoint."""

    format: str
    rows: Sequence[LeafRow]
    metadata: Mapping[str, str]
    separator: str = "/"  # of the keys in a key path; "." where names are joined by dots


def list_leaves(
    path: str | os.PathLike[str], *, prefix: str | None = None, format: str | None = None
) -> LeafListing:
    """Return the leaves of a checkpoint in their order.

    For a local checkpoint of cordwood's only the index is read, without numpy. Other checkpoints
    are opened.

    Raises whatever `cordwood.open` does.
    """
    with gc_paused():
        checkpoint = locate_checkpoint(parse_location(path))
        quick = quick_look(checkpoint, prefix=prefix, format=format)
        if quick is not None:
            detected_format, (leaves, metadata) = quick
            if isinstance(leaves, LeafRuns):
                rows = _joined(leaves.key_paths, _looks_of_runs(leaves))
                return LeafListing(detected_format.name, rows, metadata)
            rows = _rows(leaves.leaves, {})
            return LeafListing(detected_format.name, rows, metadata, _separator(leaves))
        from cordwood.loading.checkpoint import open_at

        with open_at(checkpoint, prefix=prefix, format=format) as opened:
            index = opened.index
            rows = _rows(index.leaves, index.shardings)
            return LeafListing(opened.format, rows, opened.metadata, _separator(index))


def _separator(index: Index) -> str:
    return "." if index.naming == "dotted" else "/"


def _rows(leaves: Sequence[Leaf], shardings: Mapping[int, str]) -> list[LeafRow]:
    return _joined([leaf.key_path for leaf in leaves], _looks(leaves, shardings))


def _joined(paths: Sequence[KeyPath], looks: Sequence[_Look]) -> list[LeafRow]:
    columns = zip(format_paths(paths), *zip(*looks, strict=True), strict=True)
    return list(map(_new, repeat(LeafRow), columns))


def _looks_of_runs(leaves: LeafRuns) -> Sequence[_Look]:
    each = [
        (*_dtype_and_size(spec), math.prod(cuts), 0, _cuts_if_split(cuts), "")
        for spec, cuts in zip(leaves.types, leaves.cuts, strict=True)
    ]
    looks: list[_Look] = []
    for number, length in leaves.runs:
        looks += [each[number]] * length
    return looks


def _looks(leaves: Sequence[Leaf], shardings: Mapping[int, str]) -> Sequence[_Look]:
    cache: dict[tuple[Any, ...], _Look] = {}  # by the type of the leaf
    looks = []
    for number, leaf in enumerate(leaves):
        _, kind, shape, dtype, storage, _, impl = leaf
        look = cache.get((kind, shape, dtype, impl))
        if look is None:
            look = (*_dtype_and_size(leaf), 1, 0, (), "")
            cache[kind, shape, dtype, impl] = look
        if not isinstance(storage, Inline) and len(storage.pieces) > 1:
            look = (*look[:2], len(storage.pieces), 0, _cuts(storage.pieces), look[5])
        if number in shardings:
            look = (*look[:5], shardings[number])
        looks.append(look)
    return looks


def _dtype_and_size(leaf: Leaf | LeafSpec) -> tuple[str, int]:
    size = 0
    if leaf.dtype and (leaf.kind in ARRAY_KINDS or leaf.shape):
        size = math.prod(leaf.shape) * dtypes.itemsize(leaf.dtype)
    return leaf_text(leaf), size


def _cuts(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """Return the number of pieces along each axis, if they are boxes."""
    starts = [piece.where.start for piece in pieces if isinstance(piece.where, Box)]
    return _cuts_if_split([len(set(axis)) for axis in zip(*starts, strict=True)])


def _cuts_if_split(cuts: Sequence[int]) -> tuple[int, ...]:
    return tuple(cuts) if max(cuts, default=1) > 1 else ()


def select_rows(rows: Sequence[LeafRow], select: Select, *, where: str) -> list[LeafRow]:
    """Return the rows that match the patterns; see `cordwood.load`.

    Raises MismatchError for a pattern that matches nothing.
    """
    patterns = [select] if isinstance(select, str) else list(select)
    names = [pattern_name(row.key_path, "strings") for row in rows]
    matches = match_patterns(names, patterns, naming="strings", where=where)
    return [row for row, take in zip(rows, matches, strict=True) if take]


def group_rows(rows: Sequence[LeafRow], depth: int, separator: str = "/") -> list[LeafRow]:
    """Return rows of at most `depth` keys; deeper leaves are summed up in their container."""
    by_name: dict[str, LeafRow] = {}
    for row in rows:
        keys = row.key_path.split(separator)
        if len(keys) <= depth:
            by_name[row.key_path] = row
            continue
        name = separator.join(keys[:depth])
        old = by_name.get(name, LeafRow(name, "", 0))
        count, size = old.leaves + 1, old.size_bytes + row.size_bytes
        what = "1 leaf" if count == 1 else f"{count} leaves"
        by_name[name] = LeafRow(name, what, size, 1, count)
    return list(by_name.values())


def quick_look(
    location: Location, *, prefix: str | None, format: str | None
) -> tuple[Format, IndexListing] | None:
    """Return the format and leaves of a local checkpoint, if its index can be seen at once.

    None for any other checkpoint, and where only opening it tells: if it is damaged, for example,
    or if its index is a symbolic link, which opening refuses.

    Raises what `cordwood.open` raises for an index.
    """
    if format is not None or isinstance(location, Url):
        return None
    format_of_path = by_suffix(location.text)
    if format_of_path is None:
        format_of_path = _only_directory_format(location)
    elif kind_at(location) != "a file":
        return None
    if format_of_path is None or not format_of_path.lister:
        return None
    listing = index_lister_of(format_of_path).list_index(location, prefix)
    return None if listing is None else (format_of_path, listing)


def _only_directory_format(path: LocalPath) -> Format | None:
    """Return the only format whose index is a regular file in a directory; None: open it."""
    formats = [
        format
        for format in directory_formats()
        if format.lister and kind_at(f"{path}/{format.index_name}") == "a file"
    ]
    if len(formats) != 1 or is_link(f"{path}/{formats[0].index_name}"):
        return None
    return formats[0]
