"""State dicts: any tree as nested dicts with string keys, and back into the shape of a target.

The calls and messages are those of `flax.serialization`; docs/state-dicts.md lists what differs.
Both directions keep their own stack, so depth costs no recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from cordwood.errors import LimitError, UnsupportedLeafError
from cordwood.keypath import format_path
from cordwood.state_dict.restore_path import path_stack, state_key_path
from cordwood.state_dict.state_containers import (
    PLAIN_DICT,
    Container,
    cached_leaf_types,
    find_container,
)
from cordwood.state_dict.state_errors import NonStringKeyError, error_text
from cordwood.state_dict.strict_restore import check_state
from cordwood.state_dict.type_handlers import (
    Handler,
    peer_path,
)
from cordwood.tree.structure import MAX_DEPTH

# A dict, the name of an entry in it that is not a leaf, what it is, how deep it lies, and the
# entry that this dict was. (A bare tuple: there is one for each container.)
_Unfilled: TypeAlias = tuple[dict[str, Any], str, Container | Handler, int, Any]


def to_state_dict(target: Any) -> Any:
    """A tree as nested dicts whose keys are strings; arrays and other leaves are not copied.

    A list or tuple becomes {'0': ..., '1': ...}, a named tuple or dataclass a dict of its fields,
    and a pytree node that is registered with jax a dict of its keys. A leaf is returned as it is.

    Args:
        target: the tree.

    Returns:
        New dicts, in the order of the tree; or the leaf.

    Raises:
        KeyCollisionError: two keys of a dict have one string form, as 1 and '1' have.
        NonStringKeyError: a registered handler returned a dict with other keys than strings.
        LimitError: the tree nests deeper than 1000 containers.
        Exception: whatever a handler or a node raised, with a note of the key path.

    Example:
        >>> to_state_dict({"layers": [1.0, (2.0,)]})
        {'layers': {'0': 1.0, '1': {'0': 2.0}}}
    """
    return _state_of(target, None)


def state_and_problems(target: Any) -> tuple[Any, list[UnsupportedLeafError | LimitError]]:
    """What `to_state_dict` gives of anything, and why the entries have no state that are None.

    Of a tree that nests too deep, or holds itself, there is None and one problem.
    """
    problems: list[UnsupportedLeafError | LimitError] = []
    try:
        return _state_of(target, problems), problems
    except LimitError as e:
        return None, [*problems, e]


def _state_of(target: Any, problems: list[UnsupportedLeafError | LimitError] | None) -> Any:
    leaves = cached_leaf_types()
    root: dict[str, Any] = {"": target}
    stack: list[_Unfilled] = []
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
            if not _kept(problems, entry, e):
                raise
            continue
        if names and depth >= MAX_DEPTH:
            raise _too_deep(value, _path_of(entry))
        # Every child is entered now, for the order; what is not a leaf is replaced later.
        parent[name] = state
        _note_containers(state, entry, leaves, stack, problems)
    return root[""]


def from_state_dict(target: Any, state: Any, name: str = ".", *, strict: bool = False) -> Any:
    """A tree with the structure of `target` and the leaves of `state`.

    Args:
        target: gives the containers, their types and their keys; its leaves are not used.
        state: what `to_state_dict` gave for such a tree.
        name: the name of this branch, for messages.
        strict: compare everything first: the type, shape and dtype of each leaf, and keys that
            only the state has. Otherwise leaves are taken as they are, and a dict leaves out
            what only the state has.

    Returns:
        New containers that hold the leaves of `state`, which are not copied. Where `target` is
        a leaf, `state` itself.

    Raises:
        MismatchError: the state lacks something that the target has, or does not have its
            structure. With `strict`, the message lists every difference.

    Example:
        >>> from_state_dict({"layers": [0.0, (0.0,)]}, {"layers": {"0": 1.0, "1": {"0": 2.0}}})
        {'layers': [1.0, (2.0,)]}
    """
    leaves = cached_leaf_types()
    if strict:
        check_state(target, state)
    path = path_stack()
    before = len(path)
    try:
        return _restore(target, state, str(name), path, leaves)
    finally:
        del path[before:]


def _note_containers(
    state: dict[str, Any],
    above: _Unfilled | None,
    leaves: set[type],
    stack: list[_Unfilled],
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
            if not _kept(problems, entry, e):
                raise
            continue
        if container is not None:
            stack.append((state, name, container, depth, above))


def _path_of(entry: _Unfilled) -> str:
    names: list[str] = []
    above: _Unfilled | None = entry
    while above is not None:
        names.append(above[1])
        above = above[4]
    # The first name is that of the root, which has none.
    return format_path(state_key_path(reversed(names[:-1]))) or "the tree itself"


def _kept(
    problems: list[UnsupportedLeafError | LimitError] | None, entry: _Unfilled, error: Exception
) -> bool:
    """Whether an error is kept as a problem, and its entry is None; else it tells where it was."""
    if problems is None:
        error.add_note(f"It happened at {_path_of(entry)}.")
        return False
    problems.append(UnsupportedLeafError(f"{_path_of(entry)}: {error_text(error)}"))
    entry[0][entry[1]] = None
    return True


class _Frame(NamedTuple):
    """A container whose children are being restored."""

    build: Callable[[Any, list[Any]], Any]
    target: Any
    pending: Iterator[tuple[str, Any, Any]]  # name, child of the target, its state
    values: list[Any]


def _restore(target: Any, state: Any, name: str, path: list[str], leaves: set[type]) -> Any:
    frames = [_Frame(_build_root, None, iter([(name, target, state)]), [])]
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
                values.append(_call_from_state(container, child, child_state))
                path.pop()
                continue
            names, children = container.open(child)
            if names and len(frames) > MAX_DEPTH:
                raise _too_deep(child, "/".join(path))
            states = container.select(child, names, child_state)
            pending = zip(names, children, states, strict=True)
            frames.append(_Frame(container.build, child, pending, []))
            break
        else:
            frames.pop()
            value = frame.build(frame.target, values)
            if not frames:
                return value
            path.pop()
            frames[-1].values.append(value)


def _build_root(_target: Any, values: list[Any]) -> Any:
    return values[0]


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
    """New dicts all the way down: what the handler holds on to is nobody else's to change."""
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


def _call_from_state(handler: Handler, target: Any, state: Any) -> Any:
    if not handler.peer:
        return handler.from_state(target, state)
    with peer_path(handler):
        return handler.from_state(target, state)


def _too_deep(value: Any, place: str) -> LimitError:
    return LimitError(
        f"the tree nests deeper than {MAX_DEPTH} containers (at {place[:80]}...), where it holds a "
        f"{type(value).__name__}; it may contain itself"
    )
