"""State dicts: conversion of any tree to nested dicts with string keys, and back.

The functions and messages are those of `flax.serialization`; docs/state-dicts.md lists the
differences. Both directions use an explicit stack instead of recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from cordwood.errors import LimitError, MismatchError, UnsupportedLeafError
from cordwood.index import MAX_DEPTH
from cordwood.keypath import format_path
from cordwood.message_text import counted
from cordwood.state_dict.containers import PLAIN_DICT, ContainerFunctions
from cordwood.state_dict.handlers import Handler, cached_leaf_types, find_container, peer_path
from cordwood.state_dict.state_differences import state_differences
from cordwood.state_dict.state_errors import NonStringKeyError, error_text
from cordwood.state_dict.state_path import path_stack, state_key_path
from cordwood.tree.leaves import name_of_path

# An entry that is a container and still has to be converted: the dict that holds it, its name
# there, its container, its depth, and the entry of that dict itself. (A bare tuple, because there
# is one for each container.)
_Pending: TypeAlias = tuple[dict[str, Any], str, ContainerFunctions | Handler, int, Any]


def to_state_dict(target: Any) -> Any:
    """Return a tree as nested dicts with string keys; arrays and other leaves are not copied.

    A list or tuple becomes {'0': ..., '1': ...}, a named tuple or dataclass a dict of its fields,
    and a pytree node that is registered with jax a dict of its keys. A leaf is returned unchanged.

    Args:
        target: the tree.

    Returns:
        New dicts, in the order of the tree; or the leaf.

    Raises:
        CordwoodError: two keys of a dict have the same string form, such as 1 and '1' (also a
            ValueError); or a registered handler returned a dict with keys that are not strings
            (also a TypeError and an AssertionError).
        LimitError: the tree nests deeper than 1000 containers.
        Exception: any error of a handler or a node, with a note of the key path.

    Example:
        >>> to_state_dict({"layers": [1.0, (2.0,)]})
        {'layers': {'0': 1.0, '1': {'0': 2.0}}}
    """
    return _state_of(target, None)


def state_and_problems(target: Any) -> tuple[Any, list[UnsupportedLeafError | LimitError]]:
    """Return the state dict of any tree, and the problems of entries that have no state.

    Such entries are None. For a tree that nests too deep, or contains itself, the state is None.
    """
    problems: list[UnsupportedLeafError | LimitError] = []
    try:
        return _state_of(target, problems), problems
    except LimitError as e:
        return None, [*problems, e]


def _state_of(target: Any, problems: list[UnsupportedLeafError | LimitError] | None) -> Any:
    leaves = cached_leaf_types()
    root: dict[str, Any] = {"": target}
    stack: list[_Pending] = []
    _note_containers(root, None, leaves, stack, problems)
    while stack:
        entry = stack.pop()
        parent, name, container, depth, _ = entry
        value = parent[name]
        try:
            if isinstance(container, Handler):
                parent[name] = _call_to_state(container, value)
                continue
            names, children = container.open(value)
            state = dict(zip(names, children, strict=True))
        except Exception as e:
            if not _keep_problem(problems, entry, e):
                raise
            continue
        if names and depth >= MAX_DEPTH:
            raise _too_deep(value, _path_of(entry))
        # All children are entered now, to keep their order; containers are replaced later.
        parent[name] = state
        _note_containers(state, entry, leaves, stack, problems)
    return root[""]


def from_state_dict(target: Any, state: Any, name: str = ".", *, strict: bool = False) -> Any:
    """Return a tree with the structure of `target` and the leaves of `state`.

    Args:
        target: a tree that defines the containers, their types and keys; its leaves are not used.
        state: the state dict of such a tree, from `to_state_dict`.
        name: the name of this branch, for messages.
        strict: compare everything first: the type, shape and dtype of each leaf, and keys that
            only the state has. Otherwise, as in Flax, leaves are not checked: one of another shape
            is returned as it is; and keys that only the state has are left out of dicts.

    Returns:
        New containers that hold the leaves of `state`, which are not copied. If `target` is a
        leaf, `state` itself.

    Raises:
        MismatchError: the state lacks something that the target has, or has another structure.
            With `strict`, the message lists every difference.

    Example:
        >>> from_state_dict({"layers": [0.0, (0.0,)]}, {"layers": {"0": 1.0, "1": {"0": 2.0}}})
        {'layers': [1.0, (2.0,)]}
    """
    leaves = cached_leaf_types()
    if strict:
        differences = state_differences(target, state)
        if differences:
            count = len(differences)
            verb = "does" if count == 1 else "do"
            lines = [f"  {format_path(path) or '(root)'}: {what}" for path, what in differences]
            entries = f"{counted(count, 'entry', 'entries')} of the state dict"
            raise MismatchError("\n".join([f"{entries} {verb} not fit `target`:", *lines]))
    path = path_stack()
    before = len(path)
    try:
        return _restore(target, state, str(name), path, leaves)
    finally:
        del path[before:]


def _note_containers(
    state: dict[str, Any],
    above: _Pending | None,
    leaves: set[type],
    stack: list[_Pending],
    problems: list[UnsupportedLeafError | LimitError] | None,
) -> None:
    depth = 0 if above is None else above[3] + 1
    for name, child in state.items():
        if type(child) in leaves:
            continue
        try:
            container = find_container(child)
        except Exception as e:
            entry = (state, name, PLAIN_DICT, depth, above)
            if not _keep_problem(problems, entry, e):
                raise
            continue
        if container is not None:
            stack.append((state, name, container, depth, above))


def _path_of(entry: _Pending) -> str:
    names: list[str] = []
    above: _Pending | None = entry
    while above is not None:
        names.append(above[1])
        above = above[4]
    # The last name in the list is that of the root, which is empty.
    return name_of_path(state_key_path(reversed(names[:-1])))


def _keep_problem(
    problems: list[UnsupportedLeafError | LimitError] | None, entry: _Pending, error: Exception
) -> bool:
    """Add an error to the problems, with None for its entry, and return True.

    If there is no list of problems, add a note of the path to the error and return False.
    """
    if problems is None:
        error.add_note(f"It happened at {_path_of(entry)}.")
        return False
    problems.append(UnsupportedLeafError(f"{_path_of(entry)}: {error_text(error)}"))
    entry[0][entry[1]] = None
    return True


class _OpenDict(NamedTuple):
    """A container whose children are being restored."""

    build: Callable[[Any, list[Any]], Any]
    target: Any
    pending: Iterator[tuple[str, Any, Any]]  # name, child of the target, its state
    values: list[Any]


def _restore(target: Any, state: Any, name: str, path: list[str], leaves: set[type]) -> Any:
    frames = [_OpenDict(lambda _, values: values[0], None, iter([(name, target, state)]), [])]
    while True:
        frame = frames[-1]
        values = frame.values
        for child_name, child, child_state in frame.pending:
            container = None if type(child) in leaves else find_container(child)
            if container is None:
                values.append(child_state)
                continue
            path.append(child_name)
            if isinstance(container, Handler):
                with peer_path(container):
                    values.append(container.from_state(child, child_state))
                path.pop()
                continue
            names, children = container.open(child)
            if names and len(frames) > MAX_DEPTH:
                raise _too_deep(child, "/".join(path))
            states = container.select(child, names, child_state)
            pending = zip(names, children, states, strict=True)
            frames.append(_OpenDict(container.build, child, pending, []))
            break
        else:
            frames.pop()
            value = frame.build(frame.target, values)
            if not frames:
                return value
            path.pop()
            frames[-1].values.append(value)


def _call_to_state(handler: Handler, value: Any) -> Any:
    state = handler.to_state(value)
    if not isinstance(state, dict):
        return state
    for key in state:
        if not isinstance(key, str):
            error = NonStringKeyError("A state dict must only have string keys.")
            error.add_note(
                f"The handler of {type(value).__name__} returned the key {key!r}, "
                f"of type {type(key).__name__}."
            )
            raise error
    return _copy_dicts(state)


def _copy_dicts(state: dict[str, Any]) -> dict[str, Any]:
    """Copy nested dicts: the handler may keep its own ones, which callers must not change."""
    copy = state.copy()
    stack = [(copy, 1)]
    while stack:
        parent, depth = stack.pop()
        for key, value in parent.items():
            if type(value) is dict:
                if depth > MAX_DEPTH:
                    raise _too_deep(value, "what a handler returned")
                child = parent[key] = value.copy()
                stack.append((child, depth + 1))
    return copy


def _too_deep(value: Any, place: str) -> LimitError:
    return LimitError(
        f"the tree nests deeper than {MAX_DEPTH} containers (at {place[:80]}...), where it holds a "
        f"{type(value).__name__}; it may contain itself"
    )
