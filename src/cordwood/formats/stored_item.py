"""Items of a checkpoint beside its trees: their kinds, and what each kind stores."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from cordwood.storage.locations import Location


class ItemKind(StrEnum):
    """The kind of an item, in the words of messages."""

    TREE = "a tree"
    JSON = "JSON"
    JAX_KEY = "a random key of jax"
    NUMPY_STATE = "a random state of numpy"
    ITERATOR = "the state of an iterator"
    UNKNOWN = "of a kind that cordwood does not read"


class JsonItem(NamedTuple):
    """A value of JSON."""

    value: Any


class JaxKeyItem(NamedTuple):
    """A random key of jax."""

    data: Location  # a checkpoint with one leaf, the words of the key
    is_typed: bool


class NumpyStateItem(NamedTuple):
    """The state of a random generator of numpy."""

    state: Location  # a checkpoint
    is_legacy: bool  # it is the tuple of `RandomState.get_state`


class IteratorItem(NamedTuple):
    """The states of an iterator: files, one of each process that saved it.

    Attributes:
        files: the names of the files in the directory of the item, sorted.
        pattern: the name of the file of a process, a format string of `index` and `count`.
    """

    files: Sequence[str]
    pattern: str

    def file_of(self, index: int, *, count: int) -> str:
        """Return the name of the file of one of `count` processes, which may not exist."""
        return self.pattern.format(index=index, count=count)


StoredItem: TypeAlias = JsonItem | JaxKeyItem | NumpyStateItem | IteratorItem
