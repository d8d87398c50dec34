"""Matching of stored leaves with those of `like`, by key path."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from cordwood.index import ARRAY_KINDS, Index, Leaf, Naming
from cordwood.keypath import KeyPath
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_target import Target
from cordwood.loading.matching.explain_mismatch import explain
from cordwood.loading.matching.match_containers import (
    Container,
    container_problems,
    containers_by_name,
    remove_empty,
)
from cordwood.loading.matching.match_names import SEPARATORS, duplicate_name, match_name
from cordwood.loading.matching.match_result import Matching, keeping_others
from cordwood.loading.matching.match_types import (
    as_cast,
    dtypes_of_cast,
    fits,
    is_abstract,
    make_target,
)
from cordwood.loading.matching.mismatch_kinds import (
    AbsentLeaf,
    ExtraLeaf,
    LeafForContainer,
    LeafInCheckpoint,
    LeafInLike,
    MisfitLeaf,
    Mismatch,
    NothingInCommon,
    Problem,
    SharedName,
    StaticLeaf,
)
from cordwood.tree.flatten import FlatTree, flatten, unflatten
from cordwood.tree.leaves import describe_leaf, is_static_leaf


def match_like(
    index: Index,
    like: Any,
    options: LoadOptions,
    *,
    name: str,
    left_out: Collection[KeyPath] = (),
    transposed: Collection[KeyPath] = (),
    moved: Collection[KeyPath] = (),
) -> Matching:
    """Match the leaves of a checkpoint to those of `like` by key path.

    Args:
        index: the selected leaves of the checkpoint.
        like: the tree to match.
        options: to, strict, cast, missing and extra are used.
        name: the checkpoint's name in errors.
        left_out: key paths of stored leaves that are not selected.
        transposed: key paths of leaves that are transposed; the index has the shapes after it.
        moved: paths in the index of containers whose kind is that of `like`.

    Raises:
        MismatchError: leaves are missing, extra or of another kind, shape or dtype; the
            message names all of them.
    """
    naming = index.naming
    flat, rebuild = _flatten_like(like, naming)
    stored = {match_name(leaf.key_path, naming): leaf for leaf in index.leaves}
    if len(stored) < len(index.leaves):
        raise duplicate_name(index, name)
    requested = dtypes_of_cast(index, options, name=name)
    not_selected = {match_name(path, naming) for path in left_out}
    pairs = _pair_leaves(flat, stored, naming, options, requested, not_selected, transposed)
    mismatch = _mismatch(
        index, like, flat, stored, pairs, options, is_part=bool(left_out), moved=moved
    )
    if mismatch is not None:
        raise explain(mismatch, name)
    if len(pairs.filled) == len(flat.leaves):
        return Matching(pairs.targets, flat.paths, rebuild)
    return keeping_others(flat, pairs.filled, pairs.targets, rebuild)


class _Pairs(NamedTuple):
    """The leaves of `like` beside the stored ones of the same names."""

    targets: list[Target]  # the leaves that fit
    filled: list[int]  # their positions in `like`
    problems: list[Problem]  # the leaves that do not fit
    matched_names: set[Any]  # of leaves that were looked up, with or without success
    unread_leaves: set[Any]  # names of leaves that stay as they are in `like`
    has_arrays: bool  # `like` has some


def _pair_leaves(
    flat: FlatTree,
    stored: Mapping[Any, Leaf],
    naming: Naming,
    options: LoadOptions,
    requested: Mapping[Any, str],
    not_selected: Collection[Any],
    transposed: Collection[KeyPath],
) -> _Pairs:
    """Compare each leaf of `like` with the stored one; the loop may run 20,000 times."""
    keeps = options.missing == "keep"
    targets: list[Target] = []
    filled: list[int] = []
    problems: list[Problem] = []
    matched: set[Any] = set()
    unread: set[Any] = set()
    has_arrays = False
    for i, (path, leaf_like) in enumerate(zip(flat.paths, flat.leaves, strict=True)):
        key = match_name(path, naming)
        leaf = stored.get(key)
        if is_static_leaf(leaf_like):
            unread.add(key)
            if leaf is not None:
                matched.add(key)
                problems.append(StaticLeaf(key, path, leaf_like, leaf))
            continue
        if leaf is None and keeps and not is_abstract(leaf_like):
            unread.add(key)
            has_arrays = has_arrays or hasattr(leaf_like, "dtype")
            continue
        spec = describe_leaf(path, leaf_like, abstract=True)
        has_arrays = has_arrays or spec.kind in ARRAY_KINDS
        if key in matched:
            problems.append(SharedName(key, path))
        matched.add(key)
        if leaf is None:
            is_number = type(leaf_like) in (bool, int, float)
            problems.append(AbsentLeaf(key, path, key in not_selected, is_number))
            continue
        if requested:
            spec = as_cast(spec, leaf, requested.get(key))
        if fits(leaf, spec, options):
            targets.append(make_target(leaf, spec, leaf_like, options))
            filled.append(i)
        else:
            problems.append(MisfitLeaf(key, path, leaf, spec, leaf.key_path in transposed))
    return _Pairs(targets, filled, problems, matched, unread, has_arrays)


def _mismatch(
    index: Index,
    like: Any,
    flat: FlatTree,
    stored: Mapping[Any, Leaf],
    pairs: _Pairs,
    options: LoadOptions,
    *,
    is_part: bool,
    moved: Collection[KeyPath],
) -> Mismatch | NothingInCommon | None:
    """Return all that does not fit, also stored leaves that `like` lacks, and containers."""
    naming = index.naming
    unmatched = {key: leaf for key, leaf in stored.items() if key not in pairs.matched_names}
    unmatched_paths = [leaf.key_path for leaf in unmatched.values()]
    ignores_extra = options.extra == "ignore" or not options.strict
    is_disjoint = pairs.has_arrays and 0 < len(unmatched) == len(stored)
    problems = list(pairs.problems)
    if is_disjoint and ignores_extra and not problems:  # all of `like` would be unread
        return NothingInCommon(flat.paths, unmatched_paths, naming, is_part)
    if not ignores_extra:
        problems += [ExtraLeaf(key, leaf) for key, leaf in unmatched.items()]
    covering: list[LeafForContainer] = []
    if options.strict and naming not in SEPARATORS and index.structure != flat.structure:
        nodes = containers_by_name(index.structure, naming)
        like_nodes = containers_by_name(flat.structure, naming)
        keeps = options.missing == "keep"
        unread = pairs.unread_leaves | (like_nodes.keys() if keeps else set())
        nodes = remove_empty(nodes, unread)
        if ignores_extra:
            like_nodes = remove_empty(like_nodes, unmatched.keys() | nodes.keys())
        moved_names = {match_name(path, naming) for path in moved}
        problems += container_problems(
            nodes, like_nodes, missing=keeps, extra=ignores_extra, moved=moved_names
        )
        if problems:
            covering = _leaves_for_containers(flat, naming, stored, nodes, like_nodes)
    if not problems:
        return None
    return Mismatch(
        problems=problems,
        covering=covering,
        stored=index,
        like=like,
        flat=flat,
        options=options,
        fitting=[target.leaf for target in pairs.targets],
        unmatched=unmatched_paths,
        unread_leaves=pairs.unread_leaves,
        is_disjoint=is_disjoint,
    )


def _leaves_for_containers(
    flat: FlatTree,
    naming: Naming,
    stored: Mapping[Any, Leaf],
    nodes: Mapping[Any, Container],
    like_nodes: Mapping[Any, Container],
) -> list[LeafForContainer]:
    """Return a problem for each place where one side has a leaf and the other a container."""
    problems: list[LeafForContainer] = [
        LeafInCheckpoint(key, like_nodes[key], leaf)
        for key, leaf in stored.items()
        if key in like_nodes
    ]
    for path, leaf in zip(flat.paths, flat.leaves, strict=True):
        key = match_name(path, naming)
        if key in nodes and not is_static_leaf(leaf):
            problems.append(LeafInLike(key, nodes[key], describe_leaf(path, leaf, abstract=True)))
    return problems


def _flatten_like(like: Any, naming: Naming) -> tuple[FlatTree, Callable[[Sequence[Any]], Any]]:
    """Return the flattened `like`, and the function that builds such a tree from values."""
    if naming == "strings":
        from cordwood.state_dict.state_dicts import from_state_dict, to_state_dict

        flat = flatten(to_state_dict(like))
        return flat, lambda values: from_state_dict(like, unflatten(flat, values))
    flat = flatten(like)
    return flat, partial(unflatten, flat)
