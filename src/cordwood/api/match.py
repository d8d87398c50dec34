"""Fitting what is stored to a `like` tree, leaf by leaf, or saying how it does not fit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from cordwood.api.nest import SEPARATORS
from cordwood.api.target import Target
from cordwood.errors import MismatchError, counted
from cordwood.index import Index, Leaf, LeafSpec, Naming
from cordwood.keypath import KeyPath, format_path
from cordwood.plan.described import described
from cordwood.plan.nearest import nearest_path
from cordwood.tree.flatten import Flat, flatten, unflatten
from cordwood.tree.leaves import ARRAY_KINDS, describe
from cordwood.tree.structure import Structure

__all__ = [
    "Container",
    "Extra",
    "Fit",
    "Missing",
    "containers",
    "difference",
    "fit",
    "label_of",
    "mismatch",
    "target_of",
]

Missing: TypeAlias = Literal["error", "keep"]
Extra: TypeAlias = Literal["error", "ignore"]

_MAX_LINES = 50
_NUMBERS = frozenset({"bool", "int", "float", "complex"})


class Fit(NamedTuple):
    """How to fill a `like`: what to read, and what to make of it."""

    targets: Sequence[Target]
    paths: Sequence[KeyPath]  # of the targets, in the tree that is to be filled
    rebuild: Callable[[Sequence[Any]], Any]


def fit(
    index: Index,
    like: Any,
    *,
    name: str,
    to: str | None,
    strict: bool,
    cast: bool,
    missing: Missing,
    extra: Extra,
    left_out: Collection[KeyPath],
) -> Fit:
    """Match the leaves of a checkpoint to those of `like` by key path.

    Args:
        index: what is stored, as far as it is wanted.
        like: what is to be filled.
        name: what the checkpoint is called in errors.
        to: what array leaves become; None: what they are in `like`.
        strict: whether shapes, dtypes and kinds have to agree, and leaves may not be extra.
        cast: whether dtypes may differ.
        missing: whether `like` keeps the leaves that are not stored.
        extra: whether leaves that `like` has not are passed over.
        left_out: what is stored, but not wanted.

    Raises:
        MismatchError: leaves are missing, extra or of another kind, shape or dtype; the
            message names all of them.
    """
    flat, rebuild = _take_apart(like, index.naming)
    stored = {_name_of(leaf.key_path, index.naming): leaf for leaf in index.leaves}
    if len(stored) < len(index.leaves):
        raise _alike(index, name)
    unwanted = {_name_of(path, index.naming) for path in left_out}
    problems: list[str] = []
    absent: list[tuple[int, KeyPath, bool]] = []
    targets: list[Target] = []
    filled: list[int] = []
    seen = set()
    for i, (path, leaf_like) in enumerate(zip(flat.paths, flat.leaves, strict=True)):
        key = _name_of(path, index.naming)
        leaf = stored.get(key)
        if leaf is None and missing == "keep" and not _is_abstract(leaf_like):
            continue
        spec = describe(path, leaf_like, abstract=True)
        if key in seen:
            problems.append(f"{label_of(path)}: another leaf of `like` has the name {key!r} too")
        seen.add(key)
        if leaf is None:
            absent.append((len(problems), path, key in unwanted))
            problems.append("")  # which is said when it is known what nothing has asked for
            continue
        problem = difference(leaf, spec, strict=strict, cast=cast)
        if problem:
            problems.append(f"{label_of(path)}: {problem}")
        else:
            targets.append(target_of(leaf, spec, leaf_like, to, cast=cast))
            filled.append(i)
    left = [format_path(leaf.key_path) for key, leaf in stored.items() if key not in seen]
    for i, path, is_unwanted in absent:
        close = nearest_path(format_path(path), left) if i < _MAX_LINES else None
        problems[i] = f"{label_of(path)}: {_absence(close, missing, is_unwanted)}"
    passes_over = extra == "ignore" or not strict
    if not passes_over:
        problems += [
            f"{label_of(leaf.key_path)}: in the checkpoint ({described(leaf)}), not in `like` "
            '(extra="ignore" passes over it)'
            for key, leaf in stored.items()
            if key not in seen
        ]
    if strict and index.naming not in SEPARATORS:
        problems += _container_problems(
            index.structure,
            flat.structure,
            index.naming,
            missing=missing == "keep",
            extra=passes_over,
        )
    if problems:
        raise mismatch(problems, name)
    if len(filled) == len(flat.leaves):
        return Fit(targets, flat.paths, rebuild)

    def rebuild_kept(values: Sequence[Any]) -> Any:
        leaves = list(flat.leaves)
        for i, value in zip(filled, values, strict=True):
            leaves[i] = value
        return rebuild(leaves)

    return Fit(targets, [flat.paths[i] for i in filled], rebuild_kept)


def _alike(index: Index, name: str) -> MismatchError:
    """Two stored leaves have one name: `like` cannot say which it means."""
    seen: dict[Any, KeyPath] = {}
    for leaf in index.leaves:
        key = _name_of(leaf.key_path, index.naming)
        if key in seen:
            break
        seen[key] = leaf.key_path
    return MismatchError(
        f"{name}: {format_path(seen[key])} and {format_path(leaf.key_path)} are both called "
        f"{key!r} there, so that `like` cannot say which is which; load without `like`"
    )


def _is_abstract(leaf: Any) -> bool:
    """Whether a leaf of `like` has a shape and a dtype, but no value to keep."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(leaf, jax.ShapeDtypeStruct)


