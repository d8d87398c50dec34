"""The type of a stored leaf beside that of a leaf of `like`, and the target to load it into."""

from __future__ import annotations

import sys
from typing import Any

from cordwood.index import (
    ARRAY_KINDS,
    Index,
    Inline,
    Leaf,
    LeafSpec,
    Unreadable,
    leaf_text,
)
from cordwood.keypath import format_path
from cordwood.loading.cast import requested_dtypes, same_kind_of_number
from cordwood.loading.load_request import LoadOptions, Target
from cordwood.loading.match_hints import (
    cast_hint,
    prng_key_hint,
    python_number_hint,
)
from cordwood.loading.match_names import match_name

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


def describe_mismatch(leaf: Leaf, spec: LeafSpec, options: LoadOptions) -> str | None:
    """Return why a stored leaf does not match a leaf of `like`; None if it matches."""
    if isinstance(leaf.storage, Inline) and isinstance(leaf.storage.value, Unreadable):
        return (
            f"expected {leaf_text(spec)}, found one not to be read: {leaf.storage.value.reason}; "
            f'to keep that of `like`, pass select="!{format_path(leaf.key_path)}", missing="keep"'
        )
    arrays = leaf.kind in ARRAY_KINDS, spec.kind in ARRAY_KINDS
    keys = "prng_key" in (leaf.kind, spec.kind)
    if arrays == (True, True) and not keys and leaf[2:4] == spec[2:4]:  # shape and dtype
        return None  # most leaves: no text is made for them
    cast = options.casts_to_like
    if arrays == (False, False) and leaf.kind == spec.kind:
        return None
    expected = f"expected {leaf_text(spec)}, found {leaf_text(leaf)}"
    if arrays == (False, False):
        return expected
    if keys and (leaf.kind != spec.kind or leaf.prng_impl != spec.prng_impl):
        return expected + prng_key_hint(leaf, spec)
    if arrays == (True, True):
        if leaf.shape != spec.shape:
            return expected
        if leaf.dtype != spec.dtype and not cast:
            return f"{expected} ({cast_hint(leaf, spec, options.cast)})"
        return None
    if leaf.shape == spec.shape == () and {leaf.kind, spec.kind} & _NUMBERS and not keys:
        return None if cast else f"{expected} ({python_number_hint(leaf, spec)})"
    return expected


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
