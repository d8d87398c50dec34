"""Where the leaves of a load go: shardings, partition specs and rules, by key path."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from cordwood.errors import MismatchError, counted
from cordwood.index import LeafKind
from cordwood.keypath import DictKey, KeyPath, format_path
from cordwood.loading.leaf_target import Target
from cordwood.sharding.partition_rules import Rules, spec_for
from cordwood.sharding.sharding_errors import explain_sharding_error
from cordwood.tree.flatten import flatten

_PLACED = frozenset({"jax", "numpy", "prng_key"})  # scalars stay as they are
_HOST_ONLY = ("datetime64", "timedelta64", "float128", "complex256")  # jax has no such arrays
_MAX_LINES = 20


class ShardingOptions(NamedTuple):
    """What a caller of `load` said of devices."""

    mesh: Any = None
    rules: Rules | None = None
    shardings: Any = None


def assign_shardings(
    placing: ShardingOptions, targets: Sequence[Target], paths: Sequence[KeyPath]
) -> list[Target]:
    """The targets with the shardings that they are given; arrays become jax arrays.

    An entry of `shardings` counts before a rule, and that before the sharding that a target has
    (that of `like`); what has none is replicated over the mesh. Scalars, and arrays of dtypes
    that jax lacks, stay as they are.

    Args:
        placing: what was asked for.
        targets: what each leaf is to become.
        paths: their key paths.

    Raises:
        ValueError: a mesh is missing, no rule matches a leaf, or an entry is for no leaf.
        MismatchError: a leaf's shape cannot be cut so; the message names all of them.
    """
    mesh, rules, shardings = placing
    if rules is not None and mesh is None:
        raise ValueError("rules give partition specs, which need a mesh: pass mesh=")
    if mesh is not None:
        _check(mesh, rules)
    entries = _Entries(shardings)
    placed: list[Target] = []
    problems: list[str] = []
    unruled: list[str] = []
    for target, path in zip(targets, paths, strict=True):
        given = entries.of(path)
        if target.kind not in _PLACED or target.dtype.startswith(_HOST_ONLY):
            placed.append(target)
            continue
        shape = _shape(target)
        name = _joined(path, "/")
        if given is None and rules is not None:
            try:
                given = spec_for(rules, name, shape)
            except ValueError:
                unruled.append(name)
                continue
        if given is None:
            given = target.sharding
        try:
            sharding = _sharding(given, mesh, shape, format_path(path) or "the root")
        except _Unfit as e:
            problems.append(f"  {format_path(path) or 'the root'}: {e}")
            continue
        if sharding is None:
            placed.append(target)
        else:
            kind: LeafKind = "prng_key" if target.kind == "prng_key" else "jax"
            placed.append(target._replace(kind=kind, sharding=sharding))
    if unruled:
        shown = ", ".join(unruled[:_MAX_LINES]) + ", ..." * (len(unruled) > _MAX_LINES)
        raise ValueError(
            f"rules: no pattern is found in the {counted(len(unruled), 'name')} {shown}; add rules "
            'for them, or end with (".*", PartitionSpec()), which replicates what no other takes'
        )
    if problems:
        more = [f"  ... and {len(problems) - _MAX_LINES} more"] * (len(problems) > _MAX_LINES)
        raise MismatchError(
            "shardings do not fit the leaves that they are for:\n"
            + "\n".join([*problems[:_MAX_LINES], *more])
        )
    entries.check_used([format_path(path) for path in paths])
    return placed


def _check(mesh: Any, rules: Any) -> None:
    """Raise TypeError for what is no mesh and what are no rules, ValueError for a bad pattern."""
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
            raise ValueError(f"rules: {pattern!r} is no regular expression: {e}") from e


class _Unfit(Exception):
    """A sharding does not fit a shape."""


def _shape(target: Target) -> tuple[int, ...]:
    """The shape of the array that a target becomes: of keys, without the axes of their data."""
    leaf = target.leaf
    if target.kind != "prng_key" or leaf.prng_impl is None:
        return leaf.shape
    from cordwood.devices.sharded_arrays import key_shape

    return key_shape(leaf.shape, leaf.prng_impl)


def _sharding(given: Any, mesh: Any, shape: tuple[int, ...], name: str) -> Any:
    import jax

    from cordwood.devices.sharded_arrays import sharding_of

    if given is None:
        if mesh is None:
            return None
        given = jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    is_spec = isinstance(given, jax.sharding.PartitionSpec)
    plain = sharding_of(given)
    if not is_spec and not isinstance(plain, jax.sharding.Sharding):
        raise TypeError(
            f"{name}: expected a jax Sharding, Format or PartitionSpec, found "
            f"{type(given).__name__}"
        )
    if is_spec and mesh is None:
        raise ValueError(f"{name}: {given} is a partition spec, which needs a mesh: pass mesh=")
    try:
        if is_spec:
            given = plain = jax.sharding.NamedSharding(mesh, given)
        plain.shard_shape(shape)
    except ValueError as e:
        raise _Unfit(explain_sharding_error(shape, given, mesh, e)) from e
    return given


class _Entries:
    """The entries of `shardings`: by key path, or by a name with '.' or '/' between the keys.

    An entry is for the leaf of that path, or for all leaves under it; the longest path counts.
    """

    def __init__(self, shardings: Any) -> None:
        self._of: dict[str, Any] = {}
        self._used: set[str] = set()
        if shardings is None:
            return
        flat = flatten(shardings)
        for path, value in zip(flat.paths, flat.leaves, strict=True):
            name = _joined(path, "/")
            if self._of.setdefault(name, value) is not value:
                raise ValueError(f"shardings: there are two entries for {name!r}")

    def of(self, path: KeyPath) -> Any:
        found = None
        for stop in range(len(path) + 1) if self._of else ():
            for name in (_joined(path[:stop], "."), _joined(path[:stop], "/")):
                if name in self._of:
                    self._used.add(name)
                    found = self._of[name]
        return found

    def check_used(self, names: Sequence[str]) -> None:
        unknown = [name for name in self._of if name not in self._used]
        if unknown:
            close = difflib.get_close_matches(unknown[0].replace(".", "/"), names, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"shardings: there is no leaf {unknown[0]!r}{hint}")


def _joined(path: KeyPath, separator: str) -> str:
    return separator.join(
        [str(key.value) if isinstance(key, DictKey) else str(key) for key in path]
    )
