"""The sizes of the named parts of axes, solved from the shape of an array. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def solve_axis_sizes(
    groups: Sequence[Sequence[str]], shape: Sequence[int], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Return the sizes of the atoms of an array, as far as the shape and known sizes tell.

    Raises ValueError if the shape contradicts the sizes.

    >>> solve_axis_sizes((("n", "h"), ("d",)), (64, 32), {"h": 16})
    {'h': 16, 'n': 4, 'd': 32}
    """
    result: dict[str, int] = {}
    for group, size in zip(groups, shape, strict=True):
        known, missing = 1, []
        for atom in group:
            if atom in sizes:
                result[atom] = sizes[atom]
                known *= sizes[atom]
            else:
                missing.append(atom)
        shown = f"({' '.join(group)})" if len(group) != 1 else group[0]
        if not missing and known != size:
            values = ", ".join([f"{atom} = {sizes[atom]}" for atom in group])
            raise ValueError(f"expected {known} for {shown} ({values}), found {size}")
        if len(missing) == 1:
            if known == 0 or size % known:
                raise ValueError(f"{size} for {shown} is no multiple of {known}")
            result[missing[0]] = size // known
    return result
