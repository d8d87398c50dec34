"""Names of key paths, by which stored leaves are matched with those of `like`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood.errors import MismatchError
from cordwood.index import Index, Naming
from cordwood.keypath import KeyPath, format_path

SEPARATORS: Mapping[Naming, str] = {"dotted": ".", "slashed": "/"}  # between the joined keys


def duplicate_name(index: Index, name: str) -> MismatchError:
    """Return the error of two stored leaves that have one name in the format."""
    seen: dict[Any, KeyPath] = {}
    for leaf in index.leaves:
        key = match_name(leaf.key_path, index.naming)
        if key in seen:
            break
        seen[key] = leaf.key_path
    return MismatchError(
        f"{name}: {format_path(seen[key])} and {format_path(leaf.key_path)} are both called "
        f"{key!r} there, so that `like` cannot say which is which; load without `like`"
    )


def match_name(path: KeyPath, naming: Naming) -> Any:
    """Return the name that leaves and containers are matched by.

    It is the key path as exactly as the naming of the format keeps it.
    """
    if naming == "exact":
        return path
    keys = tuple(str(key) if isinstance(key, (str, int)) else str(key.value) for key in path)
    separator = SEPARATORS.get(naming)
    return keys if separator is None else separator.join(keys)
