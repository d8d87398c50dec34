"""The resources `start` and `checkpoint`: what was opened, and all leaves of a checkpoint."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from cordwood.formats.registry import by_name
from cordwood.formats.step_directories import step_number
from cordwood.index import ARRAY_KINDS, Index, Inline, Leaf, Naming, Source, size_in_memory
from cordwood.io.pause_python_gc import gc_paused
from cordwood.io.progress import Report
from cordwood.keypath import format_paths, key_literal
from cordwood.viewer.sources import Sources

_MAX_FILES = 4096
_MAX_VALUE = 200  # characters of a value in the list of leaves


def start_view(sources: Sources, report: Report | None) -> dict[str, Any]:  # noqa: ARG001
    """Return what was opened: the kind, the names of the sources and their paths."""
    paths = [sources.root] if sources.kind == "run" else list(sources.paths.values())
    options: list[str] = []
    if sources.arguments.format is not None:
        options += ["--format", sources.arguments.format]
    if sources.arguments.prefix is not None:
        options += ["--prefix", sources.arguments.prefix]
    return {
        "kind": sources.kind,
        "title": " and ".join(map(_title, paths)),
        "version": version("cordwood"),
        "sources": list(sources.paths),
        "paths": dict(sources.paths),
        "command": shlex.join(["cordwood", "view", *paths, *options]),
        "exported": False,
    }


def _title(path: str) -> str:
    """Return a short name of a checkpoint: that of its file, or of its run and its step.

    >>> _title("models/a.safetensors"), _title("runs/gpt2/100/")
    ('a.safetensors', 'gpt2/100')
    """
    rest, _, name = path.rstrip("/").rpartition("/")
    run = rest.rpartition("/")[2]
    return f"{run}/{name}" if run and step_number(name) is not None else name or path


def checkpoint_view(sources: Sources, report: Report | None, *, source: str) -> dict[str, Any]:  # noqa: ARG001
    """Return sizes, metadata and files of a checkpoint, and its leaves column by column."""
    with sources.checkpoint(source) as checkpoint, gc_paused():
        index = checkpoint.index
        shardings = list(dict.fromkeys(index.shardings.values()))
        number_of = {text: number for number, text in enumerate(shardings)}
        leaves = index.leaves
        paths = format_paths([leaf.key_path for leaf in leaves])
        sizes = [size_in_memory(leaf) for leaf in leaves]
        dtype_bytes: dict[str, int] = {}
        for leaf, size in zip(leaves, sizes, strict=True):
            name = dtype_text(leaf)
            dtype_bytes[name] = dtype_bytes.get(name, 0) + size
        format = by_name(checkpoint.format)
        largest = sorted(index.sources, key=lambda each: -each.size_bytes)[:_MAX_FILES]
        return {
            "path": checkpoint.path,
            "format": checkpoint.format,
            "description": "" if format is None else format.description,
            "leaf_count": len(leaves),
            "size_bytes": sum(sizes),
            "stored_bytes": sum([each.size_bytes for each in index.sources]),
            "dtypes": dtype_bytes,
            "digests": _digests(index),
            "metadata": dict(checkpoint.metadata),
            "files": [{"name": each.name, "size_bytes": each.size_bytes} for each in largest],
            "file_count": len(index.sources),
            "leaves": {
                "path": paths,
                "keys": [split_path(path, index.naming) for path in paths],
                "kind": [leaf.kind for leaf in leaves],
                "dtype": [dtype_text(leaf) for leaf in leaves],
                "shape": [shape_of_value(leaf) for leaf in leaves],
                "size_bytes": sizes,
                "value": [value_text(leaf, _MAX_VALUE) for leaf in leaves],
                "sharding": [
                    number_of[index.shardings[i]] if i in index.shardings else -1
                    for i in range(len(leaves))
                ],
            },
            "shardings": shardings,
        }


def split_path(path: str, naming: Naming) -> list[str]:
    """Return the keys of a key path as text; names that a format has joined are split.

    >>> split_path("params/w", "exact"), split_path("layers.0.w", "dotted")
    (['params', 'w'], ['layers', '0', 'w'])
    """
    if naming == "dotted":
        return path.split(".")
    if naming == "slashed":
        return path.replace("%2F", "/").split("/")
    return path.split("/")


def dtype_text(leaf: Leaf) -> str:
    """Return the dtype of an array, or the kind of any other leaf."""
    if leaf.kind == "prng_key":
        return f"key<{leaf.prng_impl}>"
    return leaf.dtype if leaf.kind in ARRAY_KINDS else leaf.kind


def value_text(leaf: Leaf, length: int) -> str | None:
    """Return the value of a leaf that the index holds, as text; None if it does not hold it."""
    if not isinstance(leaf.storage, Inline):
        return None
    text = key_literal(leaf.storage.value)
    return text if len(text) <= length else f"{text[:length]}..."


def shape_of_value(leaf: Leaf) -> Sequence[int]:
    """Return the shape of an array; of PRNG keys, without the axis of their data."""
    return leaf.shape[:-1] if leaf.kind == "prng_key" else leaf.shape


def _digests(index: Index) -> str:
    """Return how many of the files have digests or checksums: "all", "some" or "none"."""
    checked = [is_checked(source) for source in index.sources if source.size_bytes]
    return "all" if all(checked) else "some" if any(checked) else "none"


def is_checked(source: Source) -> bool:
    """Return True if the bytes of a file have digests or checksums."""
    return source.digests is not None or source.header_digest is not None or bool(source.checksums)
