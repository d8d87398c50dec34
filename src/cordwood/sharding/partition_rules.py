"""Partition rules, the spec of an array by its name; and errors for specs that do not fit."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from cordwood.did_you_mean import nearest_name
from cordwood.tree.flatten import entry_key

MIN_SHARDING_SIZE = 16384  # eFormer's, in elements

Rules: TypeAlias = Sequence[tuple[str, Any]]  # (regular expression, jax PartitionSpec)


def match_partition_rules(
    rules: Rules, tree: Any, min_size: int | None = 0, strict: bool = True
) -> Any:
    """Return a tree of the same structure, with a jax PartitionSpec for each leaf.

    Args:
        rules: (regular expression, PartitionSpec), tried in order with re.search on the leaf's
            keys joined by '/'. The first rule that matches counts.
        tree: any jax pytree, of arrays or anything with a shape.
        min_size: an array of fewer elements is replicated (`strict` only); None: 16,384.
        strict: replicate leaves without axes, whatever the rules, and cut specs to the number of
            axes. If False, specs are returned unchanged.

    Raises:
        ValueError: no rule matches a leaf; names it.

    >>> import numpy as np
    >>> from jax.sharding import PartitionSpec
    >>> tree = {"dense": {"kernel": np.ones((4, 2)), "bias": np.ones(2)}, "step": 3}
    >>> rules = [("kernel", PartitionSpec("x", "y")), ("bias", PartitionSpec())]
    >>> match_partition_rules(rules, tree)["dense"]["kernel"]
    P('x', 'y')
    """
    import jax

    paths, treedef = jax.tree_util.tree_flatten_with_path(tree)
    least = MIN_SHARDING_SIZE if min_size is None else min_size
    specs = []
    for path, leaf in paths:
        name = "/".join([str(entry_key(entry)) for entry in path])
        if strict:
            specs.append(spec_for(rules, name, getattr(leaf, "shape", ()), min_size=least))
        else:
            specs.append(match_rule(rules, name))
    return jax.tree_util.tree_unflatten(treedef, specs)


def match_rule(rules: Rules, name: str) -> Any:
    """Return the spec of the first rule that matches a name.

    Raises:
        ValueError: no rule matches.
    """
    for pattern, spec in rules:
        if re.search(pattern, name) is not None:
            return spec
    raise ValueError(f"Partition rule not found for param: {name}")


def spec_for(rules: Rules, name: str, shape: Sequence[int], *, min_size: int = 0) -> Any:
    """Return the spec of an array, cut to its axes; an empty spec if it has few elements.

    Raises:
        ValueError: no rule matches the name.
    """
    import jax

    spec = match_rule(rules, name) if shape else None
    if spec is None or math.prod(shape) < min_size:
        return jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    if len(spec) <= len(shape):
        return spec
    return type(spec)(*tuple(spec)[: len(shape)])


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
