"""Things that have a state beside the tree: iterators over data, Grain's among them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from cordwood.errors import FormatError, MismatchError
from cordwood.manager.records import as_json

__all__ = ["Stateful", "join_states", "require_items", "set_states", "states_of"]


class Stateful(Protocol):
    """What `CheckpointManager` saves and restores beside a tree.

    Each process has its own.
    """

    def get_state(self) -> Any:
        """The state: bytes, or what JSON holds."""
        ...

    def set_state(self, state: Any) -> None:
        """Go on from a state that `get_state` returned."""
        ...


def states_of(items: Mapping[str, Stateful]) -> bytes:
    """The states of this process, as one message. Raises TypeError."""
    for name in items:
        if type(name) is not str:
            raise TypeError(f"items: expected names that are str, found {name!r:.80}")
    states = {name: _encode(item.get_state(), name) for name, item in items.items()}
    return json.dumps(states).encode()


def join_states(messages: Sequence[bytes]) -> bytes:
    """Of the messages of all processes: by name, the states of each, in one message."""
    every = [json.loads(message) for message in messages]
    for process, states in enumerate(every):
        if list(states) != list(every[0]):
            raise ValueError(
                f"items: process 0 saves {list(every[0])}, process {process} {list(states)}"
            )
    return json.dumps({name: [states[name] for states in every] for name in every[0]}).encode()


def require_items(names: Collection[str], saved: Mapping[str, Any], *, path: str) -> None:
    """Raise MismatchError unless a step has such items."""
    for name in names:
        if name not in saved:
            known = ", ".join(saved) or "none"
            raise MismatchError(
                f"{path} has no item {name!r}; it has: {known}. To restore the tree without it, "
                "leave it out of items="
            )


def set_states(
    items: Mapping[str, Stateful], saved: Mapping[str, Any], *, process: int, count: int, path: str
) -> None:
    """Give each item its state of this process.

    Raises MismatchError where a step has no such item, or the states of another number of
    processes, which differ; nothing is set then.
    """
    found = {}
    require_items(items, saved, path=path)
    for name in items:
        states = saved[name]
        if type(states) is not list or not states:
            raise FormatError(f"{path}: items: {name}: expected a list of states")
        if len(states) == count:
            found[name] = _decode(states[process], f"{path}: items: {name}")
        elif all(state == states[0] for state in states):
            found[name] = _decode(states[0], f"{path}: items: {name}")
        else:
            raise MismatchError(
                f"{path}: the item {name!r} was saved by {len(states)} processes, each with a "
                f"state of its own, and {count} restore it: restore without it, and set it yourself"
            )
    for name, state in found.items():
        items[name].set_state(state)


def _encode(state: Any, name: str) -> dict[str, Any]:
    if isinstance(state, bytes):
        return {"bytes": base64.b64encode(state).decode()}
    return {"json": as_json(state, f"items: {name}: get_state")}


def _decode(state: Any, where: str) -> Any:
    if type(state) is dict and list(state) == ["json"]:
        return state["json"]
    if type(state) is dict and list(state) == ["bytes"] and type(state["bytes"]) is str:
        try:
            return base64.b64decode(state["bytes"], validate=True)
        except binascii.Error as e:
            raise FormatError(f"{where}: no base64: {e}") from e
    raise FormatError(f"{where}: expected a state, found {state!r:.80}")
