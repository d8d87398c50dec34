"""The JSON form of structures, and the paths of their leaves."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.encoding.json_tree_structure import structure_from_json, structure_to_json
from cordwood.errors import FormatError, LimitError, UnsupportedLeafError
from cordwood.index import LEAF, Node, leaf_paths
from cordwood.keypath import DictKey
from cordwood.tree.flatten import flatten


@pytest.mark.parametrize(
    ("tree", "items"),
    [
        (1, [1]),
        (None, [None]),
        ({}, [["dict", []]]),
        ([1, 2, 3], [["list", 3], 3]),
        ([1, (2, 3), 4], [["list", 3], 1, ["tuple", 2], 3]),
        ({"a": [1], "b": 2}, [["dict", ["a", "b"]], ["list", 1], 2]),
        ({1: 1, 2.5: 3, None: 4}, [["dict", [1, 2.5, None]], 3]),
        ({b"\xff": 1}, [["dict", [{"bytes": "/w=="}]], 1]),
        ({(1, "a", (None,)): 1}, [["dict", [{"tuple": [1, "a", {"tuple": [None]}]}]], 1]),
        (
            {2**60: 1, -(2**60): 2},
            [["dict", [{"int": "1" + "0" * 15}, {"int": "-1" + "0" * 15}]], 2],
        ),
        ({"\ud800": 1}, [["dict", [{"utf8": "7aCA"}]], 1]),
    ],
)
def test_a_structure_has_one_form_in_json(tree: Any, items: list[Any]) -> None:
    structure = flatten(tree).structure
    assert structure_to_json(structure) == items
    assert structure_from_json(json.loads(json.dumps(items))) == structure


def test_nodes_of_other_types_carry_their_name() -> None:
    structure = (Node("object", 2, ("w", DictKey(0)), "Linear"), LEAF, LEAF)
    assert structure_to_json(structure) == [["object", ["w", 0], "Linear"], 2]
    assert structure_from_json([["object", ["w", 0], "Linear"], 2]) == structure


_KEYS = st.one_of(st.text(max_size=3), st.integers(), st.none(), st.binary(max_size=2))
_TREES = st.recursive(
    st.one_of(st.none(), st.integers()),
    lambda children: st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(_KEYS, children, max_size=4),
    ),
    max_leaves=20,
)


@given(_TREES)
def test_any_structure_comes_back_with_the_same_leaf_paths(tree: Any) -> None:
    flat = flatten(tree)
    items = json.loads(json.dumps(structure_to_json(flat.structure)))
    assert structure_from_json(items) == flat.structure
    assert leaf_paths(flat.structure) == list(flat.paths)


BAD = [
    ({}, "expected a list, found {}"),
    ([], "ends with 1 nodes missing"),
    ([2], "item 0: 1 leaves more than the tree has room for"),
    ([1, 1], "item 1: the tree is complete before it"),
    ([None, None], "item 1: the tree is complete before it"),
    ([0], "item 0: expected at least one leaf, found 0"),
    ([-1], "item 0: expected at least one leaf, found -1"),
    ([True], "item 0: expected a number, null or a list, found True"),
    ([1.0], "item 0: expected a number, null or a list"),
    (["leaf"], "item 0: expected a number, null or a list"),
    ([[]], "item 0: expected a number, null or a list"),
    ([["set", 1], 1], "item 0: unknown kind of node 'set'"),
    ([[["dict"], []]], "item 0: unknown kind of node"),
    ([["list"]], r"item 0: expected ['list', length]"),
    ([["list", -1]], r"item 0: expected ['list', length]"),
    ([["list", True]], r"item 0: expected ['list', length]"),
    ([["list", 2], 1], "ends with 1 nodes missing"),
    ([["list", 10**18], 1], f"ends with {10**18 - 1} nodes missing"),
    ([["dict", 1], 1], r"item 0: expected ['dict', keys, type name]"),
    ([["dict", ["a"], "", 1], 1], r"item 0: expected ['dict', keys, type name]"),
    ([["dict", ["a"], 1], 1], "item 0: expected a type name, found 1"),
    ([["dict", ["a", "a"]], 2], "item 0: the key 'a' occurs twice"),
    ([["dict", [1, True]], 2], "item 0: the key DictKey(value=True) occurs twice"),
    ([["dict", [1, 1.0]], 2], "item 0: the key DictKey(value=1.0) occurs twice"),
    ([["dict", [[1]]], 1], "item 0: [1] is not a key"),
    ([["dict", [{"x": 1}]], 1], "is not a key"),
    ([["dict", [{"int": "0x1"}]], 1], "is not a key"),
    ([["dict", [{"int": "1_0"}]], 1], "is not a key"),
    ([["dict", [{"bytes": "?"}]], 1], "is not valid base64"),
    ([["dict", [{"bytes": 1}]], 1], "is not valid base64"),
    ([["dict", [{"utf8": "/w=="}]], 1], "is not valid base64"),
    ([["dict", [float("inf")]], 1], "inf is not a key"),
]


@pytest.mark.parametrize(("items", "message"), BAD, ids=range(len(BAD)))
def test_what_is_no_structure(items: Any, message: str) -> None:
    with pytest.raises(FormatError, match=re.escape(message)):
        structure_from_json(items)


def test_a_structure_has_limits_of_leaves_and_depth() -> None:
    with pytest.raises(LimitError, match="5 leaves or more; expected at most 4"):
        structure_from_json([["list", 5], 5], max_leaves=4)
    with pytest.raises(LimitError, match=r"nested deeper than 1000 levels \(MAX_DEPTH\)"):
        structure_from_json([["list", 1]] * 100_000)
    deep: Any = 1
    for _ in range(40):
        deep = {"tuple": [deep]}
    with pytest.raises(FormatError, match="is not a key"):
        structure_from_json([["dict", [deep]], 1])


def test_paths_that_would_take_gigabytes_are_refused() -> None:
    structure = structure_from_json([*[["list", 1]] * 990, ["list", 100_000], 100_000])
    with pytest.raises(LimitError, match="the tree is both very deep and very wide"):
        leaf_paths(structure)


def test_keys_without_a_json_form_are_refused() -> None:
    with pytest.raises(UnsupportedLeafError, match="dict key nan cannot be stored"):
        structure_to_json((Node("dict", 1, (DictKey(float("nan")),)), LEAF))
    deep: Any = ()
    for _ in range(40):
        deep = (deep,)
    with pytest.raises(UnsupportedLeafError, match="nested at most 32 deep"):
        structure_to_json((Node("dict", 1, (DictKey(deep),)), LEAF))
