"""What a checkpoint holds, as a list: by the shortest way, so that a listing starts at once."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from cordwood import dtypes
from cordwood.engine.collector import collector_paused
from cordwood.engine.urls import local_or_url, parse_url
from cordwood.errors import PrefixError
from cordwood.index import ARRAY_KINDS, Inline, Leaf, LeafSpec
from cordwood.keypath import format_path
from cordwood.plan.described import described
from cordwood.plan.patterns import Select, matching, pattern_name

__all__ = ["Listing", "Row", "grouped", "list_leaves", "selected"]

_PACKS_INDEX = "cordwood.json"
_new = tuple.__new__


class Row(NamedTuple):
    """One leaf, or a container with all that is in it."""

    key_path: str
    what: str  # float32[4,8], the kind of a value; of a container: 12 leaves
    size_bytes: int
    parts: int = 1  # in how many pieces an array lies
    leaves: int = 0  # of a container


class Listing(NamedTuple):
    """All leaves of a checkpoint."""

    path: str
    format: str
    rows: Sequence[Row]
    metadata: Mapping[str, str]


def list_leaves(
    path: str | os.PathLike[str], *, prefix: str | None = None, format: str | None = None
) -> Listing:
    """The leaves of a checkpoint in their order.

    A safetensors file or a local directory of packs is listed without numpy; anything else is
    opened.

    Raises whatever `cordwood.open` does.
    """
    with collector_paused():
        quick = _quick(path, prefix, format)
        if quick is not None:
            return quick
        from cordwood.api.checkpoint import open as open_checkpoint

        with open_checkpoint(path, prefix=prefix, format=format) as checkpoint:
            leaves = checkpoint.index.leaves
            rows = _rows(leaves, map(_parts, leaves))
            return Listing(checkpoint.path, checkpoint.format, rows, checkpoint.metadata)


def _quick(path: str | os.PathLike[str], prefix: str | None, format: str | None) -> Listing | None:
    path = local_or_url(path)
    text = os.fspath(path)
    if format is not None or parse_url(path) is not None:
        return None
    if text.endswith(".safetensors") and prefix is None and Path(text).is_file():
        from cordwood.engine.files import LocalFile
        from cordwood.formats.safetensors.scan import scan

        with LocalFile(text) as file:
            index = scan(file)
        return Listing(text, "safetensors", _rows(index.leaves, repeat(1)), index.metadata)
    if not (Path(text) / _PACKS_INDEX).is_file():
        return None
    from cordwood.engine.files import LocalFile
    from cordwood.formats.packs.listing import list_items

    with LocalFile(Path(text) / _PACKS_INDEX) as file:
        items = list_items(file.read(0, file.size_bytes), name=f"{text}/{_PACKS_INDEX}")
    if prefix is None and ("" in items or len(items) == 1):
        prefix = "" if "" in items else next(iter(items))
    if prefix not in items:
        raise PrefixError(
            f"{text}: {'no prefix was given' if prefix is None else f'there is no {prefix!r}'}; "
            f"it holds trees of the prefixes {', '.join(map(repr, sorted(items)))}"
        )
    item = items[prefix]
    return Listing(text, "packs", _rows(item.specs, item.parts), item.metadata)


def _parts(leaf: Leaf) -> int:
    return 1 if isinstance(leaf.storage, Inline) else len(leaf.storage.pieces)


def _rows(leaves: Sequence[Leaf | LeafSpec], parts: Iterable[int]) -> list[Row]:
    known: dict[tuple[object, ...], tuple[str, int]] = {}  # of leaves that are alike
    rows = []
    for leaf, count in zip(leaves, parts, strict=False):
        alike = leaf.kind, leaf.shape, leaf.dtype, leaf.prng_impl
        if alike not in known:
            size = 0
            if leaf.dtype and (leaf.kind in ARRAY_KINDS or leaf.shape):
                size = math.prod(leaf.shape) * dtypes.itemsize(leaf.dtype)
            known[alike] = described(leaf), size
        what, size = known[alike]
        rows.append(_new(Row, (format_path(leaf.key_path), what, size, max(count, 1), 0)))
    return rows


def selected(rows: Sequence[Row], select: Select, *, where: str) -> list[Row]:
    """The rows that patterns take; see `cordwood.load`.

    Raises MismatchError for a pattern that matches nothing.
    """
    patterns = [select] if isinstance(select, str) else list(select)
    names = [pattern_name(row.key_path, "strings") for row in rows]
    taken = matching(names, patterns, naming="strings", where=where)
    return [row for row, take in zip(rows, taken, strict=True) if take]


def grouped(rows: Sequence[Row], depth: int) -> list[Row]:
    """Rows of at most so many keys: what lies deeper is summed up in its container."""
    found: dict[str, Row] = {}
    for row in rows:
        keys = row.key_path.split("/")
        if len(keys) <= depth:
            found[row.key_path] = row
            continue
        name = "/".join(keys[:depth])
        old = found.get(name)
        count = (old.leaves if old is not None else 0) + 1
        size = (old.size_bytes if old is not None else 0) + row.size_bytes
        what = "1 leaf" if count == 1 else f"{count} leaves"
        found[name] = Row(name, what, size, 1, count)
    return list(found.values())
