"""The differences of a state dict from the tree that it shall restore, all in one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.did_you_mean import nearest_name
from cordwood.errors import LimitError
from cordwood.index import MAX_DEPTH
from cordwood.keypath import KeyPath, format_path
from cordwood.message_text import counted
from cordwood.state_dict.containers import (
    PLAIN_DICT,
    ContainerFunctions,
    as_key,
    is_state_dict,
    upgrade_state,
)
from cordwood.state_dict.handlers import Handler, find_container
from cordwood.state_dict.state_errors import describe_state


def state_differences(target: Any, state: Any) -> list[tuple[KeyPath, str]]:
    """Return the differences of `state` from the state dict of `target`, in the target's order.

    Entries that only the state has come before the other entries of their container.
    """
    differences: list[tuple[KeyPath, str]] = []
    stack: list[_Pair] = [_Pair((), target, state)]
    while stack:
        pair = stack.pop()
        container, expected, is_state = _container(pair.expected, pair.is_state)
        difference: str | None
        if isinstance(pair.state, _Missing):
            difference = pair.state.text
        elif container is None:
            difference = _leaf_difference(expected, pair.state)
        elif not is_state_dict(pair.state):
            size = len(container.open(expected)[0])
            entries = counted(size, "entry", "entries")
            state_text = describe_state(pair.state)
            difference = f"expected {container.noun} of {entries}, found {state_text}"
        else:
            difference = None
            differences += _open_pair(container, expected, is_state, pair, stack)
        if difference is not None:
            differences.append((pair.path, difference))
    return differences


class _Missing(NamedTuple):
    """An entry that the state lacks."""

    text: str  # for the message


class _Pair(NamedTuple):
    """A part of the target and the part of the state at the same path."""

    path: KeyPath
    expected: Any
    state: Any
    is_state: bool = False  # `expected` is a state that a handler has returned for the target


def _open_pair(
    container: ContainerFunctions, expected: Any, is_state: bool, pair: _Pair, stack: list[_Pair]
) -> list[tuple[KeyPath, str]]:
    """Push the children on the stack; return the entries that only the state has."""
    names, children = container.open(expected)
    if names and len(pair.path) >= MAX_DEPTH:
        raise LimitError(
            f"the tree nests deeper than {MAX_DEPTH} containers; it may contain itself"
        )
    state = upgrade_state(expected, pair.state)
    expected_names = set(names)
    extras = [key for key in state.keys() if key not in expected_names]  # noqa: SIM118  (duck-typed)
    keys = names if container.keys is None else container.keys(expected)
    for key, name, child in zip(reversed(keys), reversed(names), reversed(children), strict=True):
        child_state = state[name] if name in state else _Missing(_missing(name, extras))
        stack.append(_Pair((*pair.path, key), child, child_state, is_state))
    return [((*pair.path, as_key(key)), _extra(key)) for key in extras]


def _container(expected: Any, is_state: bool) -> tuple[ContainerFunctions | None, Any, bool]:
    """Return the container that opens `expected`, the value to open, and if that is a state.

    In a state, which a handler has returned, only dicts are containers.
    """
    if is_state:
        return (PLAIN_DICT if type(expected) is dict else None), expected, True
    container = find_container(expected)
    if isinstance(container, Handler):
        return _container(container.to_state(expected), True)
    return container, expected, False


def _extra(key: Any) -> str:
    if isinstance(key, str):
        return "not in the target"
    return f"not in the target; its key is of type {type(key).__name__}, not str"


def _missing(name: str, extras: Sequence[Any]) -> str:
    close = nearest_name(name, [key for key in extras if isinstance(key, str)])
    hint = f"; did you mean {format_path((close,))}?" if close is not None else ""
    return f"not in the state dict{hint}"


def _leaf_difference(target: Any, state: Any) -> str | None:
    expected, actual = _signature(target), _signature(state)
    if expected == actual:
        return None
    hint = ""
    if expected[0] == actual[0] == "array" and expected[1] == actual[1]:
        hint = f" (.astype({expected[2]!r}) converts)"
    return f"expected {describe_state(target)}, found {describe_state(state)}{hint}"


def _signature(leaf: Any) -> tuple[Any, ...]:
    """Return the properties that must be equal: shape and dtype of arrays, type of other leaves."""
    if isinstance(leaf, np.generic):
        return ("numpy scalar", leaf.dtype.name)
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return ("array", shape, dtype.name if isinstance(dtype, np.dtype) else str(dtype))
    if isinstance(leaf, (bytearray, memoryview)):
        return ("leaf", bytes)  # files return bytes for them
    return ("leaf", type(leaf))
