"""Handlers of types, and the path that is passed to them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

from cordwood.state_dict import (
    current_path,
    from_state_dict,
    is_serializable,
    register_serialization_state,
    to_state_dict,
)


class Point(NamedTuple):
    x: Any
    y: Any


class Own:
    """A type with a handler of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test registers is forgotten after it."""
    monkeypatch.setattr("cordwood.state_dict.handlers._handlers", {})


def test_a_registered_class_is_serializable(handlers: None) -> None:
    assert not is_serializable(Own)
    register_serialization_state(
        Own, lambda o: {"value": to_state_dict(o.value)}, lambda _, s: Own(s["value"])
    )
    assert is_serializable(Own)
    assert is_serializable(Own(1))
    assert to_state_dict([Own((1,))]) == {"0": {"value": {"0": 1}}}
    assert from_state_dict([Own(0)], {"0": {"value": 5}})[0].value == 5


def test_a_second_handler_needs_override(handlers: None) -> None:
    register_serialization_state(Own, lambda o: {"first": 1}, lambda _, s: s)
    message = '^a serialization handler for "Own" is already registered$'
    with pytest.raises(ValueError, match=message):
        register_serialization_state(Own, lambda o: {"second": 1}, lambda _, s: s)
    register_serialization_state(Own, lambda o: {"second": 1}, lambda _, s: s, override=True)
    assert to_state_dict(Own(0)) == {"second": 1}


@pytest.mark.parametrize("ty", [dict, list, tuple])
def test_built_in_containers_have_handlers(handlers: None, ty: type) -> None:
    message = f'^a serialization handler for "{ty.__name__}" is already registered$'
    with pytest.raises(ValueError, match=message):
        register_serialization_state(ty, lambda x: {}, lambda x, s: x)
    register_serialization_state(ty, lambda x: {"n": len(x)}, lambda x, s: s["n"], True)
    assert to_state_dict({"a": ty()} if ty is not dict else [{}]) in (
        {"a": {"n": 0}},
        {"0": {"n": 0}},
    )
    assert from_state_dict(ty(), {"n": 7}) == 7


def test_a_leaf_type_can_get_a_handler(handlers: None) -> None:
    assert to_state_dict([1.5]) == {"0": 1.5}
    register_serialization_state(float, lambda x: {"hex": x.hex()}, lambda _, s: 2.5)
    assert to_state_dict([1.5, 1]) == {"0": {"hex": "0x1.8000000000000p+0"}, "1": 1}
    assert from_state_dict([1.5], {"0": {"hex": ""}}) == [2.5]


def test_a_named_tuple_class_can_get_a_handler(handlers: None) -> None:
    register_serialization_state(Point, lambda p: {"xy": (p.x, p.y)}, lambda _, s: Point(*s["xy"]))
    assert to_state_dict({"p": Point(1, 2)}) == {"p": {"xy": (1, 2)}}
    assert from_state_dict({"p": Point(0, 0)}, {"p": {"xy": (3, 4)}}) == {"p": Point(3, 4)}


def test_subclasses_are_not_looked_up(handlers: None) -> None:
    class Sub(Own):
        pass

    register_serialization_state(Own, lambda o: {}, lambda o, s: o)
    sub = Sub(1)
    assert not is_serializable(sub)
    assert to_state_dict(sub) is sub
    assert to_state_dict({"d": (odd := type("Odd", (dict,), {})(a=1))})["d"] is odd


@pytest.mark.parametrize("state", [42, None, "text", [1], np.zeros(2)])
def test_a_handler_may_return_other_than_a_dict(handlers: None, state: Any) -> None:
    register_serialization_state(Own, lambda o: state, lambda _, s: Own(s))
    assert to_state_dict({"o": Own(1)})["o"] is state
    assert from_state_dict(Own(0), state).value is state


@pytest.mark.parametrize("builtin", [TypeError, AssertionError])
def test_a_handlers_keys_are_strings(handlers: None, builtin: type[Exception]) -> None:
    register_serialization_state(Own, lambda o: {1: 2}, lambda _, s: s)
    with pytest.raises(builtin) as caught:
        to_state_dict([Own(0)])
    assert str(caught.value) == "A state dict must only have string keys."
    assert caught.value.__notes__ == [
        "The handler of Own returned the key 1, of type int.",
        "It happened at 0.",
    ]


def test_a_handlers_dict_is_never_changed(handlers: None) -> None:
    kept = {"a": {"b": {"c": [1]}}}
    register_serialization_state(Own, lambda o: kept, lambda _, s: s)
    state = to_state_dict({"o": Own(0)})
    assert state == {"o": kept}
    state["o"]["a"]["b"]["c"] = None
    state["o"]["new"] = 1
    assert kept == {"a": {"b": {"c": [1]}}}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({}, True),
        (dict, True),
        ([], True),
        ((), True),
        (42, False),
        (None, False),
        (Point(1, 2), False),
        (Point, False),
        (np.zeros(1), False),
        (OrderedDict(), False),
    ],
)
def test_only_known_classes_are_serializable(target: Any, expected: bool) -> None:
    assert is_serializable(target) is expected


# current_path


def test_a_handler_knows_the_current_path(handlers: None) -> None:
    seen: list[str] = []

    def restore(target: Own, state: Any) -> Own:
        seen.append(current_path())
        value = from_state_dict(target.value, state["value"], name="value")
        seen.append(current_path())
        return Own(value)

    register_serialization_state(Own, lambda o: {"value": to_state_dict(o.value)}, restore)
    target = {"a": [0, Own([Own(0)])], 7: Own(())}
    assert current_path() == ""
    restored = from_state_dict(target, to_state_dict(target))
    assert restored[7].value == ()
    assert seen == ["./a/1", "./a/1/value/0", "./a/1/value/0", "./a/1", "./7", "./7"]
    assert current_path() == ""


def test_the_path_is_reset_after_an_error(handlers: None) -> None:
    def restore(target: Own, state: Any) -> Any:
        raise RuntimeError(current_path())

    register_serialization_state(Own, lambda o: {}, restore)
    with pytest.raises(RuntimeError, match=r"^\./a/0$"):
        from_state_dict({"a": [Own(0)]}, {"a": {"0": {}}})
    assert current_path() == ""


def test_each_thread_has_its_own_path(handlers: None) -> None:
    elsewhere: list[str] = []

    def restore(target: Own, state: Any) -> Any:
        thread = threading.Thread(target=lambda: elsewhere.append(current_path()))
        thread.start()
        thread.join()
        return current_path()

    register_serialization_state(Own, lambda o: {}, restore)
    assert from_state_dict([Own(0)], {"0": {}}) == ["./0"]
    assert elsewhere == [""]
