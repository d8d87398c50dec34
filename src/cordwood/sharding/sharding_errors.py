"""Messages for shardings that do not fit a shape."""

from __future__ import annotations

import math
from typing import Any

from cordwood.did_you_mean import nearest_name


def explain_sharding_error(
    shape: tuple[int, ...], sharding: Any, mesh: Any, error: Exception
) -> str:
    """Return the message for a shape that a PartitionSpec of `mesh`, or a Sharding, cannot cut.

    `error` is jax's own error; the message repeats it if no reason is found here.
    """
    import jax

    spec = getattr(sharding, "spec", sharding)
    mesh = getattr(sharding, "mesh", mesh)
    reason = None
    if isinstance(spec, jax.sharding.PartitionSpec) and mesh is not None:
        reason = _reason(shape, tuple(spec), dict(mesh.shape))
    text = sharding if reason is None else spec
    return f"shape {list(shape)} cannot be partitioned by {text}: {reason or error}"


def _reason(shape: tuple[int, ...], spec: tuple[Any, ...], sizes: dict[str, int]) -> str | None:
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
                return f"the mesh ({mesh}) has no axis {axis!r}{hint}"
        parts = math.prod(sizes[axis] for axis in axes)
        if shape[number] % parts:
            return (
                f"dimension {number} has size {shape[number]}, and the mesh ({mesh}) divides it "
                f"into {parts} parts; expected a multiple of {parts}: pad it, or keep it whole"
            )
    return None
