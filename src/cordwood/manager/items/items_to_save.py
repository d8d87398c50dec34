"""Items to save beside a tree: more trees, and the states of objects on each process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cordwood.manager.items.encode_state import decode_state, encode_state
from cordwood.manager.items.item_arguments import require_mapping
from cordwood.manager.items.recorded_items import ITEM, STATES
from cordwood.manager.items.stateful import get_state, is_stateful, name_of_get_state


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
        values[name] = state = get_state(item)
        where = f"items: {name}: {name_of_get_state(item)}"
        message[name] = encode_state(state, where, whole=process_count > 1)
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
            trees[name] = values[name] if count == 1 else [decode_state(each) for each in states]
            record[name] = {"tree": STATES, "processes": count}
    return record, trees
