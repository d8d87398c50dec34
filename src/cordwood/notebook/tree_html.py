"""The leaves of a tree as HTML that can be folded, a few hundred rows at most. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cordwood.keypath import KeyPath, format_path
from cordwood.message_text import size_text
from cordwood.notebook.html_parts import dim_html, more_html, text_html
from cordwood.notebook.outline import OutlineRow, outline

_MAX_ROWS = 250
_MAX_CHILDREN = 50
_MAX_DEPTH = 50  # of the recursion here
_MAX_NAME = 80  # characters of the keys of one row
_OPEN_ROWS = 24  # a tree of at most as many rows is shown unfolded


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
