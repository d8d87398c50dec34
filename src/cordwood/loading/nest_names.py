"""Nested dicts from names that are joined keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordwood.errors import FormatError
from cordwood.index import Naming

SEPARATORS: Mapping[Naming, str] = {"dotted": ".", "slashed": "/"}  # between the joined keys


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
