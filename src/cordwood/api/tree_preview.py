"""The first leaves of a checkpoint or a tree, as lines of a repr."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from cordwood.errors import counted
from cordwood.keypath import format_path
from cordwood.message_text import shortened
from cordwood.tree.flatten import flatten

_MAX_LEAVES = 8
_MAX_NAME = 60  # characters of a key path
_MAX_VALUE = 40  # of a Python value


def leaf_lines(rows: Iterable[tuple[str, ...]], count: int) -> list[str]:
    """Return an indented line for each of the first leaves, and one that counts the others.

    Args:
        rows: for each leaf its key path and the other columns.
        count: the number of all leaves.
    """
    cells = [
        [shortened(name or "(the root)", _MAX_NAME), *others]
        for name, *others in islice(rows, _MAX_LEAVES)
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=True)]).rstrip()
        for row in cells
    ]
    if count > len(lines):
        lines.append(f"... and {count - len(lines)} more")
    return [f"  {line}" for line in lines]


def tree_lines(tree: Any) -> list[str]:
    """Return the number of leaves of a tree, and lines for the first: shapes, never elements."""
    try:
        flat = flatten(tree)
        rows = [
            (format_path(path), _described(leaf))
            for path, leaf in islice(zip(flat.paths, flat.leaves, strict=True), _MAX_LEAVES)
        ]
    except Exception:  # noqa: BLE001  (a repr must not fail, whatever the object)
        return [type(tree).__qualname__]
    count = len(flat.leaves)
    return [counted(count, "leaf", "leaves"), *leaf_lines(rows, count)]


def _described(leaf: Any) -> str:
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{dtype}[{','.join(map(str, shape))}]"
    if isinstance(leaf, bool | int | float | complex | str | bytes):
        start = leaf[:_MAX_VALUE] if isinstance(leaf, str | bytes) else leaf
        return shortened(repr(start), _MAX_VALUE)
    return type(leaf).__qualname__
