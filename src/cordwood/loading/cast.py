"""Other dtypes for what is loaded or converted, as `cast` asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from cordwood import dtypes
from cordwood.errors import MismatchError
from cordwood.index import Leaf, Naming
from cordwood.keypath import KeyPath
from cordwood.loading.leaf_target import Target
from cordwood.plan.path_patterns import match_patterns, path_name, pattern_name

# A dtype for all floating arrays, or dtypes for those that patterns take.
Cast: TypeAlias = str | type | Any | Mapping[str, Any]

_ARRAYS = frozenset({"jax", "numpy", "numpy_scalar"})


def cast_targets(
    targets: Sequence[Target], paths: Sequence[KeyPath], cast: Cast, *, naming: Naming, where: str
) -> list[Target]:
    """Return the targets with the dtypes that `cast` asks for; raises as `cast_dtypes`."""
    wanted = cast_dtypes([t.leaf for t in targets], paths, cast, naming=naming, where=where)
    return [
        target if dtype == target.dtype else target._replace(dtype=dtype, weak_type=False)
        for target, dtype in zip(targets, wanted, strict=True)
    ]


def cast_dtypes(
    leaves: Sequence[Leaf], paths: Sequence[KeyPath], cast: Cast, *, naming: Naming, where: str
) -> list[str]:
    """Return the dtype that each leaf is to have: as it is stored, where `cast` says nothing.

    A floating dtype by itself is for floating arrays. In a mapping the first entry that takes an
    array counts. An entry that is exactly the key path of one leaf, without wildcards, takes it
    whatever its dtype; all other patterns take floating and complex arrays only. PRNG keys and
    Python values stay as they are.

    Raises:
        MismatchError: a pattern takes no leaf, or nothing but leaves that it cannot cast.
        ValueError: a dtype is unknown, or one by itself is not floating.
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
            problems.append(
                f"  {pattern!r}: a pattern casts floating arrays only, and this one takes "
                f"{names[first]} ({leaves[first].dtype}){_and_more(len(arrays) - 1)}; name each "
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


def _and_more(count: int) -> str:
    return f" and {count} more" if count else ""
