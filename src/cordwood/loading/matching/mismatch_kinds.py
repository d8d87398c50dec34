"""The kinds of mismatches of a stored tree with `like`, as values: `explain` writes their texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

from cordwood.index import Index, Leaf, LeafSpec, Naming
from cordwood.keypath import KeyPath
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.matching.match_containers import (
    Container,
    DifferentKinds,
    NoneInCheckpoint,
    NoneInLike,
)
from cordwood.tree.flatten import FlatTree


class StaticLeaf(NamedTuple):
    """A leaf of `like` of which nothing is stored, such as a function, where a leaf is stored."""

    name: Any
    path: KeyPath
    leaf_like: Any
    leaf: Leaf


class SharedName(NamedTuple):
    """A leaf of `like` that has the name of another one."""

    name: Any
    path: KeyPath


class AbsentLeaf(NamedTuple):
    """A leaf of `like` that is not stored, or not selected."""

    name: Any
    path: KeyPath
    is_left_out: bool  # it is stored, and not selected
    is_python_number: bool  # in `like`


class MisfitLeaf(NamedTuple):
    """A stored leaf of another kind, shape or dtype than that of `like`."""

    name: Any
    path: KeyPath
    leaf: Leaf
    spec: LeafSpec  # of the leaf of `like`
    is_transposed: bool  # the leaf has its shape after the transposition


class ExtraLeaf(NamedTuple):
    """A stored leaf that `like` lacks."""

    name: Any
    leaf: Leaf


class LeafInCheckpoint(NamedTuple):
    """A stored leaf where `like` has a container."""

    name: Any
    container: Container
    leaf: Leaf


class LeafInLike(NamedTuple):
    """A leaf of `like` where the checkpoint has a container."""

    name: Any
    container: Container
    spec: LeafSpec


LeafForContainer: TypeAlias = LeafInCheckpoint | LeafInLike
Problem: TypeAlias = (
    StaticLeaf
    | SharedName
    | AbsentLeaf
    | MisfitLeaf
    | ExtraLeaf
    | DifferentKinds
    | NoneInLike
    | NoneInCheckpoint
)


class Mismatch(NamedTuple):
    """All problems of a stored tree with `like`, and what both sides hold, which advice needs."""

    problems: Sequence[Problem]
    covering: Sequence[LeafForContainer]  # each replaces the problems in its subtree
    stored: Index  # the selected leaves
    like: Any
    flat: FlatTree  # of `like`
    options: LoadOptions
    fitting: Sequence[Leaf]  # stored leaves that fit
    unmatched: Sequence[KeyPath]  # of stored leaves whose names `like` lacks
    unread_leaves: Collection[Any]  # names of leaves that stay as they are in `like`
    is_disjoint: bool  # no stored leaf has a name of `like`, and `like` has arrays


class NothingInCommon(NamedTuple):
    """The problem of a load that would read nothing and keep all of `like`."""

    paths: Sequence[KeyPath]  # of `like`
    unmatched: Sequence[KeyPath]  # of all stored leaves
    naming: Naming
    is_part: bool  # some stored leaves are not selected
