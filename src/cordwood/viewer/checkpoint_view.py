"""The resource of one checkpoint: its leaves as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from cordwood.formats.table import by_name
from cordwood.index import Index, size_in_memory
from cordwood.io.progress import Report
from cordwood.keypath import format_paths
from cordwood.threads.garbage_collector import gc_paused
from cordwood.viewer.json_columns import encode_columns
from cordwood.viewer.sources import Sources
from cordwood.viewer.value_text import dtype_text, shape_of_value, split_path, value_text
from cordwood.viewer.verify_view import is_checked

_MAX_FILES = 4096
_MAX_VALUE = 200  # characters of a value in the list of leaves


def checkpoint_view(sources: Sources, report: Report | None, *, source: str) -> dict[str, object]:  # noqa: ARG001
    """Return sizes, metadata and files of a checkpoint, and its leaves column by column."""
    with sources.checkpoint(source) as checkpoint, gc_paused():
        index = checkpoint.index
        leaves = index.leaves
        shardings = list(dict.fromkeys(index.shardings.values()))
        dtype_bytes: Counter[str] = Counter()
        for leaf in leaves:
            dtype_bytes[dtype_text(leaf)] += size_in_memory(leaf)
        format = by_name(checkpoint.format)
        largest = sorted(index.sources, key=lambda each: -each.size_bytes)[:_MAX_FILES]
        return {
            "path": checkpoint.path,
            "format": checkpoint.format,
            "description": "" if format is None else format.description,
            "leaf_count": len(leaves),
            "size_bytes": sum(dtype_bytes.values()),
            "stored_bytes": sum([each.size_bytes for each in index.sources]),
            "dtypes": dtype_bytes,
            "digests": _digests(index),
            "metadata": dict(checkpoint.metadata),
            "files": [{"name": each.name, "size_bytes": each.size_bytes} for each in largest],
            "file_count": len(index.sources),
            "leaves": encode_columns(partial(_leaf_columns, index, shardings), len(leaves)),
            "shardings": shardings,
        }


def _leaf_columns(
    index: Index, shardings: Sequence[str], numbers: range
) -> dict[str, Sequence[object]]:
    """Return the columns of some leaves: of each, one row."""
    leaves = index.leaves[numbers.start : numbers.stop]
    paths = format_paths([leaf.key_path for leaf in leaves])
    number_of = {text: number for number, text in enumerate(shardings)}
    return {
        "path": paths,
        "keys": [split_path(path, index.naming) for path in paths],
        "kind": [leaf.kind for leaf in leaves],
        "dtype": [dtype_text(leaf) for leaf in leaves],
        "shape": [shape_of_value(leaf) for leaf in leaves],
        "size_bytes": [size_in_memory(leaf) for leaf in leaves],
        "value": [value_text(leaf, _MAX_VALUE) for leaf in leaves],
        "sharding": [
            number_of[index.shardings[i]] if i in index.shardings else -1 for i in numbers
        ],
    }


def _digests(index: Index) -> str:
    """Return how many of the files have digests or checksums: "all", "some" or "none"."""
    checked = [is_checked(source) for source in index.sources if source.size_bytes]
    return "all" if all(checked) else "some" if any(checked) else "none"
