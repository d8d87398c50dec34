"""Checkpointables of version 1: trees and objects with a state, as the arguments of an item."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from cordwood.compat.orbax.args import CheckpointArgs, PyTreeSave, StandardRestore
from cordwood.compat.orbax.items_to_store import DEFAULT_ITEM
from cordwood.manager.items.stateful import is_stateful

STATE = "state"  # the name of a tree that has none


class IteratorArgs(CheckpointArgs):
    """Save or restore the state of an object."""

    def __init__(self, item: Any) -> None:
        self.item = item


class AsyncResponse:
    """A save that is running. `result` waits for it."""

    def __init__(self, wait: Callable[[], None], value: Any) -> None:
        self._wait = wait
        self._value = value

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the save; raise its exception if it failed. `timeout` has no effect."""
        del timeout
        self._wait()
        return self._value


def as_save_arguments(checkpointables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that save each checkpointable."""
    return {
        name: IteratorArgs(value) if is_stateful(value) else PyTreeSave(value)
        for name, value in checkpointables.items()
    }


def as_restore_arguments(target: Any) -> Any:
    """Return the arguments that restore a tree like a target, or set the state of an object."""
    return IteratorArgs(target) if is_stateful(target) else StandardRestore(target)


def stored_names(names: Iterable[str], stored: Collection[str]) -> dict[str, str]:
    """Return the names by which checkpointables are stored; the one without a name is STATE."""
    return {name: DEFAULT_ITEM if name == STATE and name not in stored else name for name in names}
