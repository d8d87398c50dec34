"""Key paths: where a leaf sits in its tree.

A path is a tuple of keys. A `str` is a string key of a dict or a field of a named tuple,
dataclass or other node; an `int` is a position in a list or tuple; a dict key that is
neither is wrapped: `DictKey(1)`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

__all__ = ["DictKey", "Key", "KeyPath"]


class DictKey(NamedTuple):
    """A dict key that is not a string: int, bool, float, None, bytes, or a tuple of those."""

    value: Any


Key: TypeAlias = str | int | DictKey
KeyPath: TypeAlias = tuple[Key, ...]
