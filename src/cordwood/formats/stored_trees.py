"""The trees of a checkpoint at a path, and the items there that are no trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood.formats.detect_format import read_with_format
from cordwood.formats.load_format import item_names, run_reader_of
from cordwood.formats.table import Format
from cordwood.storage.locations import Location


class StoredTrees(NamedTuple):
    """The trees of a checkpoint.

    Attributes:
        names: their prefixes, sorted; "" for the one without a prefix.
        others: the items that are no trees, each with its kind in words.
        is_directory: False for a file, which holds one tree.
    """

    names: Sequence[str]
    others: Mapping[str, str]
    is_directory: bool

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
        others = (
            run_reader_of(detected_format).other_items(location) if detected_format.runs else {}
        )
        names = item_names(detected_format, location)
        return StoredTrees(names, others, detected_format.is_directory)

    return read_with_format(location, trees_of, format=format, prefix=None)


def tree_text(name: str) -> str:
    """Return how a message names a tree."""
    return f"the tree {name!r}" if name else "the tree without a prefix"


def listed_trees(trees: StoredTrees) -> str:
    """Return all trees of a checkpoint in words."""
    return ", ".join(map(tree_text, trees.names))
