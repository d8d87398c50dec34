"""Results equal to those of Flax and eFormer, and errors that the same callers catch."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import eformer.pytree._serialization as eformer_serialization
import flax.core
import flax.serialization as flax_serialization
import flax.struct
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cordwood as cordwood_serialization
from cordwood.errors import MismatchError
from cordwood.state_dict import current_path, from_state_dict, is_serializable, to_state_dict

from .state_dict_trees import Node, Pair, flax_trees, plain_trees, same, states

PEERS = [flax_serialization, eformer_serialization]
peers = pytest.mark.parametrize("peer", PEERS, ids=["flax", "eformer"])


@settings(max_examples=2000)
@given(tree=flax_trees())
def test_any_tree_of_flax_agrees_with_flax(tree: Any) -> None:
    agree(flax_serialization, tree)


@settings(max_examples=2000)
@given(tree=plain_trees())
def test_any_plain_tree_agrees_with_eformer(tree: Any) -> None:
    agree(eformer_serialization, tree)


def agree(peer: ModuleType, tree: Any) -> None:
    state = to_state_dict(tree)
    assert same(state, peer.to_state_dict(tree))
    restored = from_state_dict(tree, state)
    assert same(restored, peer.from_state_dict(tree, state))
    assert same(restored, tree)
    assert same(from_state_dict(tree, state, strict=True), tree)


def outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as e:  # noqa: BLE001  (whatever it is, it is compared)
        return None, e


@settings(max_examples=1000)
@given(target=flax_trees(), state=states())
def test_states_of_other_trees(target: Any, state: Any) -> None:
    """Both return the same, and cordwood raises where Flax raises."""
    theirs, their_error = outcome(lambda: flax_serialization.from_state_dict(target, state))
    ours, our_error = outcome(lambda: from_state_dict(target, state))
    if their_error is None:
        assert our_error is None
        assert same(ours, theirs)
    else:
        # Which of several mismatches is met first may differ; the tables below hold the messages.
        assert isinstance(our_error, MismatchError)
        assert " at path ." in str(our_error)
    assert current_path() == ""


TARGETS = {
    "dict": ({"a": {"b": {"e": 0, "f": 1}}}, {"a": {"b": {"f": 0}}}),
    "list": ([[1], 2], {"0": {"0": 1, "1": 2}, "1": 2}),
    "tuple": ({"t": (1, 2)}, {"t": {"0": 1}}),
    "named tuple": ([Pair(1, 2)], {"0": {"first": 1, "third": 2}}),
    "frozen dict": (
        {"f": flax.core.FrozenDict({"x": {"y": 1}})},
        {"f": {"x": {"z": 1}}},
    ),
    "missing field": ({"n": Node(1, 2)}, {"n": {"a": 1}}),
    "unknown fields": (Node(1, Node(1, 2)), {"a": 1, "b": {"a": 1, "b": 2, "y": 3, "z": 4}}),
}


@pytest.mark.parametrize(("target", "state"), TARGETS.values(), ids=TARGETS)
def test_messages_are_those_of_flax(target: Any, state: Any) -> None:
    with pytest.raises(ValueError) as theirs:
        flax_serialization.from_state_dict(target, state)
    with pytest.raises(ValueError) as ours:
        from_state_dict(target, state)
    assert str(ours.value) == str(theirs.value)


@peers
@pytest.mark.parametrize("case", ["dict", "list", "tuple", "named tuple"])
def test_messages_are_those_of_both(peer: ModuleType, case: str) -> None:
    with pytest.raises(ValueError) as theirs:
        peer.from_state_dict(*TARGETS[case])
    with pytest.raises(ValueError) as ours:
        from_state_dict(*TARGETS[case])
    assert str(ours.value) == str(theirs.value)


@peers
def test_messages_of_colliding_keys(peer: ModuleType) -> None:
    tree = {1: "x", "1": "y", 2: "z"}
    with pytest.raises(ValueError) as theirs:
        peer.to_state_dict(tree)
    with pytest.raises(ValueError) as ours:
        to_state_dict(tree)
    assert str(ours.value) == str(theirs.value)


@peers
def test_errors_of_handlers_read_as_those_of_the_peer(peer: ModuleType) -> None:
    caught: list[tuple[str, str]] = []
    for module in (peer, cordwood_serialization):
        kind = type("Own", (), {})
        module.register_serialization_state(kind, lambda _: {1: 2}, lambda _, state: state)
        with pytest.raises((AssertionError, TypeError)) as keys:
            module.to_state_dict(kind())
        with pytest.raises(ValueError) as twice:
            module.register_serialization_state(kind, lambda _: {}, lambda _, state: state)
        caught.append((str(keys.value), str(twice.value)))
    assert caught[0] == caught[1]


@peers
@pytest.mark.parametrize(
    "target",
    [{}, dict, [], (), Pair(1, 2), 42, None, np.zeros(1), jax.tree_util.Partial(max), object],
    ids=repr,
)
def test_the_same_classes_are_serializable_as_for_the_peer(peer: ModuleType, target: Any) -> None:
    assert is_serializable(target) is peer.is_serializable(target)


@pytest.mark.parametrize("target", [flax.core.FrozenDict(), Node, Node(1, 2)], ids=repr)
def test_flax_types_are_serializable(target: Any) -> None:
    assert is_serializable(target)
    assert flax_serialization.is_serializable(target)


# What was registered with a peer


@peers
def test_a_peers_handler_is_called(peer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "_STATE_DICT_REGISTRY", dict(peer._STATE_DICT_REGISTRY))
    kind = type("Own", (), {})
    seen: list[tuple[str, str]] = []

    def restore(target: Any, state: Any) -> Any:
        seen.append((peer.current_path(), current_path()))
        target.value = peer.from_state_dict([0], state["value"], name="value")
        return target

    peer.register_serialization_state(kind, lambda _: {"value": {"0": 1}}, restore)
    tree = {"a": [kind()]}
    assert is_serializable(kind)
    assert to_state_dict(tree) == {"a": {"0": {"value": {"0": 1}}}}
    assert from_state_dict(tree, {"a": {"0": {"value": {"0": 5}}}})["a"][0].value == [5]
    assert seen == [("./a/0", "./a/0")]
    with pytest.raises(ValueError, match=r"got 1 and 2 at path \./a/0/value$"):
        from_state_dict(tree, {"a": {"0": {"value": {"0": 5, "1": 6}}}})
    assert peer.current_path() == current_path() == ""


def test_cordwoods_handler_goes_before_flaxs() -> None:
    class Fields:
        x: Any

    Both: Any = flax.struct.dataclass(Fields)
    assert to_state_dict([Both((1,))]) == {"0": {"x": {"0": 1}}}
    cordwood_serialization.register_serialization_state(
        Both, lambda both: {"ours": both.x}, lambda _, state: Both(state["ours"])
    )
    assert to_state_dict([Both((1,))]) == {"0": {"ours": (1,)}}
    assert from_state_dict([Both(0)], {"0": {"ours": 2}}) == [Both(2)]


def test_another_handler_for_a_struct_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = flax_serialization._STATE_DICT_REGISTRY
    monkeypatch.setattr(flax_serialization, "_STATE_DICT_REGISTRY", dict(registry))
    flax_serialization.register_serialization_state(
        Node,
        lambda node: {"only": node.a},
        lambda node, state: node.replace(a=state["only"]),
        override=True,
    )
    assert to_state_dict({"n": Node(1, 2)}) == {"n": {"only": 1}}
    assert from_state_dict(Node(0, 2), {"only": 5}) == Node(5, 2)


def below(tree: Any) -> Any:
    if type(tree) is Node:
        return tree.a
    # A frozen dict's own indexing copies, recursively.
    return (tree._dict if isinstance(tree, flax.core.FrozenDict) else tree)["k"]


@pytest.mark.parametrize(
    "wrap", [lambda tree: flax.core.FrozenDict({"k": tree}), lambda tree: Node(tree, 1)]
)
@pytest.mark.parametrize("strict", [False, True])
def test_flax_types_nested_deeply(wrap: Callable[[Any], Any], strict: bool) -> None:
    leaf = np.float32(1)
    tree: Any = leaf
    for _ in range(800):
        tree = wrap(tree)
    restored = from_state_dict(tree, to_state_dict(tree), strict=strict)
    for _ in range(800):
        assert type(restored) is type(tree)
        restored, tree = below(restored), below(tree)
    assert restored is leaf


def test_frozen_dicts_stay_frozen_and_share_no_dicts_with_the_state() -> None:
    tree = flax.core.FrozenDict({"a": {"b": [1, {"c": 2}]}, "f": flax.core.FrozenDict({"x": 1})})
    state = to_state_dict(tree)
    restored = from_state_dict(tree, state)
    assert same(restored, tree)
    assert isinstance(restored["a"], flax.core.FrozenDict)
    state["a"]["b"]["1"]["c"] = state["f"]["x"] = "changed"
    assert same(restored, tree)


def test_integer_keys_of_a_frozen_dict() -> None:
    """Flax's own path has the bare key in it, which fails where a message is made of it."""
    tree = flax.core.FrozenDict({1: {"a": 2}})
    assert from_state_dict(tree, to_state_dict(tree)) == tree
    with pytest.raises(ValueError, match=r"contains keys \{'a'\} .* at path \./1$"):
        from_state_dict(tree, {"1": {}})


def test_a_box_of_flax_keeps_its_names() -> None:
    import flax.linen as nn

    box = nn.Partitioned(np.ones(2), names=("data",))
    state = to_state_dict({"w": box})
    assert list(state["w"]) == ["value"]
    restored = from_state_dict({"w": box.replace(value=0)}, state)["w"]
    assert restored.names == ("data",)
    assert restored.value is box.value


@given(st.data())
@settings(max_examples=100)
def test_strict_finds_any_changed_leaf(data: st.DataObject) -> None:
    tree = data.draw(flax_trees())
    state = to_state_dict([tree, np.zeros(3)])
    paths = list(leaf_places(state))
    parent, key = data.draw(st.sampled_from(paths))
    parent[key] = object()
    with pytest.raises(ValueError, match=r"^1 entry of the state dict does not fit `target`:\n"):
        from_state_dict([tree, np.zeros(3)], state, strict=True)


def leaf_places(state: dict[str, Any]) -> Any:
    for key, value in state.items():
        if type(value) is dict:
            yield from leaf_places(value)
        else:
            yield state, key
