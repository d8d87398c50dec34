"""Shardings by the names that eFormer gives to leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.compat.eformer.leaf_names import KeySteps
from cordwood.devices.device_memory import sharding_of
from cordwood.errors import MismatchError
from cordwood.loading.assign_shardings import IndivisibleError, array_shape, resolve_sharding
from cordwood.loading.load_target import Target
from cordwood.message_text import first_lines
from cordwood.sharding.partition_rules import Rules, match_rule
from cordwood.tree.flatten import flatten

_PLACED = frozenset({"jax", "prng_key"})
_MAX_LINES = 20


def apply_shardings(
    targets: Sequence[Target],
    names: Sequence[KeySteps],
    *,
    mesh: Any,
    rules: Rules | None,
    shardings: Any,
    like: bool,
) -> tuple[list[Target], dict[int, Any]]:
    """Return the targets with their shardings, and the formats (layouts in memory) of some of them.

    If there are rules, only they count. Otherwise the first of these counts: the entry of
    `shardings`; the sharding of the target (from `like`); replication over the mesh, which must
    have one axis unless `like` was passed. numpy arrays and scalars are not changed.

    Raises:
        ValueError: no rule matches a name, or nothing but a mesh of several axes was passed.
        TypeError: an entry is not a sharding.
        MismatchError: shapes do not fit their shardings; the message names all of them.
    """
    if rules is not None and mesh is None:
        raise ValueError("partition_rules give partition specs, which need a mesh: pass one")
    entries = _entries(shardings)
    placed: list[Target] = []
    formats: dict[int, Any] = {}
    problems: list[str] = []
    for i, (target, steps) in enumerate(zip(targets, names, strict=True)):
        if target.kind not in _PLACED:
            placed.append(target)
            continue
        name = ".".join(steps)
        shape = array_shape(target)
        if rules is not None:
            import jax

            spec = match_rule(rules, "/".join(steps))
            if isinstance(spec, jax.sharding.PartitionSpec):
                spec = type(spec)(*tuple(spec)[: len(shape)])
        else:
            spec = entries.get(name)
        if spec is None:
            spec = target.sharding
        if spec is None and mesh is not None and len(mesh.axis_names) > 1 and not like:
            raise ValueError(
                f"No sharding specified for {name!r} on multi-axis mesh. Provide 'shardings' or "
                "'partition_rules'."
            )
        try:
            value = resolve_sharding(spec, mesh, shape, f"shardings: {name}")
        except IndivisibleError as e:
            problems.append(f"{name}: {e}")
            continue
        sharding = sharding_of(value)
        placed.append(target._replace(sharding=sharding))
        if value is not sharding:
            formats[i] = value
    if problems:
        lines = first_lines(problems, _MAX_LINES)
        raise MismatchError(f"shardings do not fit their leaves:\n{lines}")
    return placed, formats


def _entries(shardings: Any) -> dict[str, Any]:
    """Return the entries of a flat dict or of a tree, by dotted name."""
    if shardings is None:
        return {}
    flat = flatten(shardings)
    by_name: dict[str, Any] = {}
    for path, value in zip(flat.paths, flat.leaves, strict=True):
        name = ".".join([str(getattr(key, "value", key)) for key in path]).replace("/", ".")
        if by_name.setdefault(name, value) is not value:
            raise ValueError(f"shardings: there are two entries for {name!r}")
    return by_name
