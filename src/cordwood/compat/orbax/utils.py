"""Functions for targets, with the names of `orbax.checkpoint.utils`."""

from __future__ import annotations

from typing import Any

from cordwood.compat.orbax.leaf_metadata import StringMetadata

__all__ = ["to_shape_dtype_struct"]


def to_shape_dtype_struct(x: Any, dtype: Any = None, scalar_dtype: Any = None) -> Any:
    """Return the `jax.ShapeDtypeStruct` of an array, with its sharding; numbers stay numbers.

    Args:
        x: an array, a `jax.ShapeDtypeStruct`, metadata of an array, or a number.
        dtype: the dtype of the result; None: that of `x`.
        scalar_dtype: the type of a number that is returned for a number; None: its type.
    """
    import jax

    if isinstance(x, bool | int | float | complex):
        return x if scalar_dtype is None else scalar_dtype(x)
    if isinstance(x, str | StringMetadata):
        return x
    shape = getattr(x, "shape", None)
    if shape is None:
        raise ValueError(f"expected an array or a number, found {type(x).__name__}")
    sharding = getattr(x, "sharding", None)
    make: Any = jax.ShapeDtypeStruct
    return make(shape, x.dtype if dtype is None else dtype, sharding=sharding)
