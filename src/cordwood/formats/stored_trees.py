"""The trees of a checkpoint at a path, and the items there that are no trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood.formats.detect_format import read_with_format
from cordwood.formats.load_format import item_names, other_item_reader_of
from cordwood.formats.stored_item import ItemKind
from cordwood.formats.table import Format
from cordwood.storage.locations import Location


class StoredTrees(NamedTuple):
    """The trees of a checkpoint.

    Attributes:
        format: the format of the checkpoint.
        names: their prefixes, sorted; "" for the one without a prefix.
        others: the kinds of the items that are no trees, by their names.
    """

    format: Format
    names: Sequence[str]
    others: Mapping[str, ItemKind]

    @property
    def kinds(self) -> Mapping[str, ItemKind]:
        """The kinds of all items by their names, without the tree that has no name."""
        return {**{name: ItemKind.TREE for name in self.names if name}, **self.others}

    def default(self) -> str | None:
        """Return the tree that is meant where none is named; None if one has to be named."""
        return "" if "" in self.names else self.names[0] if len(self.names) == 1 else None

    def beside(self, name: str | None) -> list[str]:
        """Return the other trees, and the items that are no trees, in words."""
        return [tree_text(each) for each in self.names if each != name] + self.other_texts()

    def other_texts(self) -> list[str]:
        """Return the items that are no trees, in words."""
        return [f"the item {name!r} ({kind})" for name, kind in self.others.items()]


def stored_trees(location: Location, *, format: str | None = None) -> StoredTrees:
    """Return the trees of a checkpoint at a path or URL.

    Raises whatever `cordwood.open` does.
    """

    def trees_of(detected_format: Format) -> StoredTrees:
        others: Mapping[str, ItemKind] = {}
        if detected_format.other_items:
            others = other_item_reader_of(detected_format).other_items(location)
        return StoredTrees(detected_format, item_names(detected_format, location), others)

    return read_with_format(location, trees_of, format=format, prefix=None)


def tree_text(name: str) -> str:
    """Return how a message names a tree."""
    return f"the tree {name!r}" if name else "the tree without a prefix"


def listed_trees(trees: StoredTrees) -> str:
    """Return all trees of a checkpoint in words."""
    return ", ".join(map(tree_text, trees.names))
