"""The values beside a golden file, as its tool reads them: one .npz for each case.

A member is named by the keys of its leaf, joined by '/'. A dtype that numpy does not have is after
a ':' at the end of the name, and its elements are unsigned integers. `read_values` undoes that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SUFFIX = ".values.npz"


def write_values(case: Path, tree: Any) -> None:
    """Write the leaves of nested dicts, lists and tuples beside a case, `golden/x-1.0/CASE`."""
    members: dict[str, Any] = {}
    for name, value in leaves_of(tree):
        array = np.asarray(value)
        if array.dtype.isbuiltin != 1 and array.dtype.kind not in "mM":
            name = f"{name}:{array.dtype.name}"
            array = array.view(f"u{array.dtype.itemsize}")
        members[name] = array
    np.savez_compressed(case.parent / (case.name + SUFFIX), **members)


def read_values(case: Path) -> dict[str, np.ndarray]:
    """Return the leaves that were written beside a case, by name."""
    import ml_dtypes  # noqa: F401 - gives numpy the names of its types

    with np.load(case.parent / (case.name + SUFFIX), allow_pickle=False) as members:
        values = {}
        for name, array in members.items():
            name, _, dtype = name.partition(":")
            values[name] = array.view(dtype) if dtype else array
    return values


def leaves_of(tree: Any, path: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """Return the names of the leaves of nested dicts, lists and tuples, and the leaves."""
    if isinstance(tree, dict):
        children = list(tree.items())
    elif isinstance(tree, (list, tuple)):
        children = list(enumerate(tree))
    elif tree is None:
        children = []
    else:
        return [("/".join(path), tree)]
    return [leaf for key, child in children for leaf in leaves_of(child, (*path, str(key)))]
