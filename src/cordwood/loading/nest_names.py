"""The option `nest`: names with joined keys become nested dicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.errors import FormatError
from cordwood.keypath import KeyPath, format_path


def joined_separator(paths: Sequence[KeyPath], name: str) -> str | None:
    """Return the separator of the joined keys of a flat dict; None if no keys are joined.

    Raises ValueError if keys are joined by '.' and the dict is not flat.
    """
    joined = [path for path in paths if any(isinstance(key, str) and "." in key for key in path)]
    if not all(len(path) == 1 and isinstance(path[0], str) for path in paths):
        if joined:
            raise ValueError(
                f"nest=True: {name} holds containers already, and {format_path(joined[0])} has a "
                "key that is joined by '.': only the keys of one flat dict are split; load "
                "it without nest=True, or with rename="
            )
        return None
    if joined:
        return "."
    return "/" if any("/" in str(path[0]) for path in paths) else None


def nest_names(flat: dict[str, Any], separator: str, file_name: str) -> dict[str, Any]:
    """Return nested dicts: {'a.b': x} becomes {'a': {'b': x}} if the separator is '.'.

    Raises:
        FormatError: one name is both a leaf and a prefix of another.
    """
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(separator)
        node, prefix = tree, ""
        for parent in parents:
            prefix = f"{prefix}{separator}{parent}" if node is not tree else parent
            if prefix in flat:
                raise FormatError(
                    f"{file_name}: {name!r} cannot be nested: {prefix!r} is a leaf too; "
                    "load it without nest=True"
                )
            node = node.setdefault(parent, {})
        node[last] = value
    return tree
