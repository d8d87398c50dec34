"""Arguments of the calls that save and restore an item: what to store, or what to make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = [
    "ArrayRestore",
    "ArraySave",
    "CheckpointArgs",
    "Composite",
    "JsonRestore",
    "JsonSave",
    "PyTreeRestore",
    "PyTreeSave",
    "StandardRestore",
    "StandardSave",
    "register_with_handler",
]

C = TypeVar("C", bound=type)
_HANDLERS: dict[type, type] = {}  # the handlers of users, by the classes of their arguments


@dataclass
class CheckpointArgs:
    """The base class of the arguments of one item."""


@dataclass
class StandardSave(CheckpointArgs):
    """Save a tree."""

    item: Any
    save_args: Any = None


@dataclass
class StandardRestore(CheckpointArgs):
    """Restore a tree as `item` is one: its structure, shapes, dtypes, kinds and shardings.

    `fallback_sharding` is of the leaves of `item` that have none.
    """

    item: Any = None
    strict: bool = True
    fallback_sharding: Any = None


@dataclass
class PyTreeSave(CheckpointArgs):
    """Save a tree; the `dtype` of a `SaveArgs` casts a leaf of it."""

    item: Any
    save_args: Any = None


@dataclass
class PyTreeRestore(CheckpointArgs):
    """Restore a tree with the structure of `item`, and its leaves as `restore_args` say.

    With `transforms={}` or `partial_restore=True`, leaves that only the checkpoint has are left
    out, and leaves that only `item` has stay as they are.
    """

    item: Any = None
    restore_args: Any = None
    transforms: Any = None
    transforms_default_to_original: bool = True
    legacy_transform_fn: Any = None
    partial_restore: bool = False


@dataclass
class ArraySave(CheckpointArgs):
    """Save one array, or one number."""

    item: Any
    save_args: Any = None


@dataclass
class ArrayRestore(CheckpointArgs):
    """Restore one array, or one number."""

    item: Any = None
    restore_args: Any = None


@dataclass
class JsonSave(CheckpointArgs):
    """Save a value that JSON holds."""

    item: Any


@dataclass
class JsonRestore(CheckpointArgs):
    """Restore a value that JSON holds."""

    item: Any = None


class NoItemError(KeyError, AttributeError):
    """A `Composite` has no item of a name; by its key and as an attribute."""

    __str__ = Exception.__str__


class Composite(Mapping[str, Any]):
    """Several items by name: their arguments, or what was restored, also as attributes."""

    def __init__(self, **items: Any) -> None:
        self.__dict__.update(_items=dict(items))

    def __getitem__(self, name: str) -> Any:
        items: dict[str, Any] = self.__dict__["_items"]
        if name not in items:
            names = ", ".join(items) or "none"
            raise NoItemError(f"there is no item {name!r}; there are: {names}")
        return items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__["_items"])

    def __len__(self) -> int:
        return len(self.__dict__["_items"])

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError("a Composite does not change: make another one")

    def __repr__(self) -> str:
        return f"Composite({', '.join(f'{name}={self[name]!r}' for name in self)})"


def register_with_handler(
    handler: type, for_save: bool = False, for_restore: bool = False
) -> Callable[[C], C]:
    """Return a decorator that says which handler of yours takes arguments of a class.

    Args:
        handler: the class of the handler, which has `save` and `restore`.
        for_save: True for arguments of `save`.
        for_restore: True for arguments of `restore`.
    """
    if not for_save and not for_restore:
        raise ValueError("register_with_handler: expected for_save=True or for_restore=True")

    def register(cls: C) -> C:
        _HANDLERS[cls] = handler
        return cls

    return register


def handler_class_of(arguments: object) -> type | None:
    """Return the class of the handler that takes arguments, where a user has registered one."""
    return _HANDLERS.get(type(arguments))
