"""Parts of the HTML that notebooks show: folds, tables, lines, and trees cut to some rows. Pure.

The HTML has no scripts and needs nothing from elsewhere. It has the colours of the page around it,
so it is readable on dark and on light ones. Every text is escaped, and control and bidirectional
characters are shown as escapes. Of trees it shows shapes and sizes, never elements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import islice
from typing import Any, NamedTuple

from cordwood.keypath import Key, KeyPath, format_path
from cordwood.message_text import counted, printable, shortened, size_text
from cordwood.tree.flatten import flatten

MAX_TEXT = 200  # characters of one value
_MAX_FIELDS = 60
_MAX_LINES = 8  # of a repr
_MAX_LINE_NAME = 60  # characters of a key path in it
_MAX_VALUE = 40  # of a Python value
_MAX_NAME = 80  # characters of the keys of one row
_OPEN_ROWS = 24  # a tree of at most as many rows is shown unfolded
_CELL = '<td style="text-align:left;vertical-align:top;padding:0 1em 0 0">'


def text_html(text: str, length: int = MAX_TEXT) -> str:
    r"""Return a text of at most `length` characters as HTML.

    >>> text_html("<b>\u202e")
    '&lt;b&gt;\\u202e'
    """
    return escape(shortened(text, length))


def dim_html(text: str, length: int = MAX_TEXT) -> str:
    """Return a text that is shown in a weaker colour."""
    return f'<span style="opacity:.65">{text_html(text, length)}</span>'


def fold_html(head: str, note: str, body: Iterable[str], *, is_open: bool = True) -> str:
    """Return a part that can be folded.

    Args:
        head: the text that stays when it is folded, in bold.
        note: more text beside it.
        body: the parts inside, as HTML.
        is_open: True if it is shown unfolded first.
    """
    summary = f"<b>{text_html(head)}</b> {dim_html(note, 2 * MAX_TEXT)}"
    return _details_html(summary, "".join(body), is_open=is_open)


def _details_html(summary: str, inside: str, *, is_open: bool) -> str:
    return (
        f"<details{' open' * is_open}><summary>{summary}</summary>"
        f'<div style="padding-left:1.2em">{inside}</div></details>'
    )


def page_html(*parts: str) -> str:
    """Return the parts as the whole output of a cell."""
    return f'<div style="font-family:monospace;line-height:1.4">{"".join(parts)}</div>'


def fields_html(fields: Iterable[tuple[str, str]]) -> str:
    """Return pairs of a name and a value as a table; pairs without a value are left out."""
    rows = [
        f"<tr>{_CELL}{dim_html(name)}</td>{_CELL}{text_html(value, 2 * MAX_TEXT)}</td></tr>"
        for name, value in fields
        if value
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def table_html(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts with a row of names above it."""
    lines = ["".join([f"{_CELL}{dim_html(name)}</td>" for name in columns])]
    lines += ["".join([f"{_CELL}{text_html(cell)}</td>" for cell in row]) for row in rows]
    return f"<table>{''.join([f'<tr>{line}</tr>' for line in lines])}</table>"


def more_html(count: int) -> str:
    """Return a line that counts what is not shown; "" if that is nothing."""
    return f"<div>{dim_html(f'... and {count:,} more')}</div>" if count > 0 else ""


def result_html(head: str, note: str, fields: Sequence[tuple[str, str]]) -> str:
    """Return the result of a call as the output of a cell: a fold with a table, cut to 60 rows."""
    body = [fields_html(fields[:_MAX_FIELDS]), more_html(len(fields) - _MAX_FIELDS)]
    return page_html(fold_html(head, note, body))


def differences_html(head: str, note: str, lines: Iterable[tuple[str, str]], *, hidden: int) -> str:
    """Return the differences of two trees as the output of a cell.

    Args:
        head: the verdict.
        note: what was compared.
        lines: for each difference its key path, or "", and a line that may begin with it.
        hidden: the number of differences that are not shown.
    """
    parts = []
    for key_path, line in lines:
        name = printable(key_path, keep="")
        is_named = name and line.startswith(f"{name}:")
        start = f"<b>{text_html(name)}</b>" if is_named else ""
        shown = line.removeprefix(name) if is_named else line
        parts.append(f"<div>{start}{text_html(shown, 2 * MAX_TEXT)}</div>")
    return page_html(fold_html(head, note, [*parts, more_html(hidden)]))


