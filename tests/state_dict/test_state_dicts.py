"""to_state_dict and from_state_dict: containers, messages, depth."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest

from cordwood.errors import CordwoodError, LimitError, MismatchError
from cordwood.state_dict import current_path, from_state_dict, to_state_dict

MAX_DEPTH = 1000  # containers in containers, as docs/format.md says


class Point(NamedTuple):
    x: Any
    y: Any


Legacy = namedtuple("Legacy", ["name", "fields", "values"])


def nested(depth: int) -> Any:
    tree: Any = 1.0
    for level in range(depth):
        tree = [tree] if level % 2 else {"k": tree}
    return tree


# to_state_dict


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (5, 5),
        (None, None),
        ({}, {}),
        ([], {}),
        ((), {}),
        ([1, (2,), "x"], {"0": 1, "1": {"0": 2}, "2": "x"}),
        ({"b": 1, "a": {2: None, (1, 2): b"z"}}, {"b": 1, "a": {"2": None, "(1, 2)": b"z"}}),
        (Point(1, [2]), {"x": 1, "y": {"0": 2}}),
        (OrderedDict(b=[1], a=2), {"b": {"0": 1}, "a": 2}),
        (defaultdict(list, {3: [1]}), {"3": {"0": 1}}),
        ({"s": {1}, "d": np.dtype("int8")}, {"s": {1}, "d": np.dtype("int8")}),
    ],
)
def test_a_state_dict_has_keys_that_are_strings(tree: Any, expected: Any) -> None:
    state = to_state_dict(tree)
    assert state == expected
    assert str(state) == str(expected)  # the order of the keys too


def test_leaves_are_not_copied() -> None:
    array = np.zeros(3)
    assert to_state_dict({"a": [array]})["a"]["0"] is array
    assert from_state_dict({"a": [0]}, {"a": {"0": array}})["a"][0] is array


def test_keys_that_collide_as_strings() -> None:
    expected = (
        r"^Dict keys do not have a unique string representation: \{'1'\} "
        r"vs given: \{1: 2, '1': 3\}\nIt happened at a/0\.$"  # the last line is a note
    )
    with pytest.raises(ValueError, match=expected) as caught:
        to_state_dict({"a": [{1: 2, "1": 3}]})
    assert isinstance(caught.value, CordwoodError)


# from_state_dict


@pytest.mark.parametrize(
    ("target", "state", "expected"),
    [
        (0, "anything", "anything"),
        (None, {"a": 1}, {"a": 1}),
        ({1: 0, (1, 2): [0]}, {"1": 5, "(1, 2)": {"0": 6}}, {1: 5, (1, 2): [6]}),
        ({"a": 0}, {"a": 1, "extra": 2}, {"a": 1}),
        ([0, (0,)], {"1": {"0": 2}, "0": 1}, [1, (2,)]),
        (Point(0, ()), {"y": {}, "x": 1}, Point(1, ())),
        (OrderedDict(b=0, a=[0]), {"a": {"0": 1}, "b": 2}, OrderedDict(b=2, a=[1])),
        (defaultdict(int, a=0), {"a": 3}, defaultdict(int, a=3)),
        ([], [], []),
    ],
)
def test_a_state_dict_fills_its_target(target: Any, state: Any, expected: Any) -> None:
    restored = from_state_dict(target, state)
    assert restored == expected
    assert repr(restored) == repr(expected)


def test_restored_containers_are_new() -> None:
    target = {"a": [0], "o": OrderedDict(k=0)}
    restored = from_state_dict(target, to_state_dict(target))
    assert restored == target
    assert restored is not target
    assert restored["a"] is not target["a"]
    assert restored["o"] is not target["o"]
    restored["a"].append(1)
    assert target == {"a": [0], "o": OrderedDict(k=0)}


@pytest.mark.parametrize(
    ("target", "state", "builtin", "message"),
    [
        (
            {"a": {"b": {"e": 0}}},
            {"a": {"b": {"f": 0}}},
            ValueError,
            (
                "The target dict keys and state dict keys do not match, target dict contains keys "
                "{'e'} which are not present in state dict at path ./a/b"
            ),
        ),
        (
            [0, [0]],
            {"0": 1, "1": {"0": 1, "1": 2}},
            ValueError,
            "The size of the list and the state dict do not match, got 1 and 2 at path ./1",
        ),
        (
            [[], (1,)],
            {"0": {}, "1": {}},
            ValueError,
            "The size of the list and the state dict do not match, got 1 and 0 at path ./1",
        ),
        (
            [Point(0, 0)],
            {"0": {"x": 1}},
            ValueError,
            (
                f"The field names of the state dict and the named tuple do not match, got {{'x'}} "
                f"and { {'x', 'y'} } at path ./0"
            ),
        ),
        (
            {"l": [1, 2]},
            {"l": {"0": 1, "5": 2}},
            KeyError,
            (
                "a list of 2 needs the keys '0' to '1'; '1' is not among the keys ['0', '5'] of "
                "the state dict at path ./l"
            ),
        ),
        (
            {"l": (1, 2)},
            {"l": [1, 2]},
            TypeError,
            (
                "expected a dict with the keys ['0', '1'] to restore a tuple of 2 from, found a "
                "list of 2 entries at path ./l; the state was made from a tree of another structure"
            ),
        ),
        (
            {"l": [1, 2]},
            {"l": np.zeros((2, 3), np.float32)},
            TypeError,
            (
                "expected a dict with the keys ['0', '1'] to restore a list of 2 from, found "
                "float32[2,3] at path ./l; the state was made from a tree of another structure"
            ),
        ),
        (
            {"d": {"k": 1}},
            {"d": np.float32(1)},
            AttributeError,
            (
                "expected a dict with the keys ['k'] to restore a dict from, found a numpy float32 "
                "scalar at path ./d; the state was made from a tree of another structure"
            ),
        ),
        (
            {"d": {"k": 1}},
            {"d": None},
            AttributeError,
            (
                "expected a dict with the keys ['k'] to restore a dict from, found None at path "
                "./d; the state was made from a tree of another structure"
            ),
        ),
        (
            [Point(1, 2)],
            {"0": 7},
            AttributeError,
            (
                "expected a dict with the keys ['x', 'y'] to restore the named tuple Point from, "
                "found an int at path ./0; the state was made from a tree of another structure"
            ),
        ),
    ],
)
def test_errors_of_a_restore(
    target: Any, state: Any, builtin: type[Exception], message: str
) -> None:
    with pytest.raises(builtin) as caught:
        from_state_dict(target, state)
    assert str(caught.value) == message
    assert isinstance(caught.value, MismatchError)
    assert current_path() == ""


def test_the_name_begins_the_path() -> None:
    with pytest.raises(ValueError, match=r"at path model/a$"):
        from_state_dict({"a": [0]}, {"a": {}}, "model")


# named tuples as Flax stored them until 2022


def legacy(**fields: Any) -> dict[str, Any]:
    return {
        "name": "Point",
        "fields": {str(i): name for i, name in enumerate(fields)},
        "values": {str(i): value for i, value in enumerate(fields.values())},
    }


@pytest.mark.parametrize("strict", [False, True])
def test_old_named_tuple_layout(strict: bool) -> None:
    assert from_state_dict(Point(0, [0]), legacy(x=1, y={"0": 2}), strict=strict) == Point(1, [2])


@pytest.mark.parametrize("strict", [False, True])
def test_named_tuple_with_the_old_layouts_names(strict: bool) -> None:
    tree = {"t": Legacy("n", {"0": "name", "1": "fields"}, [1, 2])}
    assert from_state_dict(tree, to_state_dict(tree), strict=strict) == tree


@pytest.mark.parametrize(
    "state",
    [
        {"name": "Point", "fields": {"0": "x", "2": "y"}, "values": {"0": 1, "1": 2}},
        {"name": "Point", "fields": {"0": "x", "1": "y"}, "values": {"0": 1}},
        {"name": "Point", "fields": 3, "values": {}},
        legacy(x=1),
    ],
)
def test_a_damaged_old_layout_of_a_named_tuple_is_refused(state: Any) -> None:
    with pytest.raises(MismatchError, match="field names of the state dict and the named tuple"):
        from_state_dict(Point(0, 0), state)


# depth


@pytest.mark.parametrize("depth", [400, 800, MAX_DEPTH])
@pytest.mark.parametrize("strict", [False, True])
def test_deep_trees_need_no_recursion(depth: int, strict: bool) -> None:
    assert sys.getrecursionlimit() <= 1000
    tree = nested(depth)
    state = to_state_dict(tree)
    restored = from_state_dict(tree, state, strict=strict)
    for _ in range(depth):  # == would recurse
        assert type(restored) is type(tree)
        (key,) = tree if type(tree) is dict else (0,)
        (name,) = state
        assert name == str(key)
        restored, tree, state = restored[key], tree[key], state[name]
    assert restored == 1.0


def test_deeper_than_the_limit() -> None:
    tree = nested(MAX_DEPTH + 1)
    message = f"^the tree nests deeper than {MAX_DEPTH} containers"
    with pytest.raises(LimitError, match=message):
        to_state_dict(tree)
    state: Any = 1.0
    for level in range(MAX_DEPTH + 1):
        state = {"0" if level % 2 else "k": state}
    for strict in (False, True):
        with pytest.raises(LimitError, match=message):
            from_state_dict(tree, state, strict=strict)
    assert current_path() == ""


def test_a_list_that_holds_itself() -> None:
    tree: list[Any] = []
    tree += [tree, tree]
    with pytest.raises(LimitError, match="it may contain itself"):
        to_state_dict(tree)


def test_state_dicts_import_no_jax() -> None:
    """State dicts of plain containers import no jax."""
    code = """
import sys, collections, numpy as np
from cordwood.state_dict import to_state_dict, from_state_dict, is_serializable
tree = {"a": [np.zeros(2), collections.OrderedDict(x=(1,))], "o": object()}
state = to_state_dict(tree)
assert from_state_dict(tree, state)["a"][1] == collections.OrderedDict(x=(1,))
from_state_dict(tree, state, strict=True)
assert is_serializable({}) and not is_serializable(object())
assert not {"jax", "flax", "eformer", "tensorstore"} & set(sys.modules), "imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
