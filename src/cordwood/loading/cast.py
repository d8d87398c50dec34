"""The option `cast` of load and convert: other dtypes for leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from cordwood import dtypes
from cordwood.errors import MismatchError
from cordwood.index import Leaf, Naming
from cordwood.keypath import KeyPath
from cordwood.loading.leaf_target import Target
from cordwood.message_text import first_names
from cordwood.plan.path_patterns import match_patterns, path_name, pattern_name

# A dtype for all floating arrays, or a mapping of patterns to dtypes.
Cast: TypeAlias = str | type | Any | Mapping[str, Any]

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
    """Return the dtype of each leaf after the cast; the stored one if `cast` does not apply.

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
        name if leaf.kind in _ARRAYS and dtypes.is_floating(leaf.dtype) else leaf.dtype
        for leaf in leaves
    ]


def _by_pattern(
    leaves: Sequence[Leaf],
    paths: Sequence[KeyPath],
    cast: Mapping[str, Any],
    *,
    naming: Naming,
    where: str,
) -> list[str]:
    names = [path_name(path, naming) for path in paths]
    results = [leaf.dtype for leaf in leaves]
    problems = []
    for pattern, dtype in reversed(list(cast.items())):
        parsed = dtypes.parse(dtype)
        matched = match_patterns(names, pattern, naming=naming, where=where, option="cast")
        arrays = [
            i for i, leaf in enumerate(leaves) if matched[i] and leaf.kind in _ARRAYS and leaf.dtype
        ]
        exact = pattern_name(pattern, naming)
        castable = [i for i in arrays if names[i] == exact or _is_inexact(leaves[i].dtype)]
        if arrays and not castable:
            first = arrays[0]
            taken = first_names([f"{names[i]} ({leaves[i].dtype})" for i in arrays], 1)
            problems.append(
                f"  {pattern!r}: a pattern casts floating arrays only, and this one takes "
                f"{taken}; name each "
                f"integer array exactly: {{{names[first]!r}: {parsed!r}}}"
            )
        for i in castable:
            results[i] = parsed
    if problems:
        some = "" if len(problems) == len(cast) else " by some of its patterns"
        raise MismatchError(f"cast changes nothing of {where}{some}:\n" + "\n".join(problems[::-1]))
    return results


def _is_inexact(dtype: str) -> bool:
    return dtypes.is_floating(dtype) or dtype.startswith("complex")
