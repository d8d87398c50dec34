"""The files of zarr arrays: metadata and chunks, by their paths."""

from __future__ import annotations

import re
from collections.abc import Sequence

ARRAY_METADATA = (".zarray", "zarr.json")  # of zarr 2 and 3
_METADATA = {*ARRAY_METADATA, ".zattrs", ".zgroup", ".zmetadata"}
_CHUNK = re.compile(r"\d+(?:[./]\d+)*|c(?:[./]\d+)*")


def array_files(names: Sequence[str]) -> set[str]:
    """Return those of the paths that are metadata or chunks of arrays.

    >>> sorted(array_files(["w/.zarray", "w/0.0", "w/notes", "eval/0"]))
    ['w/.zarray', 'w/0.0']
    """
    arrays = {name.rpartition("/")[0] for name in names if _last(name) in ARRAY_METADATA}
    return {name for name in names if _last(name) in _METADATA or _is_chunk(name, arrays)}


def _is_chunk(name: str, arrays: set[str]) -> bool:
    parts = name.split("/")
    return any(
        "/".join(parts[:depth]) in arrays and _CHUNK.fullmatch("/".join(parts[depth:]))
        for depth in range(len(parts))
    )


def _last(name: str) -> str:
    return name.rpartition("/")[2]
