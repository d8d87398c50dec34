"""A checkpoint, or one leaf of it, as HTML for a notebook. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from cordwood.index import ARRAY_KINDS, Encoded, Index, Inline, Leaf, size_in_memory
from cordwood.keypath import format_path
from cordwood.message_text import counted, size_text
from cordwood.notebook.html_parts import (
    fields_html,
    fold_html,
    more_html,
    page_html,
    table_html,
)
from cordwood.notebook.tree_html import leaf_count_text, tree_html
from cordwood.plan.leaf_text import leaf_text

_MAX_METADATA = 20
_MAX_VALUE = 1000  # characters of a Python value that are turned into text


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
