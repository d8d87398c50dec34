"""The containers of a tree without its leaves, as a flat list in pre-order.

Flat, so that no depth of nesting costs recursion, and JSON of it never nests deeply.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from cordwood.keypath import DictKey

__all__ = ["LEAF", "Node", "NodeKind", "Structure"]

NodeKind: TypeAlias = Literal["leaf", "none", "dict", "list", "tuple", "namedtuple", "object"]


class Node(NamedTuple):
    """One node; its children follow it in the list, each with all of its own first."""

    kind: NodeKind
    size: int = 0  # how many children
    keys: tuple[str | DictKey, ...] = ()  # dict keys or field names; empty for list and tuple
    type_name: str = ""  # of a namedtuple or object: for people to read, never imported


LEAF = Node("leaf")
Structure: TypeAlias = tuple[Node, ...]
