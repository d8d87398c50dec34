"""Everything in which a state dict differs from the tree it is to fill, in one message."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cordwood.errors import LimitError, MismatchError
from cordwood.keypath import DictKey, Key, KeyPath, format_path, is_dict_key
from cordwood.state_dict.state_containers import (
    PLAIN_DICT,
    Container,
    find_container,
    is_state_dict,
    upgrade_state,
)
from cordwood.state_dict.state_errors import describe_state
from cordwood.state_dict.type_handlers import Handler
from cordwood.tree.structure import MAX_DEPTH


def check_state(target: Any, state: Any) -> None:
    """Raise MismatchError, naming every difference, unless `state` fits `target` exactly."""
    differences = state_differences(target, state)
    if not differences:
        return
    count = len(differences)
    found = "1 entry" if count == 1 else f"{count} entries"
    verb = "does" if count == 1 else "do"
    lines = [f"  {format_path(path) or '(root)'}: {what}" for path, what in differences]
    raise MismatchError("\n".join([f"{found} of the state dict {verb} not fit `target`:", *lines]))


def state_differences(target: Any, state: Any) -> list[tuple[KeyPath, str]]:
    """Where and how `state` differs from what `target` would give, in the target's order.

    What only the state has comes before the rest of its container.
    """
    differences: list[tuple[KeyPath, str]] = []
    stack: list[_Pair] = [_Pair((), target, state)]
    while stack:
        pair = stack.pop()
        container, expected, is_state = _container(pair.expected, pair.is_state)
        what: str | None
        if isinstance(pair.found, _Missing):
            what = pair.found.what
        elif container is None:
            what = _leaf_difference(expected, pair.found)
        elif not is_state_dict(pair.found):
            size = len(container.open(expected)[0])
            entries = "1 entry" if size == 1 else f"{size} entries"
            what = f"expected {container.noun} of {entries}, found {describe_state(pair.found)}"
        else:
            what = None
            differences += _open_pair(container, expected, is_state, pair, stack)
        if what is not None:
            differences.append((pair.path, what))
    return differences


class _Missing(NamedTuple):
    what: str


class _Pair(NamedTuple):
    path: KeyPath
    expected: Any
    found: Any
    is_state: bool = False  # whether `expected` is what a handler made of the target


def _open_pair(
    container: Container, expected: Any, is_state: bool, pair: _Pair, stack: list[_Pair]
) -> list[tuple[KeyPath, str]]:
    """Put the children on the stack; returns what only the state has."""
    names, children = container.open(expected)
    if names and len(pair.path) >= MAX_DEPTH:
        raise LimitError(
            f"the tree nests deeper than {MAX_DEPTH} containers; it may contain itself"
        )
    state = upgrade_state(expected, pair.found)
    known = set(names)
    extras = [key for key in state.keys() if key not in known]  # noqa: SIM118  (duck-typed)
    keys = container.keys(expected)
    for key, name, child in zip(reversed(keys), reversed(names), reversed(children), strict=True):
        found = state[name] if name in state else _Missing(_missing(name, extras))
        stack.append(_Pair((*pair.path, key), child, found, is_state))
    return [((*pair.path, _extra_key(key)), _extra(key)) for key in extras]


def _container(expected: Any, is_state: bool) -> tuple[Container | None, Any, bool]:
    """How to open `expected`; what a handler gives is a state: dicts, and all else leaves."""
    if is_state:
        return (PLAIN_DICT if type(expected) is dict else None), expected, True
    container = find_container(expected)
    if isinstance(container, Handler):
        return _container(container.to_state(expected), True)
    return container, expected, False


def _extra_key(key: Any) -> Key:
    if isinstance(key, str):
        return key
    return DictKey(key) if is_dict_key(key) else str(key)


def _extra(key: Any) -> str:
    if isinstance(key, str):
        return "not in the target"
    return f"not in the target; its key is of type {type(key).__name__}, not str"


def _missing(name: str, extras: Sequence[Any]) -> str:
    close = difflib.get_close_matches(name, [key for key in extras if isinstance(key, str)], 1)
    hint = f"; did you mean {format_path((close[0],))}?" if close else ""
    return f"not in the state dict{hint}"


def _leaf_difference(expected: Any, found: Any) -> str | None:
    wanted, got = _signature(expected), _signature(found)
    if wanted == got:
        return None
    hint = ""
    if wanted[0] == got[0] == "array" and wanted[1] == got[1]:
        hint = f" (.astype({wanted[2]!r}) converts)"
    return f"expected {describe_state(expected)}, found {describe_state(found)}{hint}"


def _signature(leaf: Any) -> tuple[Any, ...]:
    """What has to be equal: kind, shape and dtype of arrays, the type of other leaves."""
    if isinstance(leaf, np.generic):
        return ("numpy scalar", leaf.dtype.name)
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return ("array", shape, dtype.name if isinstance(dtype, np.dtype) else str(dtype))
    if isinstance(leaf, (bytearray, memoryview)):
        return ("leaf", bytes)  # which is how they come back from a file
    return ("leaf", type(leaf))
