"""Any subtrees of any tree arrive where select and rename move them, and nothing wrong does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import cordwood
from cordwood.errors import MismatchError
from cordwood.keypath import KeyPath, format_path
from cordwood.testing import assert_trees_equal
from cordwood.testing import strategies as some
from cordwood.tree.flatten import flatten, unflatten
from tests.loading.tree_writers import WRITERS

FORMATS: list[tuple[str, some.Carrier]] = [
    ("packs", "safetensors"),
    ("safetensors", "safetensors"),
    ("zarr", "safetensors"),
    ("msgpack", "msgpack"),
    ("flax", "msgpack"),
]
KEYS = ["w", "0", "", "a/b", "layers", "é", "x.y", "value", "1"]
TREES: dict[some.Carrier, Any] = {
    "safetensors": some.trees(keys=st.sampled_from([*KEYS, 0, 1, 2.5, None])),
    "msgpack": some.trees("msgpack", keys=st.sampled_from(KEYS)),
}


@jax.tree_util.register_dataclass
@dataclass
class Fields:
    first: Any
    second: Any
    third: Any


class Named(NamedTuple):
    first: Any
    second: Any
    third: Any


NAMES = ("first", "second", "third")
CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "dict": lambda items: dict(zip(NAMES, items, strict=True)),
    "numbers": lambda items: dict(enumerate(items)),
    "list": list,
    "tuple": tuple,
    "namedtuple": lambda items: Named(*items),
    "dataclass": lambda items: Fields(*items),
}
SIBLING = np.arange(3, dtype=np.int16)


def items_of(container: Any) -> list[Any]:
    if isinstance(container, dict):
        return list(container.values())
    if isinstance(container, Fields):
        return [container.first, container.second, container.third]
    return list(container)


class Place(NamedTuple):
    """A place in a tree: the kind and the position at each level, the outermost first."""

    levels: tuple[tuple[str, int], ...]

    @property
    def path(self) -> str:
        names = ("dict", "namedtuple", "dataclass")
        return "/".join(NAMES[at] if kind in names else str(at) for kind, at in self.levels)

    def around(self, tree: Any) -> Any:
        for kind, at in reversed(self.levels):
            items: list[Any] = [SIBLING] * 3
            items[at] = tree
            tree = CONTAINERS[kind](items)
        return tree

    def inside(self, tree: Any) -> Any:
        for _, at in self.levels:
            tree = items_of(tree)[at]
        return tree


places = st.lists(
    st.tuples(st.sampled_from(sorted(CONTAINERS)), st.integers(0, 2)), max_size=3
).map(lambda levels: Place(tuple(levels)))


def other_value(leaf: Any) -> Any:
    """Return another value of the same type, except of jax arrays."""
    if isinstance(leaf, jax.Array):  # with its sharding, weak type and committedness
        return leaf
    if isinstance(leaf, np.ndarray):
        return np.zeros(leaf.shape, leaf.dtype)
    if isinstance(leaf, np.generic):
        return np.zeros((), leaf.dtype)[()]
    return type(leaf)()


def with_other_values(tree: Any) -> Any:
    flat = flatten(tree)
    return unflatten(flat, [other_value(leaf) for leaf in flat.leaves])


def subtrees_of(tree: Any) -> list[tuple[KeyPath, Any]]:
    """Return the containers and leaves of a tree, with their key paths."""
    result: list[tuple[KeyPath, Any]] = []
    stack: list[tuple[KeyPath, Any]] = [((), tree)]
    while stack:
        path, node = stack.pop()
        result.append((path, node))
        top = flatten(node).structure[0]
        if not top.size:
            continue
        keys = top.keys or range(top.size)
        children = list(node.values()) if isinstance(node, dict) else list(node)
        stack += [((*path, key), child) for key, child in zip(keys, children, strict=True)]
    return result


@pytest.mark.parametrize(("format", "carrier"), FORMATS)
@given(data=st.data())
@settings(max_examples=15)
def test_a_subtree_arrives_anywhere(
    format: str, carrier: some.Carrier, data: st.DataObject
) -> None:
    tree = data.draw(TREES[carrier])
    path, subtree = data.draw(st.sampled_from(subtrees_of(tree)))
    place = data.draw(places)
    assume(subtree is not None or place.levels)
    name = format_path(path)
    options: Any = {"missing": "keep"} if place.levels else {}
    if name:
        options["select"] = name
    if name or place.path:
        options["rename"] = {name: place.path}
    like = place.around(with_other_values(subtree))
    with tempfile.TemporaryDirectory() as folder:
        stored = WRITERS[format](Path(folder), tree)
        loaded = cordwood.load(stored, like=like, **options)
        assert_trees_equal(place.inside(loaded), subtree)
        assert_trees_equal(loaded, place.around(subtree))
        with cordwood.open(stored) as checkpoint:
            assert_trees_equal(checkpoint.load(like=like, **options), loaded)
        if name and not place.levels:  # else only `like` says what is around the subtree
            cordwood.convert(stored, Path(folder) / "moved", **options)
            assert_trees_equal(cordwood.load(Path(folder) / "moved", like=like), loaded)


@pytest.mark.parametrize(("format", "carrier"), FORMATS)
@given(data=st.data())
@settings(max_examples=12)
def test_two_subtrees_change_places(
    format: str, carrier: some.Carrier, data: st.DataObject
) -> None:
    one, other = data.draw(TREES[carrier]), data.draw(TREES[carrier])
    kind, like_kind = data.draw(st.tuples(*[st.sampled_from(sorted(CONTAINERS))] * 2))
    stored_tree = CONTAINERS[kind]([one, other, SIBLING])
    names = [Place(((kind, at),)).path for at in range(3)]
    new = [Place(((like_kind, at),)).path for at in range(3)]
    rename: Any = {names[0]: new[1], names[1]: new[0], names[2]: [new[2]]}
    like = CONTAINERS[like_kind]([with_other_values(other), with_other_values(one), SIBLING * 0])
    with tempfile.TemporaryDirectory() as folder:
        stored = WRITERS[format](Path(folder), stored_tree)
        loaded = cordwood.load(stored, like=like, rename=rename)
        assert_trees_equal(loaded, CONTAINERS[like_kind]([other, one, SIBLING]))
        assert cordwood.diff(stored, loaded, rename=rename, values=False).leaves == ()


@pytest.mark.parametrize(("format", "carrier"), FORMATS)
@given(data=st.data())
@settings(max_examples=15)
def test_what_does_not_fit_is_refused_wherever_it_moves(
    format: str, carrier: some.Carrier, data: st.DataObject
) -> None:
    tree = data.draw(TREES[carrier])
    place = data.draw(places.filter(lambda place: bool(place.levels)))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    wrong = data.draw(
        st.sampled_from([array.T, array[:1], array.astype(np.float64), array.astype(np.int32)])
    )
    moved: Any = {"rename": {"": place.path}, "missing": "keep"}
    with tempfile.TemporaryDirectory() as folder:
        stored = WRITERS[format](Path(folder), {"array": array, "tree": tree})
        for content in (
            {"array": wrong, "tree": tree},
            {"array": {"x": array}, "tree": tree},
            {"tree": tree},
        ):
            with pytest.raises(MismatchError):
                cordwood.load(stored, like=place.around(content), **moved)
        like = {"a": {"b": {"array": array, "tree": tree, "more": array}}}
        with pytest.raises(MismatchError, match="a/b/more"):
            cordwood.load(stored, like=like, rename={"": "a/b"})
