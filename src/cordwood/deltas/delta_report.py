"""The result of the making of a delta."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.message_text import printable, size_text
from cordwood.public_names import document_fields


@document_fields
class DeltaReport(NamedTuple):
    """The result of `delta`. As a string: one line.

    Attributes:
        base, target, destination: the paths.
        size_bytes: the size of the differences, in bytes.
        tree_bytes: the size of the elements of all arrays of the tree, in bytes.
        changed_tiles: how many tiles of the arrays changed.
        tiles: how many there are.
    """

    base: str
    target: str
    destination: str
    size_bytes: int
    tree_bytes: int
    changed_tiles: int
    tiles: int

    def __str__(self) -> str:
        return printable(
            f"{self.destination}: {size_text(self.size_bytes)} "
            f"{share_text(self.size_bytes, self.tree_bytes)} from {self.base} to {self.target}"
        )

    def __repr__(self) -> str:
        return str(self)


def share_text(size_bytes: int, tree_bytes: int) -> str:
    """Return how small a delta is beside its tree, in parentheses."""
    return f"({size_bytes / max(1, tree_bytes):.2%} of {size_text(tree_bytes)})"
