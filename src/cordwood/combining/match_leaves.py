"""The leaves of checkpoints that are combined, in one order: each has those of the first."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.comparing.pair_leaves import pair_leaves
from cordwood.errors import LossError, MismatchError
from cordwood.index import ARRAY_KINDS, Index, Leaf, leaf_text
from cordwood.keypath import path_label
from cordwood.message_text import counted, first_lines

_MAX_SHOWN = 10


def match_leaves(first: Index, others: Sequence[tuple[str, Index]]) -> list[Sequence[Leaf]]:
    """Return the leaves of other checkpoints in the order of those of the first.

    Args:
        first: the leaves of the first checkpoint.
        others: the name of each other one, and its leaves.

    Raises:
        MismatchError: leaves are missing, or there are more, or their shapes or kinds differ;
            names each. Dtypes may differ.
    """
    problems: list[str] = []
    matched = [_matched(first, index, name, problems) for name, index in others]
    if problems:
        raise MismatchError(
            "the trees to combine differ: expected the same leaves, of the same shapes, in all; "
            "select= takes the part that they have in common, rename= gives leaves other names\n"
            + first_lines(problems, _MAX_SHOWN)
        )
    return matched


def require_names(name: str, index: Index) -> None:
    """Raise LossError for a checkpoint whose arrays have no names."""
    if index.naming == "positions":
        raise LossError(
            f"{name} holds {counted(len(index.leaves), 'array')} without names or structure: load "
            "it with like=, and save what that returns"
        )


def _matched(first: Index, index: Index, name: str, problems: list[str]) -> Sequence[Leaf]:
    """Return leaves in the order of the first checkpoint; add what differs to `problems`."""
    paths = [leaf.key_path for leaf in first.leaves]
    pairs = pair_leaves(paths, first.naming, [leaf.key_path for leaf in index.leaves], index.naming)
    for number in pairs.first_only:
        problems.append(f"{path_label(paths[number])}: not in {name}")
    for number in pairs.second_only:
        problems.append(f"{path_label(index.leaves[number].key_path)}: only in {name}")
    leaves = []
    for number, other in pairs.both:
        one, leaf = first.leaves[number], index.leaves[other]
        if _type_of(one) != _type_of(leaf):
            problems.append(
                f"{path_label(one.key_path)}: {leaf_text(one)} and, in {name}, {leaf_text(leaf)}"
            )
        leaves.append(leaf)
    return leaves


def _type_of(leaf: Leaf) -> tuple[str, tuple[int, ...], str | None]:
    """Return what has to be equal: arrays of jax and numpy are, whatever their dtypes."""
    kind = leaf.kind if leaf.kind not in ARRAY_KINDS or leaf.kind == "prng_key" else "array"
    return kind, leaf.shape, leaf.prng_impl
