"""Containers of a stored tree beside those of `like`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.index import Naming, Structure
from cordwood.keypath import KeyPath
from cordwood.loading.matching.match_names import match_name

_EMPTY = "an empty container"
_NOTHING = frozenset({"None", _EMPTY})
_MAPPINGS = frozenset({"dict", "namedtuple", "object"})


class Container(NamedTuple):
    """A container of a tree: a dict, list, tuple, None or another node."""

    path: KeyPath
    kind: str
    empty: bool


class DifferentKinds(NamedTuple):
    """A container whose kind differs from that of `like`."""

    name: Any
    container: Container  # of `like`
    stored_kind: str


class NoneInLike(NamedTuple):
    """None in `like`, where nothing is stored."""

    name: Any
    container: Container


class NoneInCheckpoint(NamedTuple):
    """A stored None, where `like` has nothing."""

    name: Any
    container: Container


def containers_by_name(structure: Structure, naming: Naming) -> dict[Any, Container]:
    """Return the containers by their match names; all nodes with named fields are one kind."""
    result: dict[Any, Container] = {}
    stack: list[KeyPath] = [()]
    for node in structure:
        path = stack.pop()
        if node.kind == "leaf":
            continue
        kind: str = node.kind
        keys: Sequence[Any] = node.keys or range(node.size)
        if kind == "dict" and node.type_name in ("list", "tuple"):  # some selected elements of one
            kind, keys = node.type_name, [getattr(key, "value", key) for key in node.keys]
        if naming == "keys":
            kind = "container" if node.size else _EMPTY
        elif kind == "none":
            kind = "None"
        elif naming == "strings":
            kind = "container"  # in a state dict all containers are dicts
        elif kind in _MAPPINGS:
            kind = "dict or node with fields"
        result[match_name(path, naming)] = Container(path, kind, not node.size)
        stack.extend((*path, key) for key in reversed(keys))
    return result


def remove_empty(by_name: Mapping[Any, Container], names: Collection[Any]) -> dict[Any, Container]:
    """Return the containers without the None nodes and empty containers of those names."""
    return {
        name: each
        for name, each in by_name.items()
        if not (each.kind in _NOTHING and name in names)
    }


def container_problems(
    stored: Mapping[Any, Container],
    expected: Mapping[Any, Container],
    *,
    missing: bool,
    extra: bool,
    moved: Collection[Any] = (),
) -> list[DifferentKinds | NoneInLike | NoneInCheckpoint]:
    """Return a problem for each container that differs.

    A container differs if its kind differs, or if it is None and on one side only. Other empty
    containers hold nothing, and may be on one side only.

    Args:
        stored: the containers of the checkpoint.
        expected: the containers of `like`.
        missing: `like` keeps leaves that are not stored; a None of `like` may be missing too.
        extra: stored leaves that `like` lacks are ignored; so is a stored None.
        moved: names of stored containers whose kind may differ, unless one of the two is None.
    """
    problems: list[DifferentKinds | NoneInLike | NoneInCheckpoint] = []
    for name, container in expected.items():
        other = stored.get(name)
        if other is not None and kinds_differ(other, container, is_moved=name in moved):
            problems.append(DifferentKinds(name, container, other.kind))
        elif other is None and container.kind == "None" and not missing:
            problems.append(NoneInLike(name, container))
    if not extra:
        problems += [
            NoneInCheckpoint(name, other)
            for name, other in stored.items()
            if other.kind == "None" and name not in expected
        ]
    return problems


def kinds_differ(one: Container, other: Container, *, is_moved: bool) -> bool:
    """Return True if the kinds of two containers differ and, of a moved one, one is None."""
    return one.kind != other.kind and (not is_moved or "None" in (one.kind, other.kind))


def described(container: Container) -> str:
    """Return a container in words."""
    if container.kind in _NOTHING:
        return container.kind
    return f"an empty {container.kind}" if container.empty else f"a {container.kind}"
