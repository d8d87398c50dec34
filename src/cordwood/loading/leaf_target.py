"""The target of a stored leaf: the kind, dtype and sharding of the loaded value."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.index import Leaf, LeafKind


class Target(NamedTuple):
    """A stored leaf, and the kind, dtype and sharding of the value to load."""

    leaf: Leaf
    kind: LeafKind
    dtype: str  # if it differs from the leaf's, the elements are converted
    weak_type: bool = False
    sharding: Any = None  # a jax Sharding or Format
    axes: tuple[int, ...] | None = None  # the order of the axes, as numpy.transpose takes it


def target_size_bytes(target: Target) -> int:
    """Return the size of the stored elements of a target's leaf, in bytes; 0 for a value."""
    leaf = target.leaf
    return math.prod(leaf.shape) * dtypes.itemsize(leaf.dtype) if leaf.dtype else 0
