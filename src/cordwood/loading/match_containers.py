"""The containers of two trees that are to fit: which are of another kind, or are leaves there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.index import Naming
from cordwood.keypath import KeyPath, format_path
from cordwood.loading.nest_names import SEPARATORS
from cordwood.tree.structure import Structure

_EMPTY = "an empty container"
_NOTHING = frozenset({"None", _EMPTY})
_MAPPINGS = frozenset({"dict", "namedtuple", "object"})


class Problem(NamedTuple):
    """One line of an error: what it is about, and what it says."""

    name: Any
    text: str


class Container(NamedTuple):
    path: KeyPath
    kind: str
    empty: bool


def match_name(path: KeyPath, naming: Naming) -> Any:
    """What a leaf or container is found by: its key path, as coarse as a format keeps that."""
    if naming == "exact":
        return path
    keys = tuple(str(key) if isinstance(key, (str, int)) else str(key.value) for key in path)
    separator = SEPARATORS.get(naming)
    return keys if separator is None else separator.join(keys)


def path_label(path: KeyPath) -> str:
    """A key path, for an error."""
    return format_path(path) or "the root"


def containers_by_name(structure: Structure, naming: Naming) -> dict[Any, Container]:
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
        found[match_name(path, naming)] = Container(path, kind, not node.size)
        stack.extend((*path, key) for key in reversed(keys))
    return found


def remove_empty(found: Mapping[Any, Container], names: Collection[Any]) -> dict[Any, Container]:
    """Return the containers without each None of those names: there is nothing in its place."""
    return {
        name: each for name, each in found.items() if not (each.kind in _NOTHING and name in names)
    }


def container_problems(
    here: Mapping[Any, Container], there: Mapping[Any, Container], *, missing: bool, extra: bool
) -> list[Problem]:
    """Return the containers of another kind, and each None that only one side has, where nothing
    may be missing or extra; `here` are those stored, `there` those of `like`.

    Other empty containers hold nothing, and may be on one side alone.
    """
    problems = []
    for name, wanted in there.items():
        found = here.get(name)
        label = path_label(wanted.path)
        if found is not None and found.kind != wanted.kind:
            problems.append(Problem(name, f"{label}: expected {wanted.kind}, found {found.kind}"))
        elif found is None and wanted.kind == "None" and not missing:
            text = f"{label}: {_described(wanted)} in `like`, and nothing in the checkpoint"
            problems.append(Problem(name, text))
    problems += [
        Problem(
            name,
            f"{path_label(found.path)}: {_described(found)} in the checkpoint, "
            "and nothing in `like`",
        )
        for name, found in here.items()
        if found.kind == "None" and name not in there and not extra
    ]
    return problems


def leaf_container_problems(
    here: Mapping[Any, Container],
    there: Mapping[Any, Container],
    stored: Mapping[Any, str],
    wanted: Mapping[Any, str],
    *,
    missing: bool,
) -> list[Problem]:
    """Return a problem for each place where one side has a leaf and the other a container.

    Args:
        here: the containers that are stored.
        there: those of `like`.
        stored: what the leaves are that are stored, by their names.
        wanted: what those of `like` are.
        missing: whether `like` keeps leaves that are not stored.
    """
    ignore = ' (extra="ignore" passes over it)'
    keep = "" if missing else ' (missing="keep" keeps what `like` has)'
    problems = [
        Problem(
            name,
            f"{path_label(there[name].path)}: expected {_described(there[name])}, found {leaf}"
            f"{ignore if there[name].kind == 'None' else ''}",
        )
        for name, leaf in stored.items()
        if name in there
    ]
    problems += [
        Problem(
            name,
            f"{path_label(here[name].path)}: expected {leaf}, found {_described(here[name])}"
            f"{keep if here[name].kind == 'None' else ''}",
        )
        for name, leaf in wanted.items()
        if name in here
    ]
    return problems


def merge_problems(problems: Sequence[Problem], covering: Sequence[Problem]) -> list[Problem]:
    """The problems; those of a subtree that a covering one is about give way to that one."""
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
