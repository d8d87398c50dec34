"""A checkpoint as treescope draws it, by treescope's protocol for other libraries' types."""

from __future__ import annotations

from typing import Any

from cordwood.index import Index, Leaf, size_in_memory
from cordwood.keypath import format_path
from cordwood.message_text import shortened, size_text
from cordwood.notebook.outline import OutlineRow, outline
from cordwood.notebook.tree_html import leaf_count_text
from cordwood.plan.leaf_text import leaf_text

_MAX_ROWS = 2000  # treescope draws more slowly than a plain tree
_MAX_CHILDREN = 500
_MAX_DEPTH = 16  # treescope needs some twenty frames of Python's stack for each level
_MAX_NAME = 80  # characters of the keys of one row


def treescope_checkpoint(checkpoint: str, format: str, index: Index, path: str | None) -> Any:
    """Return treescope's rendering of a checkpoint: a tree of stored leaves that can be folded.

    Args:
        checkpoint: its path or URL.
        format: the name of its format.
        index: its contents.
        path: treescope's expression for the checkpoint, to which those of the leaves are added.
    """
    from treescope import rendering_parts as parts

    leaves = index.leaves
    sizes = [size_in_memory(leaf) for leaf in leaves]
    key_paths = [leaf.key_path for leaf in leaves]
    root = outline(
        key_paths,
        sizes,
        max_rows=_MAX_ROWS,
        max_children=_MAX_CHILDREN,
        max_depth=_MAX_DEPTH,
    )

    def draw(row: OutlineRow) -> Any:
        name = shortened(format_path(row.keys) or "(the root)", _MAX_NAME)
        if row.leaf is not None:
            key_path = format_path(key_paths[row.leaf])
            of_leaf = None if path is None else f"{path}[{key_path!r}]"
            return treescope_leaf(leaves[row.leaf], of_leaf, name=name)
        note = leaf_count_text(row.leaf_count, row.size_bytes)
        if not row.children:
            return parts.siblings(f"{name}/ ", parts.comment_color(parts.text(note)))
        return parts.build_foldable_tree_node_from_children(
            prefix=parts.siblings(f"{name}/ ", parts.comment_color(parts.text(note)), " {"),
            children=_children(row),
            suffix="}",
            comma_separated=True,
        )

    def _children(row: OutlineRow) -> list[Any]:
        if row.leaf is not None:
            return [draw(row)]
        more = f"... and {row.hidden:,} more"
        return [*map(draw, row.children), *([parts.text(more)] if row.hidden else [])]

    note = leaf_count_text(len(leaves), sum(sizes))
    head = f"<{format} checkpoint {shortened(checkpoint, 200)}: {note} {{"
    return parts.build_foldable_tree_node_from_children(
        prefix=head,
        children=_children(root),
        suffix="}>",
        comma_separated=True,
        path=path,
        expand_state=parts.ExpandState.WEAKLY_EXPANDED,
    )


def treescope_leaf(leaf: Leaf, path: str | None, *, name: str | None = None) -> Any:
    """Return treescope's rendering of one leaf: a line with its type, and a copy button.

    Args:
        leaf: the leaf.
        path: treescope's expression for it, which the button copies.
        name: the name to show. None: its key path.
    """
    from treescope import rendering_parts as parts

    if name is None:
        name = shortened(format_path(leaf.key_path) or "(the root)", _MAX_NAME)
    size_bytes = size_in_memory(leaf)
    size = f"  {size_text(size_bytes)}" if size_bytes else ""
    line = parts.siblings(f"{name}: {leaf_text(leaf)}", parts.comment_color(parts.text(size)))
    return parts.build_one_line_tree_node(line, path)
