"""Items to restore beside a tree: trees, and the states of objects, from a step of a manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood.errors import MismatchError
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_tree import load_checkpoint
from cordwood.loading.matching.match_types import is_abstract
from cordwood.manager.items.encode_state import encode_arrays
from cordwood.manager.items.recorded_items import ITEM, describe, saved_states
from cordwood.manager.items.resplit_states import METHODS_TEXT, is_resplittable, resplit_states
from cordwood.manager.items.stateful import is_stateful
from cordwood.message_text import counted
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.locations import Location
from cordwood.threads.log import log
from cordwood.tree.flatten import flatten


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
    forms = saved if type(saved) is list else [encode_arrays(state, "") for state in states]
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
