"""Other spellings of key paths in patterns and rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import pytest

from cordwood.errors import MismatchError
from cordwood.index import Naming
from cordwood.keypath import DictKey, format_path, parse_path
from cordwood.plan.path_patterns import match_patterns, path_name
from cordwood.plan.path_spellings import is_jax_path, listed_form, plain_pattern
from cordwood.plan.rename_paths import rename_key_paths
from cordwood.tree.flatten import flatten

TREE: dict[Any, Any] = {0: {"blocks": {0: {"w": 1}, 12: {"w": 2}}}, "0": 3, "head": [4, 5]}
NAMES = [format_path(path) for path in flatten(TREE).paths]
PATH = "(0)/blocks/(0)/w"


@pytest.mark.parametrize(
    "pattern",
    [
        "(0)/blocks/(0)/w",
        "0/blocks/0/w",
        "[0].blocks[0].w",
        "[0]['blocks'][0]['w']",
        '[0]["blocks"]/0/w',
        "(0)/blocks[0].w",
        "0/blocks/'0'/w",
        "0/*/0/*",
        "[0].blocks[0]",
    ],
)
def test_one_leaf_in_every_spelling(pattern: str) -> None:
    taken = match_patterns(NAMES, pattern, naming="exact", where="a")
    assert [name for name, take in zip(NAMES, taken, strict=True) if take] == [PATH]
    without = match_patterns(NAMES, f"!{pattern}", naming="exact", where="a")
    assert without == [not take for take in taken]


def test_what_jax_prints_selects_the_leaf() -> None:
    (entries, _) = jax.tree_util.tree_flatten_with_path({"a": [1, (2, {3: 4})]})
    names = ["a/0", "a/1/0", "a/1/1/(3)"]
    for i, (path, _) in enumerate(entries):
        taken = match_patterns(names, jax.tree_util.keystr(path), naming="exact", where="a")
        assert taken == [i == j for j in range(3)]


def test_a_listed_name_comes_before_other_spellings() -> None:
    names = ["'0'/w", "(0)/w", "[0]/w"]
    for i, name in enumerate(["'0'/w", "(0)/w"]):
        taken = match_patterns(names, name, naming="exact", where="a")
        assert taken == [i == j for j in range(3)]
    assert match_patterns(["a/1", "a/2", "a/12"], "a/[12]", naming="exact", where="a") == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("rename", "expected"),
    [
        ({"(0)/blocks/(0)/w": "x"}, "x"),
        ({"0/blocks/0/w": "x/'0'"}, "x/'0'"),
        ({"[0].blocks[0].w": "[1].y['z']"}, "1/y/z"),
        ({"[0].blocks": ".layers"}, "layers/(0)/w"),
        ({"0/blocks/*": "layers/*"}, "layers/0/w"),
        ({"(0)": ".hidden"}, ".hidden/blocks/(0)/w"),
    ],
)
def test_rules_in_every_spelling(rename: Mapping[str, str], expected: str) -> None:
    (paths,) = rename_key_paths([parse_path(PATH)], rename, naming="exact", where="a")
    assert list(map(format_path, paths)) == [expected]


@pytest.mark.parametrize(
    ("naming", "path"),
    [("strings", ("h", "0", "w")), ("keys", ("h", "0", "w")), ("slashed", ("h/0/w",))],
)
def test_spellings_of_names_that_a_format_has_made(naming: Naming, path: Any) -> None:
    names = [path_name(path, naming)]
    for pattern in ("h/(0)/w", "h[0].w", "h/0/w", "h/'0'/w", "h"):
        assert match_patterns(names, pattern, naming=naming, where="a") == [True]


def test_keys_that_are_joined_by_dots_are_containers_too() -> None:
    names = ["h.0.w", "h.1.w", "b"]
    for pattern in ("h", "h/*/w", "h[1].w", ".h"):
        taken = match_patterns(names, pattern, naming="dotted", where="a")
        assert taken[1:] == [True, False]
    paths = [(name,) for name in names]
    renamed = rename_key_paths(paths, {"h": "p/q"}, naming="dotted", where="a")
    assert renamed == [[("p", "q", 0, "w")], [("p", "q", 1, "w")], [("b",)]]
    moved = rename_key_paths(paths[:2], {"h": ""}, naming="dotted", where="a")
    assert moved == [[(0, "w")], [(1, "w")]]


def test_what_is_no_spelling_of_a_path_stays_as_it_is() -> None:
    for text in ("a/[0-3]/b", "[!a]", "a.b", "", "a/.", "[abc]", "*.[ab]"):
        assert not is_jax_path(text)
        assert listed_form(text) == text
    assert plain_pattern("(1.5)/(None)/''") == "1.5/None/"
    with pytest.raises(MismatchError, match=r"'\[3\]\.w'; found "):
        match_patterns(NAMES, "[3].w", naming="exact", where="a")
    assert path_name((DictKey(3), "w"), "exact") == "(3)/w"
