"""Matching of arrays without names with the leaves of `like` in jax's order, by position."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from cordwood.index import Index, Inline, Leaf, LeafKind, LeafSpec, jax_order, leaf_text
from cordwood.keypath import path_label
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.matching.explain_mismatch import mismatch_error
from cordwood.loading.matching.match_names import match_name
from cordwood.loading.matching.match_result import Matching, keeping_others
from cordwood.loading.matching.match_types import as_cast, dtypes_of_cast, fits, make_target
from cordwood.loading.matching.mismatch_lines import misfit_text
from cordwood.message_text import counted
from cordwood.tree.flatten import flatten, unflatten
from cordwood.tree.leaves import describe_leaf

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
    if options.extra != "error" or (options.missing == "keep" and not _unreadable(index)):
        raise ValueError(f"{name} holds arrays without names: all have to be there")
    flat = flatten(like)
    order = [i for i in jax_order(flat.structure) if _is_stored(flat.leaves[i])]
    problems: list[str] = []
    targets = []
    filled = []
    named = [
        leaf._replace(key_path=flat.paths[i]) for i, leaf in zip(order, index.leaves, strict=False)
    ]
    requested = dtypes_of_cast(index._replace(leaves=tuple(named)), options, name=name)
    for i, leaf in zip(order, named, strict=False):
        path = flat.paths[i]
        if leaf.kind == "unreadable":
            if options.missing == "error":
                assert isinstance(leaf.storage, Inline)
                problems.append(f"{path_label(path)}: {leaf.storage.value.reason}{_KEEPS_UNREAD}")
            continue
        spec = describe_leaf(path, flat.leaves[i], abstract=True)
        spec = as_cast(spec, leaf, requested.get(match_name(path, index.naming)))
        if spec.kind == "prng_key" and (leaf.shape, leaf.dtype) == (spec.shape, "uint32"):
            leaf = leaf._replace(kind="prng_key", prng_impl=spec.prng_impl)
        if _is_stored_number(leaf, spec) or fits(leaf, spec, options):
            targets.append(make_target(leaf, spec, flat.leaves[i], options))
            filled.append(i)
        else:
            problems.append(f"{path_label(path)}: {misfit_text(leaf, spec, options)}")
    if len(order) != len(index.leaves):
        problems.insert(0, _count(index, [path_label(flat.paths[i]) for i in order]))
    if problems:
        raise mismatch_error(problems, name)
    return keeping_others(flat, filled, targets, partial(unflatten, flat))


_KEEPS_UNREAD = ' (missing="keep" keeps that of `like`)'


def _unreadable(index: Index) -> bool:
    return any(leaf.kind == "unreadable" for leaf in index.leaves)


def _is_stored(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
        return True
    jax = sys.modules.get("jax")
    is_jax = jax is not None and isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)
    return is_jax or hasattr(leaf, "__jax_array__")


def _is_stored_number(leaf: Leaf, spec: LeafSpec) -> bool:
    return leaf.shape == () and leaf.dtype.startswith(_STORED_AS.get(spec.kind, ()))


def _count(index: Index, names: Sequence[str]) -> str:
    count = len(index.leaves)
    first = min(count, len(names))
    text = f"expected {counted(len(names), 'array')} and numbers, found {count} in the file: "
    if first < len(names):
        return f"{text}{names[first]} is the first that is not there"
    return f"{text}array {first}, {leaf_text(index.leaves[first])}, is the first one too many"
