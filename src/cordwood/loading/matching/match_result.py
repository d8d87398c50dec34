"""The result of matching stored leaves with those of `like`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cordwood.keypath import KeyPath
from cordwood.loading.load_target import Target
from cordwood.tree.flatten import FlatTree


class Matching(NamedTuple):
    """A matched load: the targets to read, and the function that builds the tree from them."""

    targets: Sequence[Target]
    paths: Sequence[KeyPath]  # of the targets, in the resulting tree
    rebuild: Callable[[Sequence[Any]], Any]


def keeping_others(
    flat: FlatTree,
    filled: Sequence[int],
    targets: Sequence[Target],
    rebuild: Callable[[Sequence[Any]], Any],
) -> Matching:
    """Return the matching of the leaves of `like` at these positions; its others stay."""

    def rebuild_all(values: Sequence[Any]) -> Any:
        leaves = list(flat.leaves)
        for i, value in zip(filled, values, strict=True):
            leaves[i] = value
        return rebuild(leaves)

    return Matching(targets, [flat.paths[i] for i in filled], rebuild_all)
