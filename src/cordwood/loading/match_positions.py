"""Matching of arrays without names with a `like` tree: its leaves in jax's order."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cordwood.index import Index, Leaf, LeafKind, LeafSpec, leaf_text
from cordwood.keypath import path_label
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.match_like import Matching, describe_mismatch, make_target, mismatch_error
from cordwood.message_text import counted
from cordwood.tree.flatten import flatten, unflatten
from cordwood.tree.leaves import describe_leaf
from cordwood.tree.structure import jax_order

# Python numbers are stored as arrays of these dtypes.
_STORED_AS: Mapping[LeafKind, tuple[str, ...]] = {
    "bool": ("bool",),
    "int": ("int", "uint"),
    "float": ("float", "bfloat"),
    "complex": ("complex",),
}


def match_by_position(index: Index, like: Any, options: LoadOptions, *, name: str) -> Matching:
    """Match the leaves of a checkpoint to the arrays and numbers of `like`, one after another.

    Other leaves of `like` (functions, strings) stay as they are, as in equinox. Key data becomes
    PRNG keys where `like` has PRNG keys.

    Raises:
        ValueError: `missing` or `extra` accepts differences that need names.
        MismatchError: the number of arrays differs, or the shape or dtype of an array; the
            message names all of them.
    """
    if (options.missing, options.extra) != ("error", "error"):
        raise ValueError(f"{name} holds arrays without names: all have to be there")
    flat = flatten(like)
    order = [i for i in jax_order(flat.structure) if _is_stored(flat.leaves[i])]
    problems: list[str] = []
    targets = []
    for i, leaf in zip(order, index.leaves, strict=False):
        path = flat.paths[i]
        spec = describe_leaf(path, flat.leaves[i], abstract=True)
        leaf = _as_key(leaf._replace(key_path=path), spec)
        problem = _difference(leaf, spec, options)
        if problem:
            problems.append(f"{path_label(path)}: {problem}")
        else:
            targets.append(make_target(leaf, spec, flat.leaves[i], options))
    if len(order) != len(index.leaves):
        problems.insert(0, _count(index, [path_label(flat.paths[i]) for i in order]))
    if problems:
        raise mismatch_error(problems, name)

    def rebuild(values: Sequence[Any]) -> Any:
        leaves = list(flat.leaves)
        for i, value in zip(order, values, strict=True):
            leaves[i] = value
        return unflatten(flat, leaves)

    return Matching(targets, [flat.paths[i] for i in order], rebuild)


def _is_stored(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
        return True
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return True
    return hasattr(leaf, "__jax_array__")


def _as_key(leaf: Leaf, spec: LeafSpec) -> Leaf:
    if spec.kind == "prng_key" and (leaf.shape, leaf.dtype) == (spec.shape, "uint32"):
        return leaf._replace(kind="prng_key", prng_impl=spec.prng_impl)
    return leaf


def _difference(leaf: Leaf, spec: LeafSpec, options: LoadOptions) -> str | None:
    stored_as = _STORED_AS.get(spec.kind, ())
    if leaf.shape == () and leaf.dtype.startswith(stored_as):
        return None
    return describe_mismatch(leaf, spec, options)


def _count(index: Index, names: Sequence[str]) -> str:
    count = len(index.leaves)
    first = min(count, len(names))
    text = f"expected {counted(len(names), 'array')} and numbers, found {count} in the file: "
    if first < len(names):
        return f"{text}{names[first]} is the first that is not there"
    return f"{text}array {first}, {leaf_text(index.leaves[first])}, is the first one too many"
