"""The target of a stored leaf: the kind, dtype and sharding of the value to load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.index import Leaf, LeafKind

_new = tuple.__new__


class Target(NamedTuple):
    """A stored leaf, and the kind, dtype and sharding of the value to load."""

    leaf: Leaf
    kind: LeafKind
    dtype: str  # if it differs from the leaf's, the elements are converted
    weak_type: bool = False
    sharding: Any = None  # a jax Sharding or Format


def target_size_bytes(target: Target) -> int:
    """Return the size of the stored elements of a target's leaf, in bytes; 0 for a value."""
    leaf = target.leaf
    return math.prod(leaf.shape) * dtypes.itemsize(leaf.dtype) if leaf.dtype else 0


def default_targets(leaves: Sequence[Leaf], to: str | None) -> list[Target]:
    """Return targets of the kinds that were saved; `to` ("jax" or "numpy") decides for arrays."""
    if not leaves:
        return []
    _, stored_as, _, dtype_names, _, weak_types, _ = zip(*leaves, strict=True)
    kind_of = {kind: _kind_as_saved(kind, to) for kind in set(stored_as)}
    kinds = [kind_of[kind] for kind in stored_as]
    if any(weak_types):
        weak_types = tuple([w and k == "jax" for w, k in zip(weak_types, kinds, strict=True)])
    columns = zip(leaves, kinds, dtype_names, weak_types, repeat(None))
    return list(map(_new, repeat(Target), columns))


def _kind_as_saved(kind: LeafKind, to: str | None) -> LeafKind:
    if to is not None and kind in ("jax", "numpy"):
        return "jax" if to == "jax" else "numpy"
    if to == "numpy" and kind == "prng_key":
        return "numpy"
    return kind
