"""Names and containers of checkpoints and of `like`: comparison, and nesting of joined names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.errors import FormatError
from cordwood.index import Naming, Structure
from cordwood.keypath import KeyPath, path_label

_EMPTY = "an empty container"
_NOTHING = frozenset({"None", _EMPTY})
_MAPPINGS = frozenset({"dict", "namedtuple", "object"})


class Problem(NamedTuple):
    """One line of an error, with the name of the leaf or container that it is about."""

    name: Any
    text: str


class Container(NamedTuple):
    """A container of a tree: a dict, list, tuple, None or another node."""

    path: KeyPath
    kind: str
    empty: bool


def match_name(path: KeyPath, naming: Naming) -> Any:
    """Return the name that leaves and containers are matched by.

    It is the key path as exactly as the naming of the format keeps it.
    """
    if naming == "exact":
        return path
    keys = tuple(str(key) if isinstance(key, (str, int)) else str(key.value) for key in path)
    separator = SEPARATORS.get(naming)
    return keys if separator is None else separator.join(keys)


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
        if kind == "dict" and node.type_name in (
            "list",
            "tuple",
        ):  # some selected elements of a list or tuple
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
) -> list[Problem]:
    """Return a problem for each container that differs.

    A container differs if its kind differs, or if it is None and on one side only. Other empty
    containers hold nothing, and may be on one side only.

    Args:
        stored: the containers of the checkpoint.
        expected: the containers of `like`.
        missing: `like` keeps leaves that are not stored; a None of `like` may be missing too.
        extra: stored leaves that `like` lacks are ignored; so is a stored None.
    """
    problems = []
    for name, container in expected.items():
        other = stored.get(name)
        label = path_label(container.path)
        if other is not None and other.kind != container.kind:
            text = f"{label}: expected {container.kind}, found {other.kind}"
            problems.append(Problem(name, text))
        elif other is None and container.kind == "None" and not missing:
            text = f"{label}: {_described(container)} in `like`, and nothing in the checkpoint"
            problems.append(Problem(name, text))
    problems += [
        Problem(
            name,
            f"{path_label(other.path)}: {_described(other)} in the checkpoint, "
            "and nothing in `like`",
        )
        for name, other in stored.items()
        if other.kind == "None" and name not in expected and not extra
    ]
    return problems


def leaf_container_problems(
    containers: Mapping[Any, Container],
    like_containers: Mapping[Any, Container],
    leaves: Mapping[Any, str],
    like_leaves: Mapping[Any, str],
    *,
    missing: bool,
) -> list[Problem]:
    """Return a problem for each place where one side has a leaf and the other a container.

    Args:
        containers: the containers of the checkpoint, by name.
        like_containers: the containers of `like`.
        leaves: the types of stored leaves as text, by name.
        like_leaves: the types of the leaves of `like`.
        missing: `like` keeps leaves that are not stored.
    """
    ignore = ' (extra="ignore" skips it)'
    keep = "" if missing else ' (missing="keep" keeps the value of `like`)'
    problems = [
        Problem(
            name,
            f"{path_label(like_containers[name].path)}: expected "
            f"{_described(like_containers[name])}, found {leaf}"
            f"{ignore if like_containers[name].kind == 'None' else ''}",
        )
        for name, leaf in leaves.items()
        if name in like_containers
    ]
    problems += [
        Problem(
            name,
            f"{path_label(containers[name].path)}: expected {leaf}, "
            f"found {_described(containers[name])}"
            f"{keep if containers[name].kind == 'None' else ''}",
        )
        for name, leaf in like_leaves.items()
        if name in containers
    ]
    return problems


def merge_problems(problems: Sequence[Problem], covering: Sequence[Problem]) -> list[Problem]:
    """Return the problems; each covering problem replaces those in its subtree."""
    over = {problem.name: problem for problem in covering}
    kept: dict[Any, Problem] = {}
    for i, problem in enumerate(problems):
        prefixes = [problem.name[:stop] for stop in range(len(problem.name) + 1)]
        cover = next((over[prefix] for prefix in prefixes if prefix in over), None)
        if cover is None:
            kept[i] = problem
        else:
            kept.setdefault((cover.name,), cover)
    return list(kept.values())


def _described(container: Container) -> str:
    if container.kind in ("None", _EMPTY):
        return container.kind
    return f"an empty {container.kind}" if container.empty else f"a {container.kind}"


SEPARATORS: Mapping[Naming, str] = {"dotted": ".", "slashed": "/"}  # between the joined keys


def nest_names(flat: dict[str, Any], separator: str, file_name: str) -> dict[str, Any]:
    """Return nested dicts: {'a.b': x} becomes {'a': {'b': x}} if the separator is '.'.

    Raises:
        FormatError: one name is both a leaf and a prefix of another.
    """
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(separator)
        node, prefix = tree, ""
        for parent in parents:
            prefix = f"{prefix}{separator}{parent}" if node is not tree else parent
            if prefix in flat:
                raise FormatError(
                    f"{file_name}: {name!r} cannot be nested: {prefix!r} is a leaf too; "
                    "load it without nest=True"
                )
            node = node.setdefault(parent, {})
        node[last] = value
    return tree
