"""Handlers: the functions by which values of a type become a state dict, and are rebuilt from one.

A handler is a pair of functions for one type. Types are looked up exactly, never by base class.
Handlers that are registered here come first; then, if those packages are loaded, handlers that are
registered with Flax or with eFormer; then the containers with native state dicts.
"""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from cordwood.state_dict.containers import (
    BUILTIN,
    DEFAULT,
    FLAX,
    NAMEDTUPLE,
    ORDERED,
    PARTIAL,
    REGISTERED,
    ContainerFunctions,
    is_builtin,
    is_partial,
)
from cordwood.state_dict.state_path import path_stack
from cordwood.tree.flatten import open_registered
from cordwood.tree.leaves import is_jax_array

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
    if not override and (ty in _handlers or is_builtin(ty)):
        raise ValueError(f'a serialization handler for "{ty.__name__}" is already registered')
    _handlers[ty] = Handler(ty_to_state_dict, ty_from_state_dict)


def is_serializable(target: Any) -> bool:
    """Return True if a type, or the type of a value, has a handler or is built in.

    Built in are dict, list, tuple and Partial. False does not mean that a value cannot be
    stored: named tuples and jax pytree nodes need no handler.
    """
    ty = target if isinstance(target, type) else type(target)
    return is_builtin(ty) or ty in _handlers or find_peer_handler(ty) is not None


def find_peer_handler(ty: type) -> Handler | None:
    """Return the handler that is registered with Flax or eFormer for exactly `ty`, or None."""
    for peer in _PEERS:
        pair = _registry_of(peer).get(ty)
        if pair is not None:
            return Handler(pair[0], pair[1], peer)
    return None


def _registry_of(peer: str) -> dict[type, Any]:
    registry: dict[type, Any] = getattr(sys.modules.get(peer), "_STATE_DICT_REGISTRY", _NOTHING)
    return registry


@contextlib.contextmanager
def peer_path(handler: Handler) -> Iterator[None]:
    """Pass the path of the restore to a peer, so that messages of its handler contain it.

    For a handler of cordwood do nothing.
    """
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


# A cache of types that are leaves; it is valid until a type gets its first handler.
_leaf_types: set[type] = set()
_handler_counts: tuple[int, ...] = ()  # here and of each peer


def cached_leaf_types() -> set[type]:
    """Return the cached types of leaves; call it before each walk, for handlers may be new."""
    global _leaf_types, _handler_counts
    counts = (len(_handlers), *[len(_registry_of(peer)) for peer in _PEERS])
    if counts != _handler_counts:
        _leaf_types, _handler_counts = set(), counts
    return _leaf_types


def find_container(target: Any) -> ContainerFunctions | Handler | None:
    """Return the container or handler by which a value is stored; None for a leaf."""
    kind = type(target)
    if kind in _leaf_types:
        return None
    handler = _handlers.get(kind)
    if handler is not None:
        return handler
    builtin = BUILTIN.get(kind)
    if builtin is not None:
        return builtin
    if isinstance(target, tuple) and hasattr(target, "_fields"):
        return NAMEDTUPLE  # comes before the peers' handlers, as in Flax and eFormer
    if is_partial(kind):
        return PARTIAL
    peer = find_peer_handler(kind)
    if peer is not None:
        return FLAX.get(_origin(peer), peer)
    if kind is OrderedDict or kind is defaultdict:
        return ORDERED if kind is OrderedDict else DEFAULT
    if kind in _PYTHON_LEAVES or kind.__module__ == "numpy" or is_jax_array(target):
        _leaf_types.add(kind)
        return None
    return None if open_registered(target) is None else REGISTERED


_PYTHON_LEAVES = frozenset({bool, int, float, complex, str, bytes, type(None)})


def _origin(handler: Handler) -> str:
    """Return module and qualified name of a handler's function, to recognise Flax's handlers."""
    function = handler.to_state
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
