"""What a stored leaf is to become."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.index import Leaf, LeafKind


class Target(NamedTuple):
    """What a stored leaf is to become."""

    leaf: Leaf
    kind: LeafKind
    dtype: str  # other than the leaf's: converted
    weak_type: bool = False
    sharding: Any = None  # a jax Sharding or Format
    axes: tuple[int, ...] | None = None  # in this order, as numpy.transpose takes them


def target_size_bytes(target: Target) -> int:
    """How many bytes the elements take that are read for it, if all are; 0 for a value."""
    leaf = target.leaf
    return math.prod(leaf.shape) * dtypes.itemsize(leaf.dtype) if leaf.dtype else 0
