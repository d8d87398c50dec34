"""What a stored leaf is to become."""

from __future__ import annotations

from typing import Any, NamedTuple

from cordwood.index import Leaf, LeafKind

__all__ = ["Target"]


class Target(NamedTuple):
    """What a stored leaf is to become."""

    leaf: Leaf
    kind: LeafKind
    dtype: str  # other than the leaf's: converted
    weak_type: bool = False
    sharding: Any = None  # a jax Sharding or Format