# Trees: an outline of their containers and leaves


class OutlineLimits(NamedTuple):
    """The part of a tree that an outline has.

    Attributes:
        rows: the largest number of rows in all.
        children: the largest number of rows of one container.
        depth: the largest number of containers inside one another that are opened.
    """

    rows: int
    children: int
    depth: int


class OutlineRow:
    """One row: a leaf, or a container with some of its children.

    Attributes:
        keys: the keys from the row above to this one; several if each container between them has
            one child only.
        leaf: the position of the leaf; None for a container.
        leaf_count: the number of leaves in it.
        size_bytes: the sum of their sizes.
        children: the rows that are shown below it.
    """

    __slots__ = ("_every", "children", "depth", "keys", "leaf", "leaf_count", "size_bytes")

    def __init__(self) -> None:
        self.keys: KeyPath = ()
        self.leaf: int | None = None
        self.leaf_count = 0
        self.size_bytes = 0
        self.children: list[OutlineRow] = []
        self.depth = 0
        self._every: dict[Key, OutlineRow] = {}  # all children, shown or not, by their keys

    @property
    def hidden(self) -> int:
        """The number of children that are not shown."""
        return len(self._every) - len(self.children)

    def add(self, path: KeyPath, leaf: int, size_bytes: int) -> None:
        """Add a leaf with its position and size to this row, which is the root."""
        row = self
        row.leaf_count += 1
        row.size_bytes += size_bytes
        for key in path:
            child = row._every.get(key)
            if child is None:
                child = row._every[key] = OutlineRow()
            row = child
            row.leaf_count += 1
            row.size_bytes += size_bytes
        row.leaf = leaf

    def show_children(self, limit: int) -> None:
        """Show at most so many children; one that has one child itself stands for that too."""
        for key, first in islice(self._every.items(), limit):
            child, keys = first, [key]
            while len(child._every) == 1 and child.leaf is None:
                ((key, child),) = child._every.items()
                keys.append(key)
            child.keys, child.depth = tuple(keys), self.depth + 1
            self.children.append(child)


def outline(
    key_paths: Sequence[KeyPath], sizes: Sequence[int], limits: OutlineLimits
) -> OutlineRow:
    """Return the outline of a tree; its root has no keys.

    Rows near the root come first: a container is opened only if all containers above its level
    are.

    Args:
        key_paths: of the leaves, in their order.
        sizes: of the leaves, in bytes.
        limits: how much of the tree is shown.
    """
    root = OutlineRow()
    for leaf, (path, size_bytes) in enumerate(zip(key_paths, sizes, strict=True)):
        root.add(path, leaf, size_bytes)
    max_rows, max_children, max_depth = limits
    queue = deque([root])
    while queue and max_rows > 0:
        row = queue.popleft()
        row.show_children(min(max_children, max_rows))
        max_rows -= len(row.children)
        queue += [each for each in row.children if each._every and each.depth < max_depth]
    return root


_LIMITS = OutlineLimits(rows=250, children=50, depth=50)  # the depth of the recursion here


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
    root = outline(key_paths, sizes, _LIMITS)
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
    head = f"{name}/ {dim_html(leaf_count_text(row.leaf_count, row.size_bytes))}"
    if not row.children:
        return f"<div>{head}</div>"
    return _details_html(head, _children_html(row, describe, is_open=is_open), is_open=is_open)


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


def tree_preview_html(tree: Any) -> tuple[str, str]:
    """Return the number and size of a tree's leaves, and the leaves as HTML: no elements."""
    try:
        flat = flatten(tree)
        sizes = [_size_bytes(leaf) for leaf in flat.leaves]
        html = tree_html(flat.paths, sizes, lambda number: _described(flat.leaves[number]))
        return leaf_count_text(len(sizes), sum(sizes)), html
    except Exception:  # noqa: BLE001  (a repr must not fail, whatever the object)
        return type(tree).__qualname__, ""


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
