"""The states of one iterator, for another number of processes than the one that saved them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

METHODS_TEXT = "merge_states(states) and split_state(state, process_index, process_count)"


class Resplittable(Protocol):
    """An object with a state that can continue with another number of processes.

    `CheckpointManager.restore` calls these methods of an item if the number of processes has
    changed, and then sets the state that `split_state` returned. They must not depend on the
    current state of the object.
    """

    def merge_states(self, states: list[Any]) -> Any:
        """Return one state of the whole job, from those of all processes that saved, in order."""
        ...

    def split_state(self, state: Any, process_index: int, process_count: int) -> Any:
        """Return the state of one process, from what `merge_states` returned."""
        ...


def is_resplittable(item: Any) -> TypeGuard[Resplittable]:
    """Return True if an item has the methods of `Resplittable`."""
    methods = (getattr(item, name, None) for name in ("merge_states", "split_state"))
    return all(map(callable, methods))


def resplit_states(
    item: Resplittable, states: Sequence[Any], *, process_index: int, process_count: int
) -> Any:
    """Return the state of a process, from the states of another number of processes."""
    return item.split_state(item.merge_states(list(states)), process_index, process_count)
