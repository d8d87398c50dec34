"""The metadata of a tree: the shapes and dtypes of its leaves. It serves as a target, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class ArrayMetadata:
    """The shape and dtype of a stored array. Its sharding is not recorded: None."""

    name: str
    directory: str
    shape: tuple[int, ...]
    sharding: Any
    dtype: Any
    storage: Any = None


@dataclass
class ScalarMetadata(ArrayMetadata):
    """The dtype of a stored number."""


@dataclass
class StringMetadata:
    """A stored text, bytes, or another value that is no number."""

    name: str
    directory: str
    shape: Any = None
    sharding: Any = None
    dtype: Any = None


class TreeMetadata:
    """The metadata of a tree: `tree` has that of each leaf, and so have its keys."""

    def __init__(self, tree: Any, custom_metadata: Any = None) -> None:
        self.tree = tree
        self.custom_metadata = custom_metadata
        _register()

    def __getitem__(self, key: Any) -> Any:
        return self.tree[key]

    def __contains__(self, key: object) -> bool:
        return key in self.tree

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tree)

    def __len__(self) -> int:
        return len(self.tree)

    def __getattr__(self, name: str) -> Any:
        if name in ("keys", "values", "items", "get"):
            return getattr(self.tree, name)
        raise AttributeError(f"'TreeMetadata' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"TreeMetadata({self.tree!r})"


_registered: list[type] = []


def _register() -> None:
    """Let jax.tree map over metadata, once jax is there."""
    jax = sys.modules.get("jax")
    if jax is not None and not _registered:
        _registered.append(TreeMetadata)
        jax.tree_util.register_pytree_node(
            TreeMetadata,
            lambda metadata: ((metadata.tree,), metadata.custom_metadata),
            lambda custom, children: TreeMetadata(children[0], custom),
        )
