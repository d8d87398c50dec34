"""Why a sharding does not fit a shape."""

from __future__ import annotations

import math
from typing import Any

from cordwood.did_you_mean import nearest_name


def explain_sharding_error(shape: tuple[int, ...], given: Any, mesh: Any, error: Exception) -> str:
    """What to say where a PartitionSpec of `mesh`, or a Sharding, cannot cut a shape.

    `error` is what jax says, which is repeated where nothing better is known.
    """
    import jax

    spec = getattr(given, "spec", given)
    mesh = getattr(given, "mesh", mesh)
    why = None
    if isinstance(spec, jax.sharding.PartitionSpec) and mesh is not None:
        why = _why(shape, tuple(spec), dict(mesh.shape))
    return f"shape {list(shape)} cannot be cut by {given if why is None else spec}: {why or error}"


def _why(shape: tuple[int, ...], spec: tuple[Any, ...], sizes: dict[str, int]) -> str | None:
    mesh = ", ".join(f"{name}: {size}" for name, size in sizes.items())
    if len(spec) > len(shape):
        return f"expected at most {len(shape)} entries, one for each dimension, found {len(spec)}"
    for number, entry in enumerate(spec):
        axes = (entry,) if isinstance(entry, str) else entry
        if not isinstance(axes, tuple):
            continue
        for axis in axes:
            if axis not in sizes:
                close = nearest_name(str(axis), sizes)
                hint = f"; did you mean {close!r}?" if close is not None else ""
                return f"the mesh has no axis {axis!r}, but ({mesh}){hint}"
        parts = math.prod(sizes[axis] for axis in axes)
        if shape[number] % parts:
            return (
                f"dimension {number} is {shape[number]} long, and would be cut into {parts} parts "
                f"(mesh: {mesh}); expected a multiple of {parts}: pad it, or leave it whole"
            )
    return None
