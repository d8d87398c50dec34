"""A tree as it was saved, where no `like` says what it is to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordwood.api.match import Fit
from cordwood.api.nest import SEPARATORS, nest_names
from cordwood.api.restore import targets_as_saved
from cordwood.errors import MismatchError, counted
from cordwood.index import Index
from cordwood.tree.flatten import build

__all__ = ["fit_as_saved"]


def fit_as_saved(index: Index, *, name: str, to: str | None, nest: bool) -> Fit:
    """Everything as it was saved; arrays as `to` says.

    With `nest`, joined names become nested dicts.

    Raises:
        MismatchError: leaves have no names, so that only a `like` could say what they are.
        ValueError: names are to be nested that other names have made paths of.
    """
    if index.naming == "positions":
        raise MismatchError(
            f"{name} holds {counted(len(index.leaves), 'array')} without names or structure: pass "
            "like=, a tree like the one that was saved (equinox.filter_eval_shape makes one that "
            "takes no memory)"
        )
    paths = [leaf.key_path for leaf in index.leaves]
    targets = targets_as_saved(index.leaves, to)
    separator = SEPARATORS.get(index.naming)
    if not nest or separator is None:
        return Fit(targets, paths, lambda values: build(index.structure, values))
    if any(len(path) > 1 for path in paths):
        raise ValueError("nest=True is for names as they are; rename has made paths of some")
    paths = [tuple(separator.join(map(str, path)).split(separator)) for path in paths]

    def rebuild(values: Sequence[Any]) -> Any:
        return nest_names(build(index.structure, values), separator, name)

    return Fit(targets, paths, rebuild)
