"""Items of a step beside its tree: more trees, and objects with a state, such as data iterators.

One file, because whatever tool saved a step, its items are asked for and checked in the same way.

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
from typing import Any, Protocol

import numpy as np

from cordwood import dtypes
from cordwood.encoding.strict_json import parse_json
from cordwood.errors import CorruptionError, FormatError, LimitError, MismatchError
from cordwood.formats.orbax.locate_trees import JAX_KEY, JSON, NUMPY_KEY, STATES, TREE
from cordwood.formats.stored_step import as_json
from cordwood.formats.stored_trees import stored_trees
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_tree import load_checkpoint
from cordwood.loading.matching.match_types import is_abstract
from cordwood.manager.resplit_states import METHODS_TEXT, is_resplittable, resplit_states
from cordwood.message_text import counted
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.locations import Location
from cordwood.storage.open_directory import directory_at
from cordwood.storage.readable_directory import ReadableDirectory
from cordwood.threads.log import log
from cordwood.tree.flatten import flatten

_MAX_JSON_BYTES = 1 << 28
_METRICS = "metrics"  # the item of Orbax's CheckpointManager itself
ITEM: Mapping[str, Any] = {"tree": "item"}
_STATES = "states"


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


def collect_states(
    items: Mapping[str, Any], *, process_count: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the message of this process for `join_items`; and by name, its trees and states.

    Args:
        items: by name: trees, or objects with a state.
        process_count: how many processes save together; if several, their states are exchanged.

    Raises TypeError if `items` is not a mapping, a name is not a str, or a state holds values that
    cannot be stored; ValueError if a name is empty.
    """
    require_mapping(items)
    values: dict[str, Any] = {}
    message: dict[str, Any] = {}
    for name, item in items.items():
        if type(name) is not str:
            raise TypeError(f"items: expected names that are str, found {name!r:.80}")
        if not name:
            raise ValueError("items: expected names that are not empty: '' is the tree itself")
        if not is_stateful(item):
            values[name], message[name] = item, ITEM
            continue
        get = item.get_state if _has(item, "get_state", "set_state") else item.state_dict
        values[name] = state = get()
        message[name] = _encode(state, f"items: {name}: {get.__name__}", whole=process_count > 1)
    return message, values


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
    answer: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the items as the record holds them, and the trees to save with the step, by prefix.

    Args:
        answer: what `join_items` returned.
        values: the trees and states of this process.
    """
    record = dict(answer)
    trees = {name: values[name] for name, states in answer.items() if states == ITEM}
    for name, states in answer.items():
        if states != ITEM and any("arrays" in state for state in states):
            count = len(states)
            trees[name] = values[name] if count == 1 else [_decode(each) for each in states]
            record[name] = {"tree": _STATES, "processes": count}
    return record, trees


def describe(saved: Any) -> str:
    """Return the kind of an item of a record, in words."""
    return "a tree" if saved == ITEM else "a state"


def require_items(
    items: Mapping[str, Any], kinds: Mapping[str, str], *, keeps: bool, path: str
) -> None:
    """Raise MismatchError unless a step has the items, or there are values to keep.

    Args:
        items: the requested items.
        kinds: the items of the step, each with its kind in words.
        keeps: True for missing="keep".
        path: the path of the step.
    """
    for name, item in items.items():
        if name not in kinds and not (keeps and _has_values(item)):
            available = ", ".join(f"{each} ({kind})" for each, kind in kinds.items()) or "none"
            raise MismatchError(
                f"{path} has no item {name!r}; it has: {available}. To restore the tree without "
                'it, leave it out of items=; missing="keep" keeps the tree that is given'
            )


def _has_values(item: Any) -> bool:
    """Return True if an item can be kept: it has a state, or is a tree of values."""
    if item is None or is_stateful(item):
        return item is not None
    return not any(map(is_abstract, flatten(item).leaves))


def load_item(
    path: Location,
    name: str,
    saved: Any,
    item: Any,
    options: Mapping[str, Any],
    processes: Rendezvous,
) -> Any:
    """Return an item of a manager's step: a tree, or the state of this process.

    Args:
        path: the path of the step.
        name: the name of the item.
        saved: the item in the record.
        item: its target: an object with a state, a tree as `like` is one, or None.
        options: as in `cordwood.load`, for a tree.
        processes: the processes that restore the step.

    Raises MismatchError if the item is of another kind, or if another number of processes saved
    states that differ, and `item` is neither None nor `Resplittable`. If those states are equal,
    process 0 logs a warning.
    """
    if (saved == ITEM) == is_stateful(item) and item is not None:
        type_text = "something with a state" if saved == ITEM else f"a {type(item).__name__}"
        expected = "a tree like it" if saved == ITEM else "what has set_state or load_state_dict"
        raise MismatchError(
            f"{path}: the item {name!r} was saved as {describe(saved)}: expected {expected}, or "
            f"None to get it as it was saved, found {type_text}"
        )
    if saved == ITEM:
        try:
            return load_checkpoint(path, item, LoadOptions(**options), prefix=name)
        except MismatchError as e:
            raise MismatchError(f"the item {name!r}: {e}") from e
    tree = None
    if type(saved) is dict:
        tree = load_checkpoint(path, None, LoadOptions(progress=options["progress"]), prefix=name)
    states = saved_states(saved, tree, f"{path}: items: {name}")
    if len(states) == processes.count:
        return states[processes.index]
    if is_resplittable(item):
        return resplit_states(
            item, states, process_index=processes.index, process_count=processes.count
        )
    forms = saved if type(saved) is list else [_encode_arrays(state, "") for state in states]
    if all(form == forms[0] for form in forms):
        if item is not None and processes.index == 0:
            log.warning(
                "%s: the item %r was saved by %s in one state, and %d restore it: all "
                "continue from it. Where each reads its own part of the data, records may be "
                "skipped or read twice: give it the methods %s",
                path,
                name,
                counted(len(states), "process", "processes"),
                processes.count,
                METHODS_TEXT,
            )
        return states[0]
    if item is None:
        return states
    raise MismatchError(
        f"{path}: the item {name!r} was saved by {len(states)} processes, each with a state of its "
        f"own, and {processes.count} restore it: give it the methods {METHODS_TEXT}, or restore "
        "without it, and set it yourself"
    )


def saved_states(saved: Any, tree: Any, where: str) -> list[Any]:
    """Return the states of an item, one for each process that saved it.

    Args:
        saved: the item in the record.
        tree: the tree that holds the states, if the record does not.
        where: the place of the item, for errors.
    """
    if type(saved) is dict:
        count = saved.get("processes")
        states = [tree] if count == 1 else tree
        if type(states) is not list or len(states) != count:
            raise FormatError(f"{where}: expected {count} states")
        return states
    if type(saved) is not list or not saved:
        raise FormatError(f"{where}: expected a list of states")
    for state in saved:
        if type(state) is not dict or list(state) not in (["json"], ["bytes"]):
            raise FormatError(f"{where}: expected a state, found {state!r:.80}")
    try:
        return [_decode(state) for state in saved]
    except (TypeError, ValueError) as e:
        raise FormatError(f"{where}: no base64: {e}") from e


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


# Items beside the tree in steps of other tools: JSON, random keys, states of iterators.
#
# <step>/<item>/_METADATA                     Orbax: a tree
# <step>/<item>/metadata                      Orbax's JsonSave: a file of JSON
# <step>/metrics/metrics                      Orbax's CheckpointManager: the metrics, as JSON
# <step>/<item>/jax_random_key/               Orbax's JaxRandomKeySave: an array, and beside it
# <step>/<item>/jax_random_key_metadata/metadata      {"typed": true} for a typed key
# <step>/<item>/np_random_key/                Orbax's NumpyRandomKeySave: a tree
# <step>/<item>/process_0-of-2.json           Grain's CheckpointSave: the state of each process


def foreign_items(location: Location) -> dict[str, str]:
    """Return the items of a step of another tool, each with its kind in words."""
    trees = stored_trees(location)
    return {**{name: TREE for name in trees.names if name}, **trees.others}


def foreign_extras(path: Location) -> dict[str, Any] | None:
    """Return the JSON items of a step of Orbax by their names; None if there are none.

    An item that is not JSON, whatever its name, is left out and logged: the caller did not ask for
    it, and the tree is complete without it.
    """
    extras = {}
    for name, kind in foreign_items(path).items():
        if kind == JSON and name != _METRICS:
            try:
                extras[name] = _json_item(path, name)
            except (CorruptionError, FormatError, LimitError) as e:
                log.warning("%s: the item %r is left out of extras: %s", path, name, e)
    return extras or None


def load_foreign_item(
    path: Location,
    name: str,
    item: Any,
    options: Mapping[str, Any],
    processes: Rendezvous,
) -> Any:
    """Return an item of a step of another tool.

    Args:
        path: the path of the step.
        name: the name of the item, from `foreign_items`.
        item: its target: an object with a state, a tree as `like` is one, or None.
        options: as in `cordwood.load`, for a tree.
        processes: the processes that restore the step, which have a state each.

    Raises MismatchError if the item is of another kind.
    """
    kind = foreign_items(path)[name]
    if kind == JSON:
        return _json_item(path, name)
    if kind == STATES:
        return _state_of_grain(path, name, item, processes)
    if kind == JAX_KEY:
        return _key(path, name, item)
    if kind == NUMPY_KEY:
        key = load_checkpoint(path.child(f"{name}/np_random_key"), None, LoadOptions(to="numpy"))
        with directory_at(path) as directory:
            about = read_json(directory, f"{name}/np_random_key_metadata/metadata")
        legacy = about.get("legacy")
        return tuple(key) if legacy else key
    if kind != TREE:
        raise MismatchError(f"{path}: the item {name!r} is {kind}: read it with what wrote it")
    like = None if is_stateful(item) else item
    return load_checkpoint(path, like, LoadOptions(**options), prefix=name)


def _state_of_grain(path: Location, name: str, item: Any, processes: Rendezvous) -> Any:
    """Return the state that Grain saved for this process: bytes for its loaders, else JSON."""
    if not is_stateful(item) and item is not None:
        raise MismatchError(
            f"{path}: the item {name!r} holds the states of an iterator: give the iterator, which "
            "has get_state and set_state, or None for the state itself"
        )
    file = f"process_{processes.index}-of-{processes.count}.json"
    with directory_at(path) as directory:
        names = directory.sizes(name)
        every = [f"process_{index}-of-{len(names)}.json" for index in range(len(names))]
        if file in names:
            files = [file]
        elif set(names) == set(every) and is_resplittable(item):
            files = every
        else:
            raise MismatchError(
                f"{path}: the item {name!r} has {', '.join(sorted(names))}, and no {file}: it was "
                "saved by another number of processes; give the iterator the methods "
                f"{METHODS_TEXT}, or restore without it, and set it yourself"
            )
        states: list[Any] = [
            directory.read(f"{name}/{each}", limit_bytes=_MAX_JSON_BYTES) for each in files
        ]
    if not (hasattr(item, "get_state") and isinstance(item.get_state(), bytes)):
        pairs = zip(states, files, strict=True)
        states = [_parsed(data, f"{path}/{name}/{each}") for data, each in pairs]
    if file in names:
        return states[0]
    return resplit_states(
        item, states, process_index=processes.index, process_count=processes.count
    )


def _key(path: Location, name: str, item: Any) -> Any:
    """Return a random key of jax; a typed one has the implementation of `item`."""
    import jax

    loaded = load_checkpoint(path.child(f"{name}/jax_random_key"), None, LoadOptions(to="jax"))
    (data,) = loaded.values() if isinstance(loaded, dict) else (loaded,)
    with directory_at(path) as directory:
        about = read_json(directory, f"{name}/jax_random_key_metadata/metadata")
    if not about.get("typed"):
        return data
    is_key = str(getattr(item, "dtype", "")).startswith("key<")
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(item) if is_key else None)


def _json_item(path: Location, name: str) -> Any:
    """Return a JSON item, from the file `metadata` or else from the file named as the item."""
    with directory_at(path) as directory:
        names = directory.sizes(name)
        return read_json(directory, f"{name}/metadata" if "metadata" in names else f"{name}/{name}")


def read_json(
    directory: ReadableDirectory, name: str, *, limit_bytes: int = _MAX_JSON_BYTES
) -> Any:
    """Return the value in a file of JSON in the directory of a step of another tool."""
    data = directory.read(name, limit_bytes=limit_bytes)
    return _parsed(data, f"{directory.name}/{name}")


def _parsed(data: bytes, where: str) -> Any:
    try:
        return parse_json(data.decode(), where, allow_nan=True)
    except UnicodeDecodeError as e:
        raise FormatError(f"{where} is not UTF-8 at byte {e.start}") from e