def _absence(close: str | None, missing: Missing, unwanted: bool) -> str:
    """What to say of a leaf of `like` that nothing is to be read for."""
    what = "in the checkpoint, but not selected" if unwanted else "not in the checkpoint"
    if missing == "keep":
        what += ', and `like` has no value for missing="keep" to keep, only a shape and a dtype'
    if close is not None and not unwanted:
        return f"{what}; did you mean {close}?"
    return what if missing == "keep" else f'{what} (missing="keep" keeps what `like` has)'


def _take_apart(like: Any, naming: Naming) -> tuple[Flat, Callable[[Sequence[Any]], Any]]:
    if naming == "strings":
        from cordwood.tree.state_dict import from_state_dict, to_state_dict

        flat = flatten(to_state_dict(like))
        return flat, lambda values: from_state_dict(like, unflatten(flat, values))
    flat = flatten(like)
    return flat, lambda values: unflatten(flat, values)


def _name_of(path: KeyPath, naming: Naming) -> Any:
    if naming == "exact":
        return path
    keys = tuple(str(key) if isinstance(key, (str, int)) else str(key.value) for key in path)
    separator = SEPARATORS.get(naming)
    return keys if separator is None else separator.join(keys)


def label_of(path: KeyPath) -> str:
    return format_path(path) or "the root"


def difference(leaf: Leaf, spec: LeafSpec, *, strict: bool, cast: bool) -> str | None:
    """What keeps a stored leaf from taking the place of one in `like`; None if nothing."""
    expected = f"expected {described(spec)}, found {described(leaf)}"
    arrays = leaf.kind in ARRAY_KINDS, spec.kind in ARRAY_KINDS
    keys = "prng_key" in (leaf.kind, spec.kind)
    if keys and (leaf.kind != spec.kind or leaf.prng_impl != spec.prng_impl):
        return expected
    if arrays == (True, True):
        if leaf.shape != spec.shape:
            return expected if strict else None
        if leaf.dtype != spec.dtype and strict and not cast:
            return f"{expected} (cast=True converts)"
        return None
    if arrays == (False, False):
        return expected if leaf.kind != spec.kind and strict else None
    if leaf.shape == spec.shape == () and {leaf.kind, spec.kind} & _NUMBERS and not keys:
        return None if cast or not strict else f"{expected} (cast=True converts)"
    return expected


def target_of(leaf: Leaf, spec: LeafSpec, like: Any, to: str | None, *, cast: bool) -> Target:
    kind = spec.kind if leaf.kind in ARRAY_KINDS or spec.kind in ARRAY_KINDS else leaf.kind
    if to is not None and kind in ("jax", "numpy"):
        kind = "jax" if to == "jax" else "numpy"
    if kind == "numpy_scalar" and leaf.shape:
        kind = "numpy"
    sharding = _sharding(like) if kind in ("jax", "prng_key") else None
    dtype = spec.dtype if spec.dtype and (cast or not leaf.dtype) else leaf.dtype
    return Target(leaf, kind, dtype, spec.weak_type and kind == "jax", sharding)


def _sharding(like: Any) -> Any:
    """Where a leaf of `like` is committed to; None where it is not."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(like, jax.Array):
        return like.sharding if like.committed else None
    return getattr(like, "sharding", None)


class Container(NamedTuple):
    path: KeyPath
    kind: str
    empty: bool


def _container_problems(
    stored: Structure, like: Structure, naming: Naming, *, missing: bool, extra: bool
) -> list[str]:
    """Containers of another kind, and those without leaves that only one side has, where
    nothing may be missing or extra."""
    if stored == like:
        return []
    here, there = containers(stored, naming), containers(like, naming)
    problems = []
    for name, wanted in there.items():
        found = here.get(name)
        if found is not None and found.kind != wanted.kind:
            problems.append(f"{label_of(wanted.path)}: expected {wanted.kind}, found {found.kind}")
        elif found is None and wanted.empty and not missing:
            problems.append(f"{label_of(wanted.path)}: expected {_empty(wanted)}, found none there")
    problems += [
        f"{label_of(found.path)}: found {_empty(found)}, which `like` has not"
        for name, found in here.items()
        if found.empty and name not in there and not extra
    ]
    return problems


def _empty(container: Container) -> str:
    return container.kind if container.kind in ("None", _EMPTY) else f"an empty {container.kind}"


_EMPTY = "an empty container"
_MAPPINGS = frozenset({"dict", "namedtuple", "object"})


def containers(structure: Structure, naming: Naming) -> dict[Any, Container]:
    """The containers by the name of their path; nodes with named fields count as one kind."""
    found: dict[Any, Container] = {}
    stack: list[KeyPath] = [()]
    for node in structure:
        path = stack.pop()
        if node.kind == "leaf":
            continue
        kind: str = node.kind
        keys: Sequence[Any] = node.keys or range(node.size)
        if kind == "dict" and node.type_name in ("list", "tuple"):  # selected elements of one
            kind, keys = node.type_name, [getattr(key, "value", key) for key in node.keys]
        if naming == "keys":
            kind = "container" if node.size else _EMPTY
        elif kind == "none":
            kind = "None"
        elif naming == "strings":
            kind = "container"  # a state dict has made dicts of them all
        elif kind in _MAPPINGS:
            kind = "dict or node with fields"
        found[_name_of(path, naming)] = Container(path, kind, not node.size)
        stack.extend((*path, key) for key in reversed(keys))
    return found


def mismatch(problems: Sequence[str], name: str) -> MismatchError:
    """The error that lists them all."""
    lines = [f"  {problem}" for problem in problems[:_MAX_LINES]]
    if len(problems) > _MAX_LINES:
        lines.append(f"  ... and {len(problems) - _MAX_LINES} more")
    count = counted(len(problems), "leaf", "leaves")
    verb = "do" if len(problems) > 1 else "does"
    return MismatchError(f"{count} of {name} {verb} not fit `like`:\n" + "\n".join(lines))
