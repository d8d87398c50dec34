"""The first half of a load: the selected leaves of a checkpoint, matched with `like`."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from cordwood.errors import MismatchError
from cordwood.index import Arranged
from cordwood.loading.cast import cast_targets
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_without_like import match_without_like
from cordwood.loading.matching.match_by_position import match_by_position
from cordwood.loading.matching.match_like import match_like
from cordwood.loading.matching.match_result import Matching
from cordwood.loading.matching.nnx_like import warn_of_lost_ties, with_kinds_of_nnx
from cordwood.loading.unreadable_leaves import require_readable
from cordwood.plan.keys_of_like import with_keys_of_like
from cordwood.plan.select_leaves import SelectedLeaves, select_leaves
from cordwood.tree.flatten import flatten
from cordwood.tree.index_of_tree import index_of_tree
from cordwood.tree.nnx_modules import has_nnx


def select_and_match(
    reader: LeafReader, like: Any, options: LoadOptions
) -> tuple[SelectedLeaves, Matching]:
    """Return the leaves to load, and what to make of them. No array is read.

    Raises MismatchError if they do not fit `like`.
    """
    cast, name = options.cast, reader.path
    part = _selected(reader, like, options)
    index = part.stored
    if like is None:
        matching = match_without_like(index, options, name=name)
    elif index.naming == "positions":
        matching = match_by_position(index, like, options, name=name)
    else:
        if part.moved or has_nnx():
            flat = flatten(like)
            warn_of_lost_ties(flat)
            part = with_kinds_of_nnx(part, flat)
            if part.moved and index.naming == "exact":
                part = with_keys_of_like(part, flat.structure, flat.paths)
        index = part.stored
        transposed = {leaf.key_path for leaf in index.leaves if type(leaf.storage) is Arranged}
        matching = match_like(
            index,
            like,
            options,
            name=name,
            left_out=part.left_out,
            transposed=transposed,
            moved=part.moved,
        )
    targets = matching.targets
    if "unreadable" in map(itemgetter(1), targets):
        require_readable([target.leaf for target in targets], index.naming, name=name)
    if cast is not None and not isinstance(cast, bool):
        paths = [target.leaf.key_path for target in targets]
        targets = cast_targets(targets, paths, cast, naming=index.naming, where=name)
    return part, matching._replace(targets=targets)


def _selected(reader: LeafReader, like: Any, options: LoadOptions) -> SelectedLeaves:
    select, rename, transpose = options.select, options.rename, options.transpose
    if options.recipe is not None:
        from cordwood.recipes.map_index import map_selected

        types = None if like is None else index_of_tree(like, abstract=True)
        return map_selected(
            reader.index, options.recipe, select=select, where=reader.path, like=types
        )
    if select is None and not rename and transpose is None:
        return SelectedLeaves(reader.index, ())
    if reader.index.naming == "positions":
        raise MismatchError(
            f"{reader.path} holds arrays without names, which select, rename and transpose need"
        )
    return select_leaves(
        reader.index, select=select, rename=rename, transpose=transpose, where=reader.path
    )
