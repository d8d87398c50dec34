"""What a leaf becomes on the host: another dtype, a scalar, a Python value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.api.target import Target
from cordwood.errors import MismatchError
from cordwood.keypath import format_path

__all__ = ["as_kind", "convert", "inline_value"]


def inline_value(value: Any, target: Target) -> Any:
    """A stored Python value, or the array of shape () that it is to become."""
    if not target.dtype:
        return value
    array = convert(np.asarray(value), target)
    return array if target.kind == "jax" else as_kind(array, target)


_PYTHON_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
}


def as_kind(array: np.ndarray[Any, Any], target: Target) -> Any:
    """A host array as what a target is to be, jax arrays aside."""
    if target.kind == "numpy":
        return array
    if target.kind == "numpy_scalar":
        return array[()]
    if target.kind == "bytes":
        return array.tobytes()
    if target.kind == "str":
        return array.tobytes().decode("utf-8", "surrogatepass")
    stored = array.item()
    number = _PYTHON_NUMBERS[target.kind](stored)
    if number != stored and stored == stored:
        raise _would_change(target, target.kind)
    return number


def _would_change(target: Target, wanted: str) -> MismatchError:
    return MismatchError(
        f"{format_path(target.leaf.key_path)}: casting {target.leaf.dtype or target.leaf.kind} "
        f"to {wanted} would change values; load it as it is and convert it yourself"
    )


def convert(array: np.ndarray[Any, Any], target: Target) -> np.ndarray[Any, Any]:
    wanted = dtypes.to_numpy(target.dtype)
    with np.errstate(all="ignore"):
        result = array.astype(wanted)
        exact = target.dtype.startswith(("int", "uint", "bool"))
        exact = exact or (np.iscomplexobj(array) and not np.iscomplexobj(result))
        if exact and not _same_values(result, array):
            raise _would_change(target, target.dtype)
    return result


def _same_values(result: np.ndarray[Any, Any], array: np.ndarray[Any, Any]) -> bool:
    same = np.array_equal(result.astype(array.dtype), array)
    if np.iscomplexobj(array) or array.dtype.kind == "b":
        return same
    # A negative number wraps round into an unsigned one, and back.
    return same and np.array_equal(result < 0, array < 0)
