"""The first leaves of a checkpoint or a tree, as lines of a repr."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from cordwood.keypath import format_path
from cordwood.message_text import counted, shortened
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


class TreePreview(NamedTuple):
    """A tree in a notebook.

    Attributes:
        note: the number of its leaves, and their size.
        html: the leaves.
    """

    note: str
    html: str


def tree_preview_html(tree: Any) -> TreePreview:
    """Return the leaves of a tree as HTML: shapes, never elements."""
    from cordwood.notebook.tree_html import leaf_count_text, tree_html

    try:
        flat = flatten(tree)
        sizes = [_size_bytes(leaf) for leaf in flat.leaves]
        html = tree_html(flat.paths, sizes, lambda number: _described(flat.leaves[number]))
        return TreePreview(leaf_count_text(len(sizes), sum(sizes)), html)
    except Exception:  # noqa: BLE001  (a repr must not fail, whatever the object)
        return TreePreview(type(tree).__qualname__, "")


def _size_bytes(leaf: Any) -> int:
    size_bytes = getattr(leaf, "nbytes", 0)
    return size_bytes if isinstance(size_bytes, int) else 0


def _described(leaf: Any) -> str:
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{dtype}[{','.join(map(str, shape))}]"
    if isinstance(leaf, bool | int | float | complex | str | bytes):
        start = leaf[:_MAX_VALUE] if isinstance(leaf, str | bytes) else leaf
        return shortened(repr(start), _MAX_VALUE)
    return type(leaf).__qualname__
