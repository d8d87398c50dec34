"""Containers with native state dicts: each is opened, and built, one level at a time.

So walking a tree needs no recursion.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from cordwood.errors import MismatchError
from cordwood.keypath import DictKey, Key, is_dict_key
from cordwood.state_dict.state_errors import (
    KeyCollisionError,
    MissingEntryError,
    WrongStateError,
    describe_state,
)
from cordwood.state_dict.state_path import current_path
from cordwood.tree.flatten import RegisteredNode, open_registered


def is_builtin(ty: type) -> bool:
    """Return True for a type that needs no handler."""
    return ty in BUILTIN or is_partial(ty)


def is_partial(ty: type) -> bool:
    """Return True for jax.tree_util.Partial."""
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)
    return ty.__name__ == "Partial" and ty is getattr(tree_util, "Partial", None)


OpenedContainer: TypeAlias = tuple[Sequence[str], Sequence[Any]]


class ContainerFunctions(NamedTuple):
    """The functions for one kind of container."""

    noun: str  # "a list"
    open: Callable[[Any], OpenedContainer]  # returns the names in its state dict, and the children
    select: Callable[[Any, Sequence[str], Any], list[Any]]  # returns each child's state, or raises
    build: Callable[[Any, list[Any]], Any]  # returns a container like the target, of new children
    keys: Callable[[Any], Sequence[Key]] | None = None  # of key paths; None: the names are the keys


def is_state_dict(state: Any) -> bool:
    """Return True if a state can hold entries: a dict, or anything with its methods."""
    return all(hasattr(state, name) for name in ("keys", "__getitem__", "__len__"))


def upgrade_state(target: Any, state: Any) -> Any:
    """Return a state in the present form.

    Until 2022 Flax stored a named tuple as {'name', 'fields', 'values'}. A named tuple with
    fields of exactly these names is not treated as such a state.
    """
    if not (isinstance(target, tuple) and hasattr(target, "_fields")):
        return state
    if set(state.keys()) != _LEGACY or set(target._fields) == _LEGACY:
        return state
    fields, values = state["fields"], state["values"]
    if not (is_state_dict(fields) and is_state_dict(values)):
        return state
    positions = [str(position) for position in range(len(fields))]
    if any(position not in fields or position not in values for position in positions):
        return state
    return {fields[position]: values[position] for position in positions}


_LEGACY = {"name", "fields", "values"}


def _require_state_dict(noun: str, names: Sequence[str], state: Any) -> None:
    if is_state_dict(state):
        return
    listed = ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")
    raise WrongStateError(
        f"expected a dict with the keys [{listed}] to restore {noun} from, found "
        f"{describe_state(state)} at path {current_path()}; the state was made from a tree of "
        "another structure"
    )


# dict, OrderedDict, defaultdict, FrozenDict


def _open_dict(target: Mapping[Any, Any]) -> OpenedContainer:
    names = list(map(str, target))
    if len(set(names)) != len(names):
        raise KeyCollisionError(
            f"Dict keys do not have a unique string representation: {set(names)} vs given: {target}"
        )
    return names, list(target.values())


def as_key(key: Any) -> Key:
    """Return the key of a dict as a key of key paths."""
    if isinstance(key, str):
        return key
    return DictKey(key) if is_dict_key(key) else str(key)


def _dict_keys(target: Mapping[Any, Any]) -> Sequence[Key]:
    return [as_key(key) for key in target]


def _select_dict(_target: Any, names: Sequence[str], state: Any) -> list[Any]:
    _require_state_dict("a dict", names, state)
    missing = set(names).difference(state.keys())
    if missing:
        raise MismatchError(
            "The target dict keys and state dict keys do not match, target dict contains keys "
            f"{missing} which are not present in state dict at path {current_path()}"
        )
    return [state[name] for name in names]


def _build_dict(target: Any, values: list[Any]) -> Any:
    return type(target)(zip(target, values, strict=True))


def _build_defaultdict(target: Any, values: list[Any]) -> Any:
    return defaultdict(target.default_factory, zip(target, values, strict=True))


def _open_frozen_dict(target: Any) -> OpenedContainer:
    # Its items() copies everything in it, recursively; `_dict` holds plain dicts.
    return _open_dict(target._dict)


def _build_frozen_dict(target: Any, values: list[Any]) -> Any:
    # The dicts in it are new and not shared, so the recursive copy is skipped.
    return type(target)(dict(zip(target, values, strict=True)), __unsafe_skip_copy__=True)


# list, tuple


def _open_list(target: Sequence[Any]) -> OpenedContainer:
    return list(map(str, range(len(target)))), target


def _select_list(target: Any, names: Sequence[str], state: Any) -> list[Any]:
    if not names and _is_empty(state):
        return []
    _require_state_dict(f"a {type(target).__name__} of {len(target)}", names, state)
    if len(state) != len(names):
        raise MismatchError(
            "The size of the list and the state dict do not match, "
            f"got {len(names)} and {len(state)} at path {current_path()}"
        )
    for name in names:
        if name not in state:
            raise MissingEntryError(
                f"a {type(target).__name__} of {len(names)} needs the keys '0' to "
                f"'{len(names) - 1}'; {name!r} is not among the keys {sorted(map(str, state))} "
                f"of the state dict at path {current_path()}"
            )
    return [state[name] for name in names]


def _is_empty(state: Any) -> bool:
    """Return True for a state of length 0.

    Flax accepts it for an empty list: [], '', an empty array.
    """
    try:
        return len(state) == 0
    except TypeError:
        return False


# named tuples


def _open_namedtuple(target: Any) -> OpenedContainer:
    return target._fields, [getattr(target, name) for name in target._fields]


def _select_namedtuple(target: Any, names: Sequence[str], state: Any) -> list[Any]:
    _require_state_dict(f"the named tuple {type(target).__name__}", names, state)
    state = upgrade_state(target, state)
    state_names, expected = set(state.keys()), set(names)
    if state_names != expected:
        raise MismatchError(
            "The field names of the state dict and the named tuple do not match, "
            f"got {state_names} and {expected} at path {current_path()}"
        )
    return [state[name] for name in names]


def _build_namedtuple(target: Any, values: list[Any]) -> Any:
    return type(target)(**dict(zip(target._fields, values, strict=True)))


# flax.struct dataclasses


def _data_fields(target: Any) -> list[str]:
    fields = dataclasses.fields(target)
    return [field.name for field in fields if field.metadata.get("pytree_node", True)]


def _open_struct(target: Any) -> OpenedContainer:
    names = _data_fields(target)
    return names, [getattr(target, name) for name in names]


def _select_struct(target: Any, names: Sequence[str], state: Any) -> list[Any]:
    kind = type(target).__name__
    _require_state_dict(f"an instance of {kind}", names, state)
    for name in names:
        if name not in state:
            raise MismatchError(
                f"Missing field {name} in state dict while restoring an instance of {kind}, "
                f"at path {current_path()}"
            )
    unknown = [str(key) for key in state if key not in names]
    if unknown:
        raise MismatchError(
            f'Unknown field(s) "{",".join(unknown)}" in state dict while restoring an instance '
            f"of {kind} at path {current_path()}"
        )
    return [state[name] for name in names]


def _build_struct(target: Any, values: list[Any]) -> Any:
    return target.replace(**dict(zip(_data_fields(target), values, strict=True)))


# jax.tree_util.Partial


def _open_partial(target: Any) -> OpenedContainer:
    return ("args", "keywords"), (target.args, target.keywords)


def _select_partial(_target: Any, names: Sequence[str], state: Any) -> list[Any]:
    _require_state_dict("a Partial", names, state)
    for name in names:
        if name not in state:
            raise MissingEntryError(
                f"a Partial needs the keys 'args' and 'keywords'; {name!r} is not in the state "
                f"dict at path {current_path()}"
            )
    return [state[name] for name in names]


def _build_partial(target: Any, values: list[Any]) -> Any:
    args, keywords = values
    return type(target)(target.func, *args, **keywords)


# any other node that is registered with jax


def _open_registered(target: Any) -> RegisteredNode:
    node = open_registered(target)
    assert node is not None
    return node


def _open_node(target: Any) -> OpenedContainer:
    node = _open_registered(target)
    names = [str(key.value if isinstance(key, DictKey) else key) for key in node.keys]
    if len(set(names)) != len(names):
        raise KeyCollisionError(
            f"The keys of {type(target).__name__}, a pytree node registered with jax, do not "
            f"have a unique string representation: {names}"
        )
    return names, node.children


PLAIN_DICT = ContainerFunctions("a dict", _open_dict, _select_dict, _build_dict, _dict_keys)
_LIST = ContainerFunctions(
    "a list", _open_list, _select_list, lambda _, values: values, lambda target: range(len(target))
)
_STRUCT = ContainerFunctions("a struct dataclass", _open_struct, _select_struct, _build_struct)
NAMEDTUPLE = ContainerFunctions(
    "a named tuple", _open_namedtuple, _select_namedtuple, _build_namedtuple
)
PARTIAL = ContainerFunctions("a Partial", _open_partial, _select_partial, _build_partial)
REGISTERED = ContainerFunctions(
    "a pytree node",
    _open_node,
    _select_struct,
    lambda target, values: _open_registered(target).unflatten(values),
    lambda target: _open_registered(target).keys,
)

ORDERED = PLAIN_DICT._replace(noun="an OrderedDict")
DEFAULT = PLAIN_DICT._replace(noun="a defaultdict", build=_build_defaultdict)

BUILTIN: dict[type, ContainerFunctions] = {
    dict: PLAIN_DICT,
    list: _LIST,
    tuple: _LIST._replace(noun="a tuple", build=lambda _, values: tuple(values)),
}

# Flax's own handlers, by name, are replaced by native containers; other handlers are called.
FLAX: dict[str, ContainerFunctions] = {
    "flax.struct.dataclass.<locals>.to_state_dict": _STRUCT,
    "flax.core.frozen_dict._frozen_dict_state_dict": PLAIN_DICT._replace(
        noun="a FrozenDict", open=_open_frozen_dict, build=_build_frozen_dict
    ),
}
