"""Items of a step beside its tree: more trees, and objects with a state, such as data iterators.

In the record of a step an item is one of these:

- a list of states, one per process: `{"json": ...}` or `{"bytes": ...}`;
- `{"tree": "item"}`: a tree of the checkpoint, whose prefix is the name of the item;
- `{"tree": "states", "processes": n}`: states that hold arrays, in a tree of that prefix. The tree
  is the state itself if n is 1, and otherwise the list of the states.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from cordwood import dtypes
from cordwood.encoding.step_record import as_json
from cordwood.errors import FormatError, MismatchError

ITEM: Mapping[str, Any] = {"tree": "item"}
STATES = "states"


class Stateful(Protocol):
    """An object whose state `CheckpointManager` saves and restores beside a tree.

    Each process has its own state. The methods may also be called `state_dict` and
    `load_state_dict`, as in PyTorch.
    """

    def get_state(self) -> Any:
        """Return the state: bytes, what JSON holds, or dicts, lists and tuples with arrays."""
        ...

    def set_state(self, state: Any) -> None:
        """Continue from a state that `get_state` returned."""
        ...


def is_stateful(item: Any) -> bool:
    """Return True if an item has methods to get and set a state."""
    return _has(item, "get_state", "set_state") or _has(item, "state_dict", "load_state_dict")


def _has(item: Any, *names: str) -> bool:
    return all(callable(getattr(item, name, None)) for name in names)


def set_state(item: Any, state: Any) -> None:
    """Set the state of an item."""
    if _has(item, "get_state", "set_state"):
        item.set_state(state)
    else:
        item.load_state_dict(state)


def require_mapping(items: object) -> None:
    """Raise TypeError unless items are given by name."""
    if not isinstance(items, Mapping):
        raise TypeError(
            "items: expected a dict by name, such as {'ema': ema}, or {'ema': None} to restore it "
            f"as it was saved, found {items!r:.80}"
        )


class ItemsToSave(NamedTuple):
    """The items of one process, before the processes have exchanged them."""

    message: Mapping[str, Any]  # for `join_items`
    trees: Mapping[str, Any]  # items that are trees
    states: Mapping[str, Any]  # of the other items


def collect_states(items: Mapping[str, Any], *, process_count: int) -> ItemsToSave:
    """Get the states of the items of this process.

    Args:
        items: by name: trees, or objects with a state.
        process_count: how many processes save together; if several, their states are exchanged.

    Raises TypeError if `items` is not a mapping, a name is not a str, or a state holds values that
    cannot be stored; ValueError if a name is empty.
    """
    require_mapping(items)
    trees: dict[str, Any] = {}
    states: dict[str, Any] = {}
    message: dict[str, Any] = {}
    for name, item in items.items():
        if type(name) is not str:
            raise TypeError(f"items: expected names that are str, found {name!r:.80}")
        if not name:
            raise ValueError("items: expected names that are not empty: '' is the tree itself")
        if not is_stateful(item):
            trees[name], message[name] = item, ITEM
            continue
        get = item.get_state if _has(item, "get_state", "set_state") else item.state_dict
        states[name] = state = get()
        message[name] = _encode(state, f"items: {name}: {get.__name__}", whole=process_count > 1)
    return ItemsToSave(message, trees, states)


def join_items(every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the items of all processes as one message, from the message of each process."""
    kinds = [{name: item == ITEM for name, item in items.items()} for items in every]
    for process, kind in enumerate(kinds):
        if list(kind.items()) != list(kinds[0].items()):
            raise ValueError(
                f"items: process 0 saves {_kinds(kinds[0])}, process {process} {_kinds(kind)}"
            )
    return {
        name: ITEM if first == ITEM else [items[name] for items in every]
        for name, first in every[0].items()
    }


def _kinds(kinds: Mapping[str, bool]) -> str:
    return str([f"{name} (a tree)" if tree else name for name, tree in kinds.items()])


