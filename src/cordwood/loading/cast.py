"""Conversions of leaves: the option `cast`, and elements of other dtypes and kinds on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from cordwood import dtypes
from cordwood.errors import MismatchError
from cordwood.index import Leaf, Naming
from cordwood.keypath import KeyPath, format_path
from cordwood.loading.load_options import Cast
from cordwood.loading.load_target import Target
from cordwood.message_text import first_names
from cordwood.plan.path_patterns import match_patterns, path_name, pattern_name
from cordwood.plan.path_spellings import plain_name, plain_pattern

_ARRAYS = frozenset({"jax", "numpy", "numpy_scalar"})


def cast_targets(
    targets: Sequence[Target], paths: Sequence[KeyPath], cast: Cast, *, naming: Naming, where: str
) -> list[Target]:
    """Return the targets with the dtypes of `cast`; raises as `cast_dtypes` does."""
    dtype_names = cast_dtypes([t.leaf for t in targets], paths, cast, naming=naming, where=where)
    return [
        target if dtype == target.dtype else target._replace(dtype=dtype, weak_type=False)
        for target, dtype in zip(targets, dtype_names, strict=True)
    ]


def cast_dtypes(
    leaves: Sequence[Leaf], paths: Sequence[KeyPath], cast: Cast, *, naming: Naming, where: str
) -> list[str]:
    """Return the dtype of each leaf after the cast; raises as `requested_dtypes` does."""
    requested = requested_dtypes(leaves, paths, cast, naming=naming, where=where)
    return [
        leaf.dtype if dtype is None else dtype
        for leaf, dtype in zip(leaves, requested, strict=True)
    ]


def requested_dtypes(
    leaves: Sequence[Leaf], paths: Sequence[KeyPath], cast: Cast, *, naming: Naming, where: str
) -> list[str | None]:
    """Return the dtype that `cast` requests for each leaf; None if it does not apply to a leaf.

    A single floating dtype applies to all floating arrays. In a mapping the first matching entry
    counts. An entry that is the exact key path of one leaf, without wildcards, applies to any
    dtype; all other patterns apply to floating and complex arrays only. PRNG keys and Python
    values keep their types.

    Args:
        leaves: the stored leaves.
        paths: their key paths, which the patterns are matched with.
        cast: a dtype, or a mapping of patterns to dtypes.
        naming: the naming of the index.
        where: the checkpoint's name in errors.

    Raises:
        MismatchError: a pattern matches no leaf, or only leaves that it cannot cast.
        ValueError: a dtype is unknown, or a single dtype is not floating.
    """
    if isinstance(cast, Mapping):
        return _by_pattern(leaves, paths, cast, naming=naming, where=where)
    name = dtypes.parse(cast)
    if not dtypes.is_floating(name):
        raise ValueError(
            f"cast={name!r}: a dtype by itself is for floating arrays, and has to be floating; "
            'a mapping names integers that become others: {"tokens/ids": "int32"}'
        )
    return [
        name if leaf.kind in _ARRAYS and dtypes.is_floating(leaf.dtype) else None for leaf in leaves
    ]


def _by_pattern(
    leaves: Sequence[Leaf],
    paths: Sequence[KeyPath],
    cast: Mapping[str, Any],
    *,
    naming: Naming,
    where: str,
) -> list[str | None]:
    names = [path_name(path, naming) for path in paths]
    results: list[str | None] = [None] * len(leaves)
    problems = []
    for pattern, dtype in reversed(list(cast.items())):
        parsed = dtypes.parse(dtype)
        matched = match_patterns(names, pattern, naming=naming, where=where, option="cast")
        arrays = [
            i for i, leaf in enumerate(leaves) if matched[i] and leaf.kind in _ARRAYS and leaf.dtype
        ]
        exact = pattern_name(pattern, naming)
        if exact not in names:  # another spelling of one of them
            plain = plain_pattern(exact, naming)
            exact = next((name for name in names if plain_name(name, naming) == plain), exact)
        castable = [i for i in arrays if names[i] == exact or _is_inexact(leaves[i].dtype)]
        if arrays and not castable:
            first = arrays[0]
            matches = first_names([f"{names[i]} ({leaves[i].dtype})" for i in arrays], 1)
            problems.append(
                f"  {pattern!r}: a pattern casts floating arrays only, and this one takes "
                f"{matches}; name each "
                f"integer array exactly: {{{names[first]!r}: {parsed!r}}}"
            )
        for i in castable:
            results[i] = parsed
    if problems:
        some = "" if len(problems) == len(cast) else " by some of its patterns"
        raise MismatchError(f"cast changes nothing of {where}{some}:\n" + "\n".join(problems[::-1]))
    return results


def same_kind_of_number(one: str, other: str) -> bool:
    """Return True if two dtypes are both floating, both complex or both integers."""
    return bool(one and other) and _kind_of_number(one) == _kind_of_number(other)


def _kind_of_number(dtype: str) -> str:
    if dtypes.is_floating(dtype):
        return "floating"
    return "integer" if dtype.startswith(("int", "uint")) else dtype.rstrip("0123456789")


def _is_inexact(dtype: str) -> bool:
    return dtypes.is_floating(dtype) or dtype.startswith("complex")


def convert_inline(value: Any, target: Target) -> Any:
    """Return a stored Python value as the array of shape () that the target asks for."""
    array = np.asarray(value)
    array = (
        _beyond_64_bits(value, target) if array.dtype == object else convert_dtype(array, target)
    )
    return array if target.kind == "jax" else convert_kind(array, target)


def _beyond_64_bits(value: int, target: Target) -> np.ndarray:
    """Return an integer of more than 64 bits as an array of the target's dtype.

    Raises MismatchError unless the dtype holds exactly that number.
    """
    with suppress(OverflowError), np.errstate(all="ignore"):
        array = np.asarray(float(value)).astype(dtypes.to_numpy(target.dtype))
        if array.astype(np.complex128).item() == value:
            return array
    raise _would_change(target, target.dtype, f"an integer of {value.bit_length()} bits")


_PYTHON_NUMBERS: Mapping[str, Callable[[Any], Any]] = {
    kind.__name__: kind for kind in (bool, int, float, complex)
}


def convert_kind(array: np.ndarray, target: Target) -> Any:
    """Return a host array as a value of the target's kind, which is not "jax".

    Raises MismatchError if a Python number of that kind would be another value.
    """
    if target.kind == "numpy":
        return array
    if target.kind == "numpy_scalar":
        return array[()]
    if target.kind == "bytes":
        return array.tobytes()
    if target.kind == "str":
        return array.tobytes().decode("utf-8", "surrogatepass")
    stored = array.item()
    real = stored.real if isinstance(stored, complex) and not stored.imag else stored
    with suppress(OverflowError, TypeError, ValueError):  # int(inf) raises, for example
        number = _PYTHON_NUMBERS[target.kind](real)
        if number == stored or stored != stored:
            return number
    raise _would_change(target, target.kind, stored)


def _would_change(target: Target, to: str, value: object) -> MismatchError:
    return MismatchError(
        f"{format_path(target.leaf.key_path)}: casting {target.leaf.dtype or target.leaf.kind} "
        f"to {to} would change values, the first of them {value}; load it as it is and "
        "convert it yourself"
    )


def convert_dtype(array: np.ndarray, target: Target) -> np.ndarray:
    """Return the array with the target's dtype.

    A conversion between floating dtypes rounds. A conversion from or to integers, or from complex
    to real numbers, must be exact.

    Raises:
        MismatchError: an exact conversion would change a value, or the two dtypes have no
            conversion; names the leaf and the value.
    """
    dtype = dtypes.to_numpy(target.dtype)
    from_complex = np.iscomplexobj(array) and not target.dtype.startswith("complex")
    names = (dtypes.name_of(array.dtype), target.dtype)
    exact = from_complex or any(name.startswith(_INTEGERS) for name in names)
    try:
        with np.errstate(all="ignore"):
            result = (array.real if from_complex else array).astype(dtype)
            changed = _changed(result, array) if exact else np.False_
    except TypeError as e:
        raise MismatchError(
            f"{format_path(target.leaf.key_path)}: there is no conversion from {array.dtype} to "
            f"{target.dtype}; load it as it is and convert it yourself"
        ) from e
    if changed.any():
        first = np.asarray(array)[changed].reshape(-1)[0]
        raise _would_change(target, target.dtype, first)
    return result


_INTEGERS = ("int", "uint", "bool")


def _changed(result: np.ndarray, array: np.ndarray) -> Any:
    """Return a mask of the elements of `array` whose values differ in `result`."""
    changed = np.asarray(_real(result).astype(array.dtype) != array)
    one, other = _real(result), _real(array)
    if _limits(one) and _limits(other):
        # A negative number becomes a large unsigned one by overflow, and the other way round.
        return changed | ((one < 0) != (other < 0))
    # Infinity and numbers out of range may become the largest or the least integer, and
    # may be equal to the original when they are converted back.
    for integers, numbers in ((one, other), (other, one)):
        limits = _limits(integers)
        if limits is not None:
            if numbers.dtype.itemsize < 4:  # its largest number may be less than the limits
                numbers = numbers.astype(np.float32)
            changed |= ~((numbers >= limits[0]) & (numbers < limits[1]))
    return changed


def _real(array: np.ndarray) -> np.ndarray:
    return array.real if np.iscomplexobj(array) else array


def _limits(array: np.ndarray) -> tuple[float, float] | None:
    """Return the least integer of a dtype, and the largest plus 1; None for other dtypes."""
    name = dtypes.name_of(array.dtype)
    if not name.startswith(("int", "uint")):
        return None
    bits = int(name.lstrip("uint"))
    if name.startswith("uint"):
        return 0.0, 2.0**bits
    return -(2.0 ** (bits - 1)), 2.0 ** (bits - 1)
