"""Shardings of loaded leaves: shardings, partition specs and rules, by key path."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from cordwood.errors import MismatchError
from cordwood.index import LeafKind
from cordwood.keypath import DictKey, KeyPath, format_path, path_label
from cordwood.loading.abstract_meshes import has_abstract_mesh, mesh_for_abstract, with_devices
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_target import Target
from cordwood.message_text import counted, first_lines
from cordwood.plan.path_spellings import plain_pattern
from cordwood.sharding.partition_rules import explain_sharding_error, spec_for
from cordwood.tree.flatten import flatten

_SHARDED = frozenset({"jax", "numpy", "prng_key"})  # scalars stay as they are
_HOST_ONLY = ("datetime64", "timedelta64", "float128", "complex256")  # jax has no such arrays
_MAX_LINES = 20


def assign_shardings(
    options: LoadOptions, targets: Sequence[Target], paths: Sequence[KeyPath]
) -> list[Target]:
    """Return the targets with shardings assigned; their arrays become jax arrays.

    An entry of `shardings` takes precedence over a rule, and a rule over the sharding of the
    target (which is that of `like`). Other arrays are replicated over the mesh. Scalars, and
    arrays of dtypes that jax lacks, stay as they are.

    Args:
        options: mesh, rules and shardings are used.
        targets: the leaves and what to make of them.
        paths: their key paths.

    Raises:
        ValueError: a mesh is missing, no rule matches a leaf, or an entry matches no leaf.
        MismatchError: a shape cannot be cut as its sharding says; the message names all leaves.
    """
    mesh, rules, shardings = options.mesh, options.rules, options.shardings
    if rules is not None and mesh is None:
        raise ValueError("rules give partition specs, which need a mesh: pass mesh=")
    if mesh is not None:
        _check(mesh, rules)
    entries = _Entries(shardings)
    assigned: list[Target] = []
    problems: list[str] = []
    unruled: list[str] = []
    for target, path in zip(targets, paths, strict=True):
        value = entries.of(path)
        if target.kind not in _SHARDED or target.dtype.startswith(_HOST_ONLY):
            assigned.append(target)
            continue
        shape = array_shape(target)
        name = _joined(path, "/")
        if value is None and rules is not None:
            try:
                value = spec_for(rules, name, shape)
            except ValueError:
                unruled.append(name)
                continue
        if value is None:
            value = target.sharding
        try:
            sharding = resolve_sharding(value, mesh, shape, path_label(path))
        except IndivisibleError as e:
            problems.append(f"{path_label(path)}: {e}")
            continue
        if sharding is None:
            assigned.append(target)
        else:
            kind: LeafKind = "prng_key" if target.kind == "prng_key" else "jax"
            assigned.append(target._replace(kind=kind, sharding=sharding))
    if unruled:
        shown = ", ".join(unruled[:_MAX_LINES]) + ", ..." * (len(unruled) > _MAX_LINES)
        raise ValueError(
            f"rules: no pattern is found in the {counted(len(unruled), 'name')} {shown}; add rules "
            'for them, or end with (".*", PartitionSpec()), which replicates what no other takes'
        )
    if problems:
        lines = first_lines(problems, _MAX_LINES)
        raise MismatchError(f"shardings do not fit their leaves:\n{lines}")
    entries.check_used([format_path(path) for path in paths])
    return assigned


def _check(mesh: Any, rules: Any) -> None:
    """Raise TypeError unless the arguments are a mesh and rules, ValueError for a bad pattern."""
    import jax

    if not isinstance(mesh, jax.sharding.Mesh):
        raise TypeError(f"mesh: expected a jax.sharding.Mesh, found {mesh!r:.80}")
    if rules is None:
        return
    form = "(regular expression, PartitionSpec)"
    if not isinstance(rules, Sequence) or isinstance(rules, str):
        raise TypeError(f"rules: expected a list of {form}, found {rules!r:.80}")
    for rule in rules:
        if not isinstance(rule, tuple | list) or len(rule) != 2:
            raise TypeError(f"rules: expected {form}, found {rule!r:.80}")
        pattern, spec = rule
        if not isinstance(pattern, str | re.Pattern):
            raise TypeError(f"rules: expected a regular expression, found {pattern!r:.80}")
        if spec is not None and not isinstance(spec, jax.sharding.PartitionSpec):
            raise TypeError(f"rules: {pattern!r:.80}: expected a PartitionSpec, found {spec!r:.80}")
        try:
            re.compile(pattern)
        except re.error as e:
            raise ValueError(
                f"rules: {pattern!r} is not a regular expression: {e}. Rules do not use the "
                "wildcards of select=; '.*' matches all leaves"
            ) from e


class IndivisibleError(Exception):
    """A shape that cannot be cut as a sharding says."""


def array_shape(target: Target) -> tuple[int, ...]:
    """Return the shape of the resulting array; of PRNG keys, without the axes of the key data."""
    leaf = target.leaf
    if target.kind != "prng_key" or leaf.prng_impl is None:
        return leaf.shape
    from cordwood.devices.local_boxes import key_shape

    return key_shape(leaf.shape, leaf.prng_impl)


def resolve_sharding(value: Any, mesh: Any, shape: tuple[int, ...], name: str) -> Any:
    """Return a Sharding or Format for a value of `shardings`, a rule or `like`; None: leave it.

    Raises IndivisibleError if it cannot cut the shape; TypeError and ValueError name the leaf.
    """
    import jax

    from cordwood.devices.device_memory import sharding_of

    if value is None:
        if mesh is None:
            return None
        value = jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    is_spec = isinstance(value, jax.sharding.PartitionSpec)
    plain = sharding_of(value)
    if not is_spec and not isinstance(plain, jax.sharding.Sharding):
        raise TypeError(
            f"{name}: expected a jax Sharding, PartitionSpec or Format, found "
            f"{type(value).__name__}"
        )
    if is_spec and mesh is None:
        raise ValueError(f"{name}: {value} is a partition spec, which needs a mesh: pass mesh=")
    is_abstract = has_abstract_mesh(value)
    if is_abstract:
        mesh = mesh_for_abstract(plain, mesh, name)
    try:
        if is_spec:
            value = plain = jax.sharding.NamedSharding(mesh, value)
        elif is_abstract:
            value = with_devices(value, mesh)
            plain = sharding_of(value)
        plain.shard_shape(shape)
    except ValueError as e:
        raise IndivisibleError(explain_sharding_error(shape, value, mesh, e)) from e
    return value


class _Entries:
    """The entries of `shardings`, by key path (in any spelling) or by keys joined with '.' or '/'.

    An entry applies to the leaf of that path, or to all leaves under it; the longest path counts.
    """

    def __init__(self, shardings: Any) -> None:
        self._of: dict[str, Any] = {}
        self._plain: dict[str, str] = {}  # the other spellings among them, by their plain form
        self._used: set[str] = set()
        if shardings is None:
            return
        flat = flatten(shardings)
        for path, value in zip(flat.paths, flat.leaves, strict=True):
            name = _joined(path, "/")
            if self._of.setdefault(name, value) is not value:
                raise ValueError(f"shardings: there are two entries for {name!r}")
        self._plain = {plain: name for name in self._of if (plain := plain_pattern(name)) != name}

    def of(self, path: KeyPath) -> Any:
        """Return the entry for a leaf; None if there is none."""
        value = None
        for stop in range(len(path) + 1) if self._of else ():
            plain = _joined(path[:stop], "/")
            for name in (_joined(path[:stop], "."), plain, self._plain.get(plain)):
                if name in self._of:
                    self._used.add(name)
                    value = self._of[name]
        return value

    def check_used(self, names: Sequence[str]) -> None:
        """Raise ValueError for an entry that has matched no leaf."""
        unknown = [name for name in self._of if name not in self._used]
        if unknown:
            close = difflib.get_close_matches(unknown[0].replace(".", "/"), names, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"shardings: there is no leaf {unknown[0]!r}{hint}")


def _joined(path: KeyPath, separator: str) -> str:
    return separator.join(
        [str(key.value) if isinstance(key, DictKey) else str(key) for key in path]
    )
