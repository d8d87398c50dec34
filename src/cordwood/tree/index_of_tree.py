"""The index of a tree in memory: its structure, and its leaves as inline values."""

from __future__ import annotations

from typing import Any

from cordwood.errors import UnsupportedLeafError
from cordwood.index import Index, Inline, Leaf, LeafSpec
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf


def index_of_tree(tree: Any, *, remote_advice: str = "", abstract: bool = False) -> Index:
    """Return the index of a tree.

    Args:
        tree: the tree.
        remote_advice: what to do about arrays with parts on other processes, for the error.
        abstract: True for a tree of which types alone are needed, such as a `like`: leaves may be
            jax.ShapeDtypeStructs, and those that no checkpoint can hold have the kind "opaque".

    Raises UnsupportedLeafError, unless `abstract`, for a leaf that no checkpoint can hold.
    """
    flat = flatten(tree)
    leaves = []
    for path, value in zip(flat.paths, flat.leaves, strict=True):
        try:
            spec = describe_leaf(path, value, abstract=abstract, remote_advice=remote_advice)
        except UnsupportedLeafError:
            if not abstract:
                raise
            spec = LeafSpec(path, "opaque", (), "")
        _, kind, shape, dtype, weak_type, impl, _ = spec
        leaves.append(Leaf(path, kind, shape, dtype, Inline(value), weak_type, impl))
    return Index("tree", flat.structure, tuple(leaves), ())
