"""The share of a mapped load whose arrays are in the file's own pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

__all__ = ["aliased_share"]


def aliased_share(tree: Any, path: Path) -> float:
    """Return the share of the arrays' bytes that are in this process's mapping of `path`."""
    ranges = _mappings_of(path)
    total = aliased = 0
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            total += leaf.nbytes
            address = leaf.unsafe_buffer_pointer()
            if any(start <= address and address + leaf.nbytes <= stop for start, stop in ranges):
                aliased += leaf.nbytes
    return aliased / total if total else 1.0


def _mappings_of(path: Path) -> list[tuple[int, int]]:
    name = str(path.resolve())
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] == name:
            start, stop = fields[0].split("-")
            ranges.append((int(start, 16), int(stop, 16)))
    return ranges
