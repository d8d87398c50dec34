"""Objects with a state, such as data iterators, which are saved beside a tree."""

from __future__ import annotations

from typing import Any, Protocol


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
    return _has_methods(item, "get_state", "set_state") or _has_methods(
        item, "state_dict", "load_state_dict"
    )


def get_state(item: Any) -> Any:
    """Return the state of an item."""
    return getattr(item, name_of_get_state(item))()


def name_of_get_state(item: Any) -> str:
    """Return the name of the method that returns the state of an item."""
    return "get_state" if _has_methods(item, "get_state", "set_state") else "state_dict"


def set_state(item: Any, state: Any) -> None:
    """Set the state of an item."""
    if _has_methods(item, "get_state", "set_state"):
        item.set_state(state)
    else:
        item.load_state_dict(state)


def _has_methods(item: Any, *names: str) -> bool:
    return all(callable(getattr(item, name, None)) for name in names)
