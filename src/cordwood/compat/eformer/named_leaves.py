"""The names that eFormer gives to leaves, and shardings by these names: its rules, corrected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.devices.to_jax import sharding_of
from cordwood.encoding.leaf_table import dotted_name
from cordwood.errors import MismatchError
from cordwood.formats.zarr.array_paths import ordinary_path
from cordwood.index import Index
from cordwood.keypath import KeyPath, format_path
from cordwood.loading.assign_shardings import IndivisibleError, array_shape, resolve_sharding
from cordwood.loading.leaf_target import Target
from cordwood.message_text import first_lines
from cordwood.sharding.partition_rules import Rules, match_rule
from cordwood.tree.flatten import flatten
from cordwood.tree.structure import jax_order

KeySteps = tuple[str, ...]


def leaf_order(index: Index) -> list[int]:
    """Return the positions of the leaves in the order in which eFormer lists them."""
    return jax_order(index.structure) if index.naming == "exact" else list(range(len(index.leaves)))


def leaf_steps(index: Index, prefix: str) -> list[KeySteps]:
    """Return for each leaf the keys under which eFormer's loader puts it.

    The keys are the parts of the directory's path below the prefix, divided at dots and slashes. A
    leaf whose directory is not named so keeps its own keys.
    """
    result: list[KeySteps] = [()] * len(index.leaves)
    taken: set[KeySteps] = set()
    parents: set[KeySteps] = set()
    for i in leaf_order(index):
        path = index.leaves[i].key_path
        steps = _ordinary(path, prefix)
        if steps in taken or steps in parents or any(steps[:n] in taken for n in range(len(steps))):
            steps = tuple(format_path(path).split("/"))
        taken.add(steps)
        parents.update(steps[:n] for n in range(len(steps)))
        result[i] = steps
    return result


def _ordinary(path: KeyPath, prefix: str) -> KeySteps:
    if not path:  # the tree is one leaf, in the directory of the prefix itself
        return tuple(prefix.replace("/", ".").split(".")) if prefix else ("", "")
    ordinary = ordinary_path(dotted_name(path))
    if ordinary is None:
        return tuple(format_path(path).split("/"))
    return tuple(ordinary.split("/"))


def nest_by_steps(steps: Sequence[KeySteps], values: Sequence[Any], *, name: str) -> dict[str, Any]:
    """Return nested dicts with the values at these keys.

    Raises MismatchError if two leaves have the same keys, or one is inside another.
    """
    tree: dict[str, Any] = {}
    for path, value in zip(steps, values, strict=True):
        node: Any = tree
        for step in path[:-1]:
            node = node.setdefault(step, {})
            if type(node) is not dict:
                raise _clash(name, path)
        if path[-1] in node:
            raise _clash(name, path)
        node[path[-1]] = value
    return tree


def _clash(name: str, path: KeySteps) -> MismatchError:
    return MismatchError(
        f"{name}: {'.'.join(path)!r:.200} is the name of two leaves in a dict of strings; pass "
        "like=, or use cordwood.load, which keeps all keys as they are"
    )


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


def apply_layout(value: Any, layout: Any) -> Any:
    """Return an array in the memory layout of a jax Format."""
    import jax

    return jax.device_put(value, layout)
