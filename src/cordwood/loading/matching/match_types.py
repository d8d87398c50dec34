"""The type of a stored leaf beside that of a leaf of `like`, and the target to load it into."""

from __future__ import annotations

import sys
from typing import Any

from cordwood.index import ARRAY_KINDS, Index, Inline, Leaf, LeafSpec, Unreadable
from cordwood.loading.cast import requested_dtypes, same_kind_of_number
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_target import Target
from cordwood.loading.matching.match_names import match_name

_NUMBERS = frozenset({"bool", "int", "float", "complex"})


def dtypes_of_cast(index: Index, options: LoadOptions, *, name: str) -> dict[Any, str]:
    """Return the dtypes that `cast` requests, whatever those of `like` are, by match names."""
    if options.cast is None or isinstance(options.cast, bool):
        return {}
    paths = [leaf.key_path for leaf in index.leaves]
    requested = requested_dtypes(index.leaves, paths, options.cast, naming=index.naming, where=name)
    return {
        match_name(path, index.naming): dtype
        for path, dtype in zip(paths, requested, strict=True)
        if dtype is not None
    }


def as_cast(spec: LeafSpec, leaf: Leaf, requested: str | None) -> LeafSpec:
    """Return the spec with the stored dtype, which the load casts, if `like` allows for that."""
    if requested is None or not spec.dtype:
        return spec
    if requested == spec.dtype or same_kind_of_number(leaf.dtype, spec.dtype):
        return spec._replace(dtype=leaf.dtype)
    return spec


def is_abstract(leaf: Any) -> bool:
    """Return True if a leaf of `like` has a shape and a dtype, but no value to keep."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(leaf, jax.ShapeDtypeStruct)


def fits(leaf: Leaf, spec: LeafSpec, options: LoadOptions) -> bool:
    """Return True if a stored leaf matches a leaf of `like`."""
    if isinstance(leaf.storage, Inline) and isinstance(leaf.storage.value, Unreadable):
        return False
    arrays = leaf.kind in ARRAY_KINDS, spec.kind in ARRAY_KINDS
    keys = "prng_key" in (leaf.kind, spec.kind)
    if arrays == (True, True) and not keys and leaf[2:4] == spec[2:4]:  # shape and dtype
        return True  # most leaves
    if arrays == (False, False):
        return leaf.kind == spec.kind
    if keys and (leaf.kind != spec.kind or leaf.prng_impl != spec.prng_impl):
        return False
    if arrays == (True, True):
        return leaf.shape == spec.shape and (leaf.dtype == spec.dtype or options.casts_to_like)
    return is_number_beside_array(leaf, spec) and options.casts_to_like


def is_number_beside_array(leaf: Leaf, spec: LeafSpec) -> bool:
    """Return True if one of the two is a Python number, and the other has the shape ()."""
    kinds = {leaf.kind, spec.kind}
    return leaf.shape == spec.shape == () and bool(kinds & _NUMBERS) and "prng_key" not in kinds


def make_target(leaf: Leaf, spec: LeafSpec, like: Any, options: LoadOptions) -> Target:
    """Return the target of a stored leaf that matches the leaf `like`, whose spec is `spec`."""
    kind = spec.kind if leaf.kind in ARRAY_KINDS or spec.kind in ARRAY_KINDS else leaf.kind
    to = options.to
    if to is not None and kind in ("jax", "numpy"):
        kind = to
    if kind == "numpy_scalar" and leaf.shape:
        kind = "numpy"
    sharding = _sharding(like, leaf) if kind in ("jax", "prng_key") else None
    dtype = spec.dtype if spec.dtype and (options.casts_to_like or not leaf.dtype) else leaf.dtype
    return Target(leaf, kind, dtype, spec.weak_type and kind == "jax", sharding)


def _sharding(like: Any, leaf: Leaf) -> Any:
    """Return the sharding that a leaf of `like` is committed to; None if it is not committed.

    For a ShapeDtypeStruct with a layout other than the default one, return its Format.
    """
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(like, jax.Array):
        return like.sharding if like.committed else None
    format = getattr(like, "format", None)
    layout = getattr(format, "layout", None)
    if layout is not None:
        usual = tuple(range(len(leaf.shape)))
        if len(layout.major_to_minor) == len(usual) and layout.major_to_minor != usual:
            return format
    return getattr(like, "sharding", None)
