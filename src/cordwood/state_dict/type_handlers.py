"""Handlers: functions that convert values of other types to state dicts and back.

Types are looked up exactly, never by base class. Handlers that are registered here come first;
then, if those packages are loaded, handlers that are registered with Flax or with eFormer. A
thread keeps the current path of its restore, for the messages of the handlers.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from cordwood.keypath import Key, KeyPath

ToState: TypeAlias = Callable[[Any], Any]
FromState: TypeAlias = Callable[[Any, Any], Any]

_PEERS = ("flax.serialization", "eformer.pytree._serialization")

_NOTHING: dict[type, Any] = {}

_handlers: dict[type, Handler] = {}


class Handler(NamedTuple):
    """A pair of functions, and the module of the peer with which it is registered."""

    to_state: ToState
    from_state: FromState
    peer: str = ""  # "" for cordwood


def register_serialization_state(
    ty: type,
    ty_to_state_dict: ToState,
    ty_from_state_dict: FromState,
    override: bool = False,
) -> None:
    """Register functions that convert values of exactly the type `ty` to state dicts and back.

    Args:
        ty: the type. A handler for a named tuple class, or for dict, list or tuple
            (with `override`), replaces cordwood's native conversion.
        ty_to_state_dict: takes a value; returns its state, usually a dict with string keys.
        ty_from_state_dict: takes a value of the type, which defines the structure, and a state;
            returns a new value.
        override: replace an existing handler.

    Raises:
        ValueError: the type has a handler and `override` is False.

    Example:
        >>> class Point:
        ...     def __init__(self, x): self.x = x
        >>> register_serialization_state(Point, lambda p: {"x": p.x}, lambda p, s: Point(s["x"]))
    """
    if not override and (ty in _handlers or _is_builtin(ty)):
        raise ValueError(f'a serialization handler for "{ty.__name__}" is already registered')
    _handlers[ty] = Handler(ty_to_state_dict, ty_from_state_dict)


def is_serializable(target: Any) -> bool:
    """Return True if a type, or the type of a value, has a handler or is built in.

    Built in are dict, list, tuple and Partial. False does not mean that a value cannot be
    stored: named tuples and jax pytree nodes need no handler.
    """
    ty = target if isinstance(target, type) else type(target)
    return _is_builtin(ty) or ty in _handlers or find_peer_handler(ty) is not None


def find_registered_handler(ty: type) -> Handler | None:
    """Return the handler that is registered with cordwood for exactly `ty`, or None."""
    return _handlers.get(ty)


def find_peer_handler(ty: type) -> Handler | None:
    """Return the handler that is registered with Flax or eFormer for exactly `ty`, or None."""
    for peer in _PEERS:
        pair = _registry_of(peer).get(ty)
        if pair is not None:
            return Handler(pair[0], pair[1], peer)
    return None


def handler_counts() -> tuple[int, ...]:
    """Return the numbers of handlers, here and of each peer, to detect newly handled types."""
    return (len(_handlers), *[len(_registry_of(peer)) for peer in _PEERS])


def _registry_of(peer: str) -> dict[type, Any]:
    registry: dict[type, Any] = getattr(sys.modules.get(peer), "_STATE_DICT_REGISTRY", _NOTHING)
    return registry


@contextlib.contextmanager
def peer_path(handler: Handler) -> Iterator[None]:
    """Pass the path of the restore to a peer, so that messages of its handler contain it."""
    context = getattr(sys.modules.get(handler.peer), "_error_context", None)
    if context is None:
        yield
        return
    stack = context.path
    before = stack[:]
    stack[:] = path_stack()
    try:
        yield
    finally:
        stack[:] = before


def _is_builtin(ty: type) -> bool:
    if ty is dict or ty is list or ty is tuple:
        return True
    return ty.__name__ == "Partial" and ty is partial_type()


def partial_type() -> type | None:
    """Return jax.tree_util.Partial, or None if jax is not loaded."""
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)
    return getattr(tree_util, "Partial", None)


_POSITION = re.compile(r"0|[1-9][0-9]{0,17}")


class _Stack(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []


_stack = _Stack()


def path_stack() -> list[str]:
    """Return this thread's list of names, outermost first; a caller that appends also removes."""
    return _stack.names


def current_path() -> str:
    """Return the path that this thread is restoring, such as './params/0'; '' outside a restore."""
    return "/".join(_stack.names)


def state_key_path(names: Iterable[Key]) -> KeyPath:
    """Return names as a key path for messages; a string that is a position becomes an int."""
    return tuple(
        int(name) if isinstance(name, str) and _POSITION.fullmatch(name) else name for name in names
    )
