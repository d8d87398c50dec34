"""Fitting what is stored to a `like` tree, leaf by leaf, or saying how it does not fit."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cordwood.api.nest import SEPARATORS
from cordwood.api.target import Target
from cordwood.errors import MismatchError, counted
from cordwood.index import Index, Leaf, LeafSpec, Naming
from cordwood.keypath import KeyPath, format_path
from cordwood.tree.flatten import Flat, flatten, unflatten
from cordwood.tree.leaves import ARRAY_KINDS, describe
from cordwood.tree.structure import Structure

__all__ = ["Fit", "described", "difference", "fit", "label_of", "mismatch", "target_of"]

_MAX_LINES = 50
_NUMBERS = frozenset({"bool", "int", "float", "complex"})


class Fit(NamedTuple):
    """How to fill a `like`: what to read, and what to make of it."""

    targets: Sequence[Target]
    paths: Sequence[KeyPath]  # of the targets, in the tree that is to be filled
    rebuild: Callable[[Sequence[Any]], Any]


def fit(index: Index, like: Any, *, name: str, to: str | None, strict: bool, cast: bool) -> Fit:
    """Match the leaves of a checkpoint to those of `like` by key path.

    Raises:
        MismatchError: leaves are missing, extra or of another kind, shape or dtype; the
            message names all of them.
    """
    flat, rebuild = _take_apart(like, index.naming)
    stored = {_name_of(leaf.key_path, index.naming): leaf for leaf in index.leaves}
    problems: list[str] = []
    targets: list[Target] = []
    seen = set()
    for path, leaf_like in zip(flat.paths, flat.leaves, strict=True):
        key = _name_of(path, index.naming)
        spec = describe(path, leaf_like, abstract=True)
        leaf = stored.get(key)
        if key in seen:
            problems.append(f"{label_of(path)}: another leaf of `like` has the name {key!r} too")
        seen.add(key)
        if leaf is None:
            problems.append(f"{label_of(path)}: not in the checkpoint{_suggestion(path, index)}")
            continue
        problem = difference(leaf, spec, strict=strict, cast=cast)
        if problem:
            problems.append(f"{label_of(path)}: {problem}")
        else:
            targets.append(target_of(leaf, spec, leaf_like, to, cast=cast))
    if strict:
        problems += [
            f"{label_of(leaf.key_path)}: in the checkpoint ({described(leaf)}), not in `like` "
            "(strict=False ignores it)"
            for key, leaf in stored.items()
            if key not in seen
        ]
        if index.naming not in SEPARATORS:
            problems += _container_differences(index.structure, flat.structure, index.naming)
    if problems:
        raise mismatch(problems, name)
    return Fit(targets, flat.paths, rebuild)


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


def _suggestion(path: KeyPath, index: Index) -> str:
    names = [format_path(leaf.key_path) for leaf in index.leaves]
    close = difflib.get_close_matches(format_path(path), names, n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""


def described(value: Leaf | LeafSpec) -> str:
    if value.kind == "prng_key":
        return f"key<{value.prng_impl}>[{_shape(value.shape[:-1])}]"
    if value.kind in ARRAY_KINDS:
        return f"{value.dtype}[{_shape(value.shape)}]"
    return value.kind


def _shape(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


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


class _Container(NamedTuple):
    path: KeyPath
    kind: str
    empty: bool


def _container_differences(stored: Structure, like: Structure, naming: Naming) -> list[str]:
    """Containers of another kind, and those without leaves that only one side has."""
    if stored == like:
        return []
    here, there = _containers(stored, naming), _containers(like, naming)
    problems = []
    for name, wanted in there.items():
        found = here.get(name)
        if found is not None and found.kind != wanted.kind:
            problems.append(f"{label_of(wanted.path)}: expected {wanted.kind}, found {found.kind}")
        elif found is None and wanted.empty:
            problems.append(f"{label_of(wanted.path)}: expected {_empty(wanted)}, found none there")
    problems += [
        f"{label_of(found.path)}: found {_empty(found)}, which `like` has not"
        for name, found in here.items()
        if found.empty and name not in there
    ]
    return problems


def _empty(container: _Container) -> str:
    return container.kind if container.kind in ("None", _EMPTY) else f"an empty {container.kind}"


_EMPTY = "an empty container"
_MAPPINGS = frozenset({"dict", "namedtuple", "object"})


def _containers(structure: Structure, naming: Naming) -> dict[Any, _Container]:
    """The containers by the name of their path; nodes with named fields count as one kind."""
    found: dict[Any, _Container] = {}
    stack: list[KeyPath] = [()]
    for node in structure:
        path = stack.pop()
        if node.kind == "leaf":
            continue
        kind: str = node.kind
        if naming == "keys":
            kind = "container" if node.size else _EMPTY
        elif kind == "none":
            kind = "None"
        elif naming == "strings":
            kind = "container"  # a state dict has made dicts of them all
        elif kind in _MAPPINGS:
            kind = "dict or node with fields"
        found[_name_of(path, naming)] = _Container(path, kind, not node.size)
        keys = node.keys or range(node.size)
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
