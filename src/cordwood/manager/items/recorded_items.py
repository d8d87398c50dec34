"""Items in the record of a step: trees, and the states of objects.

An item is one of these:

- a list of states, one per process: `{"json": ...}` or `{"bytes": ...}`;
- `{"tree": "item"}`: a tree of the checkpoint, whose prefix is the name of the item;
- `{"tree": "states", "processes": n}`: states that hold arrays, in a tree of that prefix. The tree
  is the state itself if n is 1, and otherwise the list of the states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood.errors import FormatError
from cordwood.manager.items.encode_state import decode_state

ITEM: Mapping[str, Any] = {"tree": "item"}
STATES = "states"


def describe(saved: Any) -> str:
    """Return the kind of an item of a record, in words."""
    return "a tree" if saved == ITEM else "a state"


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
        return [decode_state(state) for state in saved]
    except (TypeError, ValueError) as e:
        raise FormatError(f"{where}: no base64: {e}") from e
