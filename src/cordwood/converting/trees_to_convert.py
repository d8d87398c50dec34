"""The trees of a source that a conversion writes, and what it leaves out or would lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood.errors import LossError
from cordwood.formats.stored_trees import StoredTrees
from cordwood.message_text import first_names

_MAX_NAMED = 10


class TreesToConvert(NamedTuple):
    """The trees of a source that are written.

    Attributes:
        prefixes: the prefix of each, and the one to write it under; None: no prefix, and to open
            the default tree.
        left_out: what is not converted because `select` or the format of the source says so.
        lost: other trees, which the call did not leave out by itself.
    """

    prefixes: Mapping[str | None, str | None]
    left_out: Sequence[str] = ()
    lost: Sequence[str] = ()


def trees_to_convert(
    source: StoredTrees,
    *,
    prefix: str | None,
    to_prefix: str | None,
    selects: bool,
    one_tree: bool,
) -> TreesToConvert:
    """Return the trees of a source at a path that a conversion writes.

    Args:
        source: the trees of the source.
        prefix: the tree that the caller chose.
        to_prefix: the prefix to write one tree under.
        selects: True if the caller selects leaves, which are those of one tree.
        one_tree: True if the destination holds one tree, or options apply to one.
    """
    others = source.other_texts()
    if prefix is not None:
        return TreesToConvert({prefix: to_prefix})
    if len(source.names) == 1:
        return TreesToConvert({None: to_prefix}, others)
    if not (one_tree or selects or to_prefix is not None):
        return TreesToConvert({name: name or None for name in source.names}, others)
    default = source.default()
    beside = [] if default is None else source.beside(default)  # opening it names the trees
    if selects:
        return TreesToConvert({None: to_prefix}, beside)
    trees = beside[: len(beside) - len(others)]
    return TreesToConvert({None: to_prefix}, others, trees)


def require_all_trees(lost: Sequence[str], source: str, destination: str) -> None:
    """Raise LossError if a conversion would write one tree of several that nobody has chosen."""
    if lost:
        raise LossError(
            f"converting {source} to {destination} would write the tree without a prefix alone, "
            f"and lose {first_names(lost, _MAX_NAMED)}: choose a tree with prefix= (--prefix), "
            "convert to a directory without options for one tree, which holds all of them, or "
            "accept the loss with lossy=True (--lossy)"
        )
