"""A tree in a notebook or a repr: an outline of its containers and leaves, cut to some rows. Pure.

Shapes and sizes are shown, never elements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from cordwood.keypath import Key, KeyPath, format_path
from cordwood.message_text import counted, shortened, size_text
from cordwood.notebook.html_parts import dim_html, more_html, text_html
from cordwood.tree.flatten import flatten

_MAX_LINES = 8  # of a repr
_MAX_LINE_NAME = 60  # characters of a key path in it
_MAX_VALUE = 40  # of a Python value
_MAX_ROWS = 250
_MAX_CHILDREN = 50
_MAX_DEPTH = 50  # of the recursion here
_MAX_NAME = 80  # characters of the keys of one row
_OPEN_ROWS = 24  # a tree of at most as many rows is shown unfolded


class OutlineRow(NamedTuple):
    """One row: a leaf, or a container with some of its children.

    Attributes:
        keys: the keys from the row above to this one; several if each container between them has
            one child only.
        leaf: the position of the leaf; None for a container.
        leaf_count: the number of leaves in it.
        size_bytes: the sum of their sizes.
        children: the rows that are shown below it.
        hidden: the number of children that are not shown.
    """

    keys: KeyPath
    leaf: int | None
    leaf_count: int
    size_bytes: int
    children: Sequence[OutlineRow]
    hidden: int


class _Node:
    """A node of the whole tree."""

    __slots__ = ("children", "depth", "keys", "leaf", "leaf_count", "shown", "size_bytes")

    def __init__(self) -> None:
        self.children: dict[Key, _Node] = {}
        self.leaf: int | None = None
        self.leaf_count = 0
        self.size_bytes = 0
        self.keys: KeyPath = ()
        self.depth = 0
        self.shown: list[_Node] = []


def outline(
    key_paths: Sequence[KeyPath],
    sizes: Sequence[int],
    *,
    max_rows: int,
    max_children: int,
    max_depth: int,
) -> OutlineRow:
    """Return the outline of a tree; its root has no keys.

    Rows near the root come first: a container is opened only if all containers above its level
    are.

    Args:
        key_paths: of the leaves, in their order.
        sizes: of the leaves, in bytes.
        max_rows: the largest number of rows in all.
        max_children: the largest number of rows of one container.
        max_depth: the largest number of containers inside one another that are opened.
    """
    root = _Node()
    for leaf, (path, size_bytes) in enumerate(zip(key_paths, sizes, strict=True)):
        node = root
        node.leaf_count += 1
        node.size_bytes += size_bytes
        for key in path:
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node()
            node = child
            node.leaf_count += 1
            node.size_bytes += size_bytes
        node.leaf = leaf
    queue = deque([root])
    order = []
    while queue and max_rows > 0:
        node = queue.popleft()
        order.append(node)
        for key, first in islice(node.children.items(), min(max_children, max_rows)):
            child, keys = first, [key]
            while len(child.children) == 1 and child.leaf is None:
                ((key, child),) = child.children.items()
                keys.append(key)
            child.keys, child.depth = tuple(keys), node.depth + 1
            node.shown.append(child)
            if child.children and child.depth < max_depth:
                queue.append(child)
        max_rows -= len(node.shown)
    rows: dict[int, OutlineRow] = {}
    for node in reversed(order):  # the children of a node come after it
        rows[id(node)] = _row(node, [rows.get(id(each)) or _row(each, ()) for each in node.shown])
    return rows[id(root)] if rows else _row(root, ())


def _row(node: _Node, children: Sequence[OutlineRow]) -> OutlineRow:
    hidden = len(node.children) - len(children)
    return OutlineRow(
        node.keys, node.leaf, node.leaf_count, node.size_bytes, tuple(children), hidden
    )


def tree_html(
    key_paths: Sequence[KeyPath], sizes: Sequence[int], describe: Callable[[int], str]
) -> str:
    """Return the leaves of a tree below their containers, with sums of sizes.

    Args:
        key_paths: of the leaves, in their order.
        sizes: of the leaves, in bytes.
        describe: returns the type of a leaf by its position; it is called for leaves that are
            shown.
    """
    root = outline(
        key_paths,
        sizes,
        max_rows=_MAX_ROWS,
        max_children=_MAX_CHILDREN,
        max_depth=_MAX_DEPTH,
    )
    if root.leaf is not None:
        return _row_html(root, describe, is_open=False)
    is_open = _count(root) <= _OPEN_ROWS
    return _children_html(root, describe, is_open=is_open)


def leaf_count_text(leaf_count: int, size_bytes: int) -> str:
    """Return the number of leaves and their size.

    >>> leaf_count_text(12000, 1 << 20)
    '12,000 leaves, 1.0 MiB'
    """
    count = "1 leaf" if leaf_count == 1 else f"{leaf_count:,} leaves"
    return f"{count}, {size_text(size_bytes)}"


def _count(row: OutlineRow) -> int:
    return len(row.children) + sum(map(_count, row.children))


def _children_html(row: OutlineRow, describe: Callable[[int], str], *, is_open: bool) -> str:
    parts = [_row_html(each, describe, is_open=is_open) for each in row.children]
    return "".join([*parts, more_html(row.hidden)])


def _row_html(row: OutlineRow, describe: Callable[[int], str], *, is_open: bool) -> str:
    name = text_html(format_path(row.keys) or "(the root)", _MAX_NAME)
    if row.leaf is not None:
        note = f"{describe(row.leaf)}  {size_text(row.size_bytes)}" if row.size_bytes else ""
        return f"<div>{name} {dim_html(note or describe(row.leaf))}</div>"
    note = leaf_count_text(row.leaf_count, row.size_bytes)
    if not row.children:
        return f"<div>{name}/ {dim_html(note)}</div>"
    inside = _children_html(row, describe, is_open=is_open)
    return (
        f"<details{' open' * is_open}><summary>{name}/ {dim_html(note)}</summary>"
        f'<div style="padding-left:1.2em">{inside}</div></details>'
    )


def leaf_lines(rows: Iterable[tuple[str, ...]], count: int) -> list[str]:
    """Return an indented line for each of the first leaves, and one that counts the others.

    Args:
        rows: for each leaf its key path and the other columns.
        count: the number of all leaves.
    """
    cells = [
        [shortened(name or "(the root)", _MAX_LINE_NAME), *others]
        for name, *others in islice(rows, _MAX_LINES)
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
            for path, leaf in islice(zip(flat.paths, flat.leaves, strict=True), _MAX_LINES)
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
