"""Selected leaves under new names, and the trees that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given

from cordwood.errors import MismatchError
from cordwood.index import Index, Inline, Leaf, Naming
from cordwood.keypath import format_path
from cordwood.plan.rename_paths import Rename
from cordwood.plan.select_leaves import select_leaves
from cordwood.testing.strategies import trees
from cordwood.tree.flatten import build_tree, flatten


class Moments(NamedTuple):
    mu: Any
    nu: Any


def index_of(tree: Any, naming: Naming = "exact") -> Index:
    flat = flatten(tree)
    leaves = [
        Leaf(path, "int", (), "", Inline(value))
        for path, value in zip(flat.paths, flat.leaves, strict=True)
    ]
    return Index("test", flat.structure, tuple(leaves), (), naming)


def part(
    tree: Any,
    *,
    select: str | Sequence[str] | None = None,
    rename: Rename | None = None,
    naming: Naming = "exact",
) -> Any:
    """Return the selected leaves as a tree."""
    index = index_of(tree, naming)
    selection = select_leaves(index, select=select, rename=rename, where="ckpt")
    values = []
    for leaf, number in zip(selection.stored.leaves, selection.numbers, strict=True):
        assert leaf.storage is index.leaves[number].storage
        assert isinstance(leaf.storage, Inline)
        values.append(leaf.storage.value)
    return build_tree(selection.stored.structure, values)


TREE: dict[str, Any] = {
    "params": {"dense": {"kernel": 1, "bias": 2}, "layers": [{"w": 3}, {"w": 4}, {"w": 5}]},
    "opt": (Moments(6, {}), None),
    "step": 7,
}


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("**", {**TREE, "opt": ({"mu": 6, "nu": {}}, None)}),
        ("step", {"step": 7}),
        ("params/dense", {"params": {"dense": {"kernel": 1, "bias": 2}}}),
        ("params/layers", {"params": {"layers": [{"w": 3}, {"w": 4}, {"w": 5}]}}),
        ("params/layers/[12]", {"params": {"layers": {1: {"w": 4}, 2: {"w": 5}}}}),
        ("params/layers/0", {"params": {"layers": {0: {"w": 3}}}}),
        ("opt", {"opt": ({"mu": 6, "nu": {}}, None)}),
        ("opt/0/mu", {"opt": {0: {"mu": 6}}}),
        ("opt/1", {"opt": {1: None}}),
        (["step", "**/bias"], {"params": {"dense": {"bias": 2}}, "step": 7}),
    ],
)
def test_patterns_select_leaves_and_subtrees(select: str | list[str], expected: Any) -> None:
    assert part(TREE, select=select) == expected


@pytest.mark.parametrize(
    ("tree", "rename", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": "c"}, {"c": 1, "b": 2}),
        ({"a": {"x": [1, 2]}}, {"a": "b/c"}, {"b": {"c": {"x": [1, 2]}}}),
        ({"p": {"a": (1, 2), "b": None}}, {"p": ""}, {"a": (1, 2), "b": None}),
        ({"a": (1, 2), "b": {}}, {"": "p"}, {"p": {"a": (1, 2), "b": {}}}),
        ([{"k": 1}, {"k": 2}], {"*/k": "*/kernel"}, [{"kernel": 1}, {"kernel": 2}]),
        ([{"k": 1}, {"k": 2}], {"1": "last"}, {(0): {"k": 1}, "last": {"k": 2}}),
        ({"l_0": {"w": 1}, "l_1": {"w": 2}}, {"l_*": "layers/*"}, {"layers": [{"w": 1}, {"w": 2}]}),
        ({"l_1": {"w": 1}, "l_3": {"w": 2}}, {"l_*": "ls/*"}, {"ls": {1: {"w": 1}, 3: {"w": 2}}}),
        ({"a": {"b": {"w": 1}}}, {"**/w": "**/kernel"}, {"a": {"b": {"kernel": 1}}}),
        ({"w": 1}, {"**/w": "x/**/kernel"}, {"x": {"kernel": 1}}),
        ({"a": {"w": 1, "b": 2}}, {"a/w": "w", "a": "c"}, {"w": 1, "c": {"b": 2}}),
        ({"a": {"0": 1}}, {"a/'0'": "b/'1'"}, {"b": {"1": 1}}),
        ({"a": 1}, {"a": ""}, 1),
    ],
)
def test_rename_moves_leaves_and_subtrees(tree: Any, rename: dict[str, str], expected: Any) -> None:
    assert part(tree, rename=rename) == expected


def test_names_with_dots_become_paths() -> None:
    tree = {"model.layers.0.weight": 1, "model.layers.1.weight": 2, "head.weight": 3}
    rename = {"model.layers.*.weight": "layers/*/kernel", "head.weight": "head"}
    expected = {"layers": [{"kernel": 1}, {"kernel": 2}], "head": 3}
    assert part(tree, rename=rename, naming="dotted") == expected


def test_a_joined_name_may_begin_with_another() -> None:
    tree = {"a": 1, "a.b": 2, "c": 3}
    assert part(tree, rename={"c": "d"}, naming="dotted") == {"a": 1, "a.b": 2, "d": 3}
    with pytest.raises(MismatchError, match=r"twice:\n  a\.b and c: a/b\n") as error:
        part(tree, rename={"c": "a/b"}, naming="dotted")
    select = ["**", "!a", "!a.b"]
    assert str(error.value).endswith('select=["**", "!a", "!a.b"]')
    assert part(tree, select=select, rename={"c": "a/b"}, naming="dotted") == {"a": {"b": 3}}


def test_names_with_slashes_are_paths() -> None:
    tree = {"params/dense/w": 1, "params/b": 2, "step": 3}
    index = index_of(tree)._replace(naming="slashed")
    selection = select_leaves(index, select="params/**", rename={"params/dense": "d"}, where="ckpt")
    assert [leaf.key_path for leaf in selection.stored.leaves] == [("d", "w"), ("params/b",)]
    assert build_tree(selection.stored.structure, [1, 2]) == {"d": {"w": 1}, "params/b": 2}


def test_positions_that_are_strings_stay_strings() -> None:
    tree = {"layers": {"0": {"w": 1}, "1": {"w": 2}}}
    selection = part(tree, rename={"layers/*": "blocks/*"}, naming="strings")
    assert selection == {"blocks": {"0": {"w": 1}, "1": {"w": 2}}}
    assert part(tree, rename={"layers": ""}, naming="strings") == tree["layers"]


def test_select_goes_by_the_names_before() -> None:
    assert part(TREE, select="params/dense", rename={"params": ""}) == {
        "dense": TREE["params"]["dense"]
    }


def test_leaves_that_are_left_out_have_their_new_names() -> None:
    selection = select_leaves(
        index_of(TREE), select="step", rename={"params/dense": "d"}, where="ckpt"
    )
    assert {"d/kernel", "d/bias", "params/layers/0/w", "opt/0/mu"} <= set(
        map(format_path, selection.left_out)
    )


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"a": "b/x"}, r"rename gives one name twice:\n  a and b/x: b/x"),
        ({"a": "b"}, r"rename gives one name twice:\n  a: b, a leaf and above it"),
        ({"aa": "c"}, r"rename matches no leaf of ckpt:\n  'aa'; did you mean 'a'\?"),
        ({"b": "c", "b/x": "d"}, "'b/x': a rule before it takes what it matches"),
    ],
)
def test_renames_that_do_not_fit(rename: dict[str, str], message: str) -> None:
    with pytest.raises(MismatchError, match=message):
        part({"a": 1, "b": {"x": 2}}, rename=rename)


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"*": "c"}, r"'\*' has the wildcards \*, and 'c' none"),
        ({"*/**": "**/*"}, r"has the wildcards \* \*\*, and '\*\*/\*' \*\* \*"),
        ({"[ab]": "c"}, r"only \* and \*\* can stand for something"),
        ({"a": "(x"}, r"makes '\(x': .*is not a Python literal"),
    ],
)
def test_rules_that_are_none(rename: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        part({"a": 1, "b": {"x": 2}}, rename=rename)


@given(trees())
def test_everything_selected_is_the_same_index(tree: Any) -> None:
    index = index_of(tree)
    if not index.structure[0].size and not index.leaves:
        return
    selection = select_leaves(index, select="**", rename=None, where="ckpt")
    assert selection.stored == index
    assert selection.numbers == tuple(range(len(index.leaves)))
    assert not selection.left_out


@pytest.mark.parametrize(
    ("tree", "select", "rename", "expected"),
    [
        # a container moves as a whole, and keeps its kind
        ({"a": (1, [2, {"x": 3}])}, None, {"a": ""}, (1, [2, {"x": 3}])),
        (({"w": 1}, {"m": 2}), "0", {"0": ""}, {"w": 1}),
        ({"o": (1, (2, 3))}, None, {"o/**": "o/1/**"}, {"o": {1: (1, (2, 3))}}),
        ({"o": ({}, (1, [2]))}, "o/1", {"o/1": "o"}, {"o": (1, [2])}),
        ({"o": ([1], 2), "x": 3}, "o/0", {"o/0": "x"}, {"x": [1]}),
        # empty containers give way, with or without `select`
        ({"o": ({}, (1, [2]))}, None, {"o/1": "o"}, {"o": (1, [2])}),
        ({"o": ({}, [(), 1])}, None, {"o/1": "o"}, {"o": [(), 1]}),
        ({"o": {"a": {}, "b": 1}}, None, {"o/b": "o/a/c/d"}, {"o": {"a": {"c": {"d": 1}}}}),
        ({"a": 1, "b": ((), 2)}, None, {"a": "b/0"}, {"b": (1, 2)}),
        ({"a": [()], "b": 1}, None, {"b": "a"}, {"a": 1}),
        # a leaf becomes the root, and the root a container
        ({"x": 1, "y": 2}, "x", {"x": ""}, 1),
        (1, None, {"": "params"}, {"params": 1}),
        # what is not selected is in no one's way
        ({"a": 1, "b": {"x": 2}}, "a", {"a": "b"}, {"b": 1}),
        ({"a": 1, "b": {"x": 2}}, "b", {"b": "a"}, {"a": {"x": 2}}),
        # one leaf or container at several places
        ({"e": 1, "n": 2}, None, {"e": ["e", "h/w"]}, {"e": 1, "h": {"w": 1}, "n": 2}),
        ({"a": (1, 2)}, None, {"*": ["*", "*b"]}, {"a": (1, 2), "ab": (1, 2)}),
    ],
)
def test_selected_subtrees_move(
    tree: Any, select: str | None, rename: dict[str, Any], expected: Any
) -> None:
    assert part(tree, select=select, rename=rename) == expected


def test_only_what_moved_or_lost_something_counts_as_moved() -> None:
    tree = {"a": [{"x": 1}, {"y": (2, {})}], "b": [3, (4,)], "c": (5, {})}
    selection = select_leaves(
        index_of(tree), select="!b/0", rename={"a/0": "d", "c/1": "e"}, where="ckpt"
    )
    moved = sorted(map(format_path, selection.moved))
    assert moved == ["", "a", "b", "c", "d", "d/x", "e"]


@pytest.mark.parametrize(
    ("tree", "rename", "select"),
    [
        ({"a": 1, "b": 2}, {"a": "b"}, ["**", "!b"]),
        ({"a": 1, "b": {"x": 2, "y": 3}}, {"a": "b/x"}, ["**", "!b/x"]),
        ({"a": 1, "b": {"x": 2, "y": 3}, "c": 4}, {"a": ""}, ["**", "!b", "!c"]),
        ({"a": {"x": 2, "y": 3}, "b": 1}, {"a": "b"}, ["**", "!b"]),
    ],
)
def test_two_leaves_of_one_name_and_what_to_leave_out(
    tree: Any, rename: dict[str, str], select: list[str]
) -> None:
    with pytest.raises(MismatchError, match="rename gives one name twice") as error:
        part(tree, rename=rename)
    advice = ", ".join([f'"{pattern}"' for pattern in select])
    assert str(error.value).endswith(f"pass for example select=[{advice}]")
    part(tree, select=select, rename=rename)


def test_a_rule_without_a_new_path_is_refused() -> None:
    with pytest.raises(ValueError, match="'a': there is no new path; to leave it out, use select="):
        part({"a": 1}, rename={"a": []})
