"""Values, dtypes and shapes as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.index import ARRAY_KINDS, Inline, Leaf, Naming
from cordwood.keypath import key_literal


def split_path(path: str, naming: Naming) -> list[str]:
    """Return the keys of a key path as text; names that a format has joined are split.

    >>> split_path("params/w", "exact"), split_path("layers.0.w", "dotted")
    (['params', 'w'], ['layers', '0', 'w'])
    """
    if naming == "dotted":
        return path.split(".")
    if naming == "slashed":
        return path.replace("%2F", "/").split("/")
    return path.split("/")


def dtype_text(leaf: Leaf) -> str:
    """Return the dtype of an array, or the kind of any other leaf."""
    if leaf.kind == "prng_key":
        return f"key<{leaf.prng_impl}>"
    return leaf.dtype if leaf.kind in ARRAY_KINDS else leaf.kind


def value_text(leaf: Leaf, length: int) -> str | None:
    """Return the value of a leaf that the index holds, as text; None if it does not hold it."""
    if not isinstance(leaf.storage, Inline):
        return None
    return literal(leaf.storage.value, length)


def literal(value: Any, length: int) -> str:
    """Return a value as a Python literal of limited length, made of its beginning only."""
    text = key_literal(value[: length + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= length else f"{text[:length]}..."


def shape_of_value(leaf: Leaf) -> Sequence[int]:
    """Return the shape of an array; of PRNG keys, without the axis of their data."""
    return leaf.shape[:-1] if leaf.kind == "prng_key" else leaf.shape
