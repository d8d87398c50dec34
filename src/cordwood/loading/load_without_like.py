"""The targets of a load without `like`: the stored tree itself, or its names nested."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from cordwood.errors import MismatchError
from cordwood.index import Index
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_target import default_targets
from cordwood.loading.matching.match_names import SEPARATORS
from cordwood.loading.matching.match_result import Matching
from cordwood.loading.nest_names import joined_separator, nest_names
from cordwood.message_text import counted
from cordwood.tree.flatten import build_tree


def match_without_like(index: Index, options: LoadOptions, *, name: str) -> Matching:
    """Return targets for all leaves of the index, of the kinds that were saved.

    Args:
        index: the stored leaves.
        options: `to` and `nest` are used.
        name: the checkpoint's name in errors.

    Raises:
        MismatchError: leaves have no names, so only a `like` could give the structure.
        ValueError: `nest` is true and the names to split are in containers, or `rename` has
            turned them into paths.
    """
    if index.naming == "positions":
        raise MismatchError(
            f"{name} holds {counted(len(index.leaves), 'array')} without names or structure: pass "
            "like=, a tree like the one that was saved (equinox.filter_eval_shape makes one that "
            "takes no memory)"
        )
    paths = [leaf.key_path for leaf in index.leaves]
    targets = default_targets(index.leaves, options.to)
    separator = SEPARATORS.get(index.naming)
    if options.nest and separator is None:
        separator = joined_separator(paths, name)
    if not options.nest or separator is None:
        return Matching(targets, paths, partial(build_tree, index.structure))
    if any(len(path) > 1 for path in paths):
        raise ValueError("nest=True is for names as they are; rename has made paths of some")
    paths = [tuple(separator.join(map(str, path)).split(separator)) for path in paths]

    def rebuild(values: Sequence[Any]) -> Any:
        return nest_names(build_tree(index.structure, values), separator, name)

    return Matching(targets, paths, rebuild)