def states_tree(
    answer: Mapping[str, Any], collected: ItemsToSave
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the items as the record holds them, and the trees to save with the step, by prefix.

    Args:
        answer: what `join_items` returned.
        collected: the items of this process.
    """
    record: dict[str, Any] = {}
    trees = dict(collected.trees)
    for name, states in answer.items():
        if states != ITEM and any("arrays" in state for state in states):
            count = len(states)
            trees[name] = (
                collected.states[name] if count == 1 else [_decode(each) for each in states]
            )
            record[name] = {"tree": STATES, "processes": count}
        else:
            record[name] = states
    return record, trees


def describe(saved: Any) -> str:
    """Return the kind of an item of a record, in words."""
    return "a tree" if saved == ITEM else "a state"


def state_from_record(saved: Any, name: str, *, process: int, count: int, path: str) -> Any:
    """Return the state of this process from the record.

    Raises MismatchError if another number of processes saved the states, and they differ.
    """
    where = f"{path}: items: {name}"
    if type(saved) is not list or not saved:
        raise FormatError(f"{where}: expected a list of states")
    _require_count(saved, name, count=count, path=path)
    state = saved[process if len(saved) == count else 0]
    if type(state) is dict and list(state) in (["json"], ["bytes"]):
        try:
            return _decode(state)
        except (TypeError, ValueError) as e:
            raise FormatError(f"{where}: no base64: {e}") from e
    raise FormatError(f"{where}: expected a state, found {state!r:.80}")


def state_from_tree(
    tree: Any, saved: Any, name: str, *, process: int, count: int, path: str
) -> Any:
    """Return the state of this process from the tree that holds the states of all processes.

    Args:
        tree: the loaded tree.
        saved: the item in the record.
        name: the name of the item.
        process: the number of this process.
        count: the number of processes.
        path: the path of the step.

    Raises as `state_from_record` does.
    """
    states = tree if saved.get("processes") != 1 else [tree]
    if type(states) is not list or len(states) != saved.get("processes"):
        raise FormatError(f"{path}: items: {name}: expected {saved.get('processes')} states")
    if len(states) != count and len(states) > 1:
        _require_count([_encode_arrays(each, "") for each in states], name, count=count, path=path)
    return states[process if len(states) == count else 0]


def _require_count(states: Sequence[Any], name: str, *, count: int, path: str) -> None:
    if len(states) != count and any(state != states[0] for state in states):
        raise MismatchError(
            f"{path}: the item {name!r} was saved by {len(states)} processes, each with a "
            f"state of its own, and {count} restore it: restore without it, and set it yourself"
        )


def _encode(state: Any, where: str, *, whole: bool) -> dict[str, Any]:
    """Return a state as JSON.

    The arrays of a state are included if `whole`, and else replaced by a mark.
    """
    if isinstance(state, bytes):
        return {"bytes": base64.b64encode(state).decode()}
    try:
        return {"json": as_json(state, where)}
    except TypeError:
        try:
            encoded = _encode_arrays(state, where)
        except RecursionError:
            raise TypeError(f"{where}: it holds itself, or is nested too deep") from None
        return {"arrays": encoded if whole else None}


def _encode_arrays(value: Any, where: str) -> list[Any]:
    if type(value) in (dict, OrderedDict):
        return ["dict", [[key, _encode_arrays(v, f"{where}[{key!r}]")] for key, v in value.items()]]
    if type(value) in (list, tuple):
        inner = [_encode_arrays(each, f"{where}[{i}]") for i, each in enumerate(value)]
        return [type(value).__name__, inner]
    if value is None or type(value) in (bool, int, float, str):
        return ["json", value]
    if type(value) is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    type_text = f"a {type(value).__name__}"
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        try:
            array = np.asarray(value)
        except TypeError as e:  # a typed key of jax, which says what to do
            raise TypeError(f"{where}: {e}") from e
        if array.dtype.kind not in "OUSMmT":
            kind = "scalar" if isinstance(value, np.generic) else "array"
            data = base64.b64encode(array.tobytes()).decode()
            return [kind, dtypes.name_of(array.dtype), list(array.shape), data]
        what = {"O": "objects", "M": "dates", "m": "durations"}.get(array.dtype.kind, "text")
        type_text = f"an array of {what} ({array.dtype.str})"
    raise TypeError(
        f"{where}: expected bytes, values that JSON holds, or dicts, lists and tuples of these and "
        f"of arrays of numbers, found {type_text}"
    )


def _decode(state: Mapping[str, Any]) -> Any:
    if "bytes" in state:
        return base64.b64decode(state["bytes"], validate=True)
    return state["json"] if "json" in state else _decode_arrays(state["arrays"])


def _decode_arrays(encoded: list[Any]) -> Any:
    kind, *rest = encoded
    if kind == "dict":
        return {key: _decode_arrays(value) for key, value in rest[0]}
    if kind in ("list", "tuple"):
        elements = [_decode_arrays(value) for value in rest[0]]
        return elements if kind == "list" else tuple(elements)
    if kind == "json":
        return rest[0]
    if kind == "bytes":
        return base64.b64decode(rest[0])
    dtype, shape, data = rest
    array = np.frombuffer(base64.b64decode(data), dtypes.to_numpy(dtype)).reshape(shape).copy()
    return array[()] if kind == "scalar" else array
