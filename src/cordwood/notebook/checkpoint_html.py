"""A checkpoint, or one leaf of it, as HTML for a notebook, and as treescope draws it. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from cordwood.index import ARRAY_KINDS, Encoded, Index, Inline, Leaf, leaf_text, size_in_memory
from cordwood.keypath import format_path
from cordwood.message_text import counted, shortened, size_text
from cordwood.notebook.html_parts import (
    OutlineLimits,
    OutlineRow,
    fields_html,
    fold_html,
    leaf_count_text,
    more_html,
    outline,
    page_html,
    table_html,
    tree_html,
)

_MAX_METADATA = 20
_MAX_VALUE = 1000  # characters of a Python value that are turned into text
# treescope draws more slowly than a plain tree, and needs some twenty frames of Python's stack for
# each level.
_TREESCOPE_LIMITS = OutlineLimits(rows=2000, children=500, depth=16)
_MAX_NAME = 80  # characters of the keys of one row


def checkpoint_html(path: str, format: str, index: Index) -> str:
    """Return a checkpoint as HTML: one line, and below it the tree with sizes, and metadata."""
    leaves = index.leaves
    sizes = [size_in_memory(leaf) for leaf in leaves]
    by_dtype: Counter[str] = Counter()
    for leaf, size_bytes in zip(leaves, sizes, strict=True):
        if size_bytes:
            by_dtype[leaf.dtype] += size_bytes
    amounts = [f"{dtype} {size_text(size)}" for dtype, size in by_dtype.most_common(4)]
    note = f"{path}: {leaf_count_text(len(leaves), sum(sizes))}"
    if len(by_dtype) > 1:
        note += f" ({', '.join(amounts)}{', ...' * (len(by_dtype) > 4)})"
    tree = tree_html(
        [leaf.key_path for leaf in leaves], sizes, lambda number: leaf_text(leaves[number])
    )
    return page_html(
        fold_html(f"{format} checkpoint", note, [tree]), _metadata_html(index.metadata)
    )


def _metadata_html(metadata: Mapping[str, str]) -> str:
    if not metadata:
        return ""
    shown = list(metadata.items())[:_MAX_METADATA]
    body = [table_html(["name", "value"], shown), more_html(len(metadata) - len(shown))]
    return fold_html("metadata", counted(len(metadata), "entry", "entries"), body, is_open=False)


def leaf_html(path: str, format: str, index: Index, leaf: Leaf, sharding: str) -> str:
    """Return one leaf as HTML: its type in one line, and below it what else is stored about it."""
    storage = leaf.storage
    size_bytes = size_in_memory(leaf)
    fields = [
        ("checkpoint", f"{path} ({format})"),
        ("kind", leaf.kind),
        ("size", size_text(size_bytes) if leaf.kind in ARRAY_KINDS else ""),
        ("elements", f"{math.prod(leaf.shape):,}" if leaf.kind in ARRAY_KINDS else ""),
        ("weak type", "yes" if leaf.weak_type else ""),
        ("sharding", sharding),
    ]
    if isinstance(storage, Inline):
        value = storage.value
        value = value[:_MAX_VALUE] if isinstance(value, str | bytes) else value
        fields.append(("value", repr(value)))
    elif storage.pieces:
        stored_bytes = sum([piece.length for piece in storage.pieces])
        names = dict.fromkeys([index.sources[piece.source].name for piece in storage.pieces])
        files = ", ".join(list(names)[:3]) + ", ..." * (len(names) > 3)
        what = "chunk" if isinstance(storage, Encoded) else "piece"
        pieces = counted(len(storage.pieces), what)
        fields.append(("stored as", f"{size_text(stored_bytes)} in {pieces}: {files}"))
    name = format_path(leaf.key_path) or "(the root)"
    return page_html(fold_html(name, leaf_text(leaf), [fields_html(fields)]))


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
    root = outline(key_paths, sizes, _TREESCOPE_LIMITS)

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
