"""A foreign file that a test writes with the tool itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A file, and what its tool reads of it or the words of its refusal.

    Attributes:
        tool: the name of the package that writes it.
        content: a few words for the table of docs/foreign-files.md.
        file: the name of the file or directory.
        write: writes it at a path, and returns what the tool reads: a nested tree of arrays.
        refused: for a file that is not read, words of the message: what it is, what to do.
        unreadable: names of leaves that are listed, and refused when they are loaded.
    """

    tool: str
    content: str
    file: str
    write: Callable[[Path], Any]
    refused: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


def leaf_values(tree: Any) -> dict[str, Any]:
    """Return the leaves of nested dicts, lists and tuples, by their keys joined with '/'."""
    values: dict[str, Any] = {}
    pending: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, dict):
            pending += [((*path, str(key)), child) for key, child in node.items()]
        elif isinstance(node, (list, tuple)):
            pending += [((*path, str(i)), child) for i, child in enumerate(node)]
        elif node is not None:
            values["/".join(path)] = np.asarray(node)
    return values
