"""Other dtypes for what is loaded or converted, as `cast` asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from cordwood import dtypes
from cordwood.api.target import Target
from cordwood.index import Leaf, Naming
from cordwood.keypath import KeyPath
from cordwood.plan.patterns import matching, path_name

__all__ = ["Cast", "cast_dtypes", "cast_targets"]

# A dtype for all floating arrays, or dtypes for those that patterns take.
Cast: TypeAlias = str | type | Any | Mapping[str, Any]

_ARRAYS = frozenset({"jax", "numpy", "numpy_scalar"})


def cast_targets(
    targets: Sequence[Target], paths: Sequence[KeyPath], cast: Cast, *, naming: Naming, where: str
) -> list[Target]:
    """The targets with the dtypes that they are to have."""
    wanted = cast_dtypes([t.leaf for t in targets], paths, cast, naming=naming, where=where)
    return [
        target if dtype == target.dtype else target._replace(dtype=dtype, weak_type=False)
        for target, dtype in zip(targets, wanted, strict=True)
    ]


def cast_dtypes(
    leaves: Sequence[Leaf], paths: Sequence[KeyPath], cast: Cast, *, naming: Naming, where: str
) -> list[str]:
    """Of each leaf the dtype that it is to have: as it is stored, where `cast` says nothing.

    A floating dtype by itself is for floating arrays alone. Of a mapping the first pattern that
    takes an array counts, whatever its dtype. PRNG keys and Python values stay as they are.

    Raises:
        MismatchError: a pattern takes no leaf.
        ValueError: a dtype is unknown, or one by itself is not floating.
    """
    if isinstance(cast, Mapping):
        names = [path_name(path, naming) for path in paths]
        found = [leaf.dtype for leaf in leaves]
        for pattern, dtype in reversed(list(cast.items())):
            name = dtypes.parse(dtype)
            taken = matching(names, pattern, naming=naming, where=where, option="cast")
            for i, leaf in enumerate(leaves):
                if taken[i] and leaf.kind in _ARRAYS and leaf.dtype:
                    found[i] = name
        return found
    name = dtypes.parse(cast)
    if not dtypes.is_floating(name):
        raise ValueError(
            f"cast={name!r}: a dtype by itself is for floating arrays, and has to be floating; "
            'a mapping says which arrays become what else: {"tokens/**": "int32"}'
        )
    return [
        name if leaf.kind in _ARRAYS and dtypes.is_floating(leaf.dtype) else leaf.dtype
        for leaf in leaves
    ]
